"""Softmax over the last axis, forward and backward: the twin of `minillm/ops/softmax.py` and the ladder to it.

| rung | idea | reads of a row | writes |
|---|---|---|---|
| `rows`   | one thread a row                                    | 3, uncoalesced | 2 |
| `warps`  | one warp a row, lanes side by side, shuffles        | 3, coalesced   | 1 |
| `online` | one block a row, 16 bytes a load, one pass for both | 2, coalesced   | 1 |

A row that is all -inf gives 0; a NaN in a row makes the whole row NaN.
"""

from collections.abc import Callable

from gpu.array import Array
from gpu.softmax import online, rows, warps

RUNGS: dict[str, tuple[Callable, Callable]] = {
    "rows": (rows.softmax_forward, rows.softmax_backward),
    "warps": (warps.softmax_forward, warps.softmax_backward),
    "online": (online.softmax_forward, online.softmax_backward),
}


def softmax_forward(x: Array) -> tuple[Array, Array]:
    """p = exp(x - m) / sum(exp(x - m)),  m = max(x).  x, p: (..., N) float32."""
    return online.softmax_forward(x)


def softmax_backward(dp: Array, saved: Array) -> Array:
    """dx = p * (dp - sum(dp * p))."""
    return online.softmax_backward(dp, saved)
