"""The work that is timed: sizes, what must be moved and computed, and who else can do it.

Bytes count each input and each output once, as if caches were perfect; FLOPs count multiplications and additions that
the result needs (half of the scores under a causal mask).  So the limit is one that no kernel can beat.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from gpu import attention, matmul, softmax
from gpu.array import Array, Machine
from gpu.cards import Card, Kind, roofline
from minillm.ops.attention import attention_forward
from minillm.ops.softmax import softmax_backward, softmax_forward


@dataclass(frozen=True)
class Work:
    """One operation of one size.

    inputs: draws them as NumPy arrays.  rungs: our ways to do it, as functions of arrays on a machine.  reference: in
    NumPy.  peer: in PyTorch, as a function of the torch module and of tensors; kind: dtype of the arithmetic.
    """

    name: str
    nbytes: float
    flops: float
    kind: Kind
    inputs: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    rungs: dict[str, Callable[..., Array]]
    reference: Callable[..., np.ndarray]
    peer: Callable[..., Any]
    tolerance: float
    """Of the largest value of the result."""

    def limit(self, card: Card) -> tuple[float, str]:
        """Least seconds on a card, and what decides."""
        return roofline(self.nbytes, self.flops, card, self.kind)


def put(machine: Machine, inputs: tuple[np.ndarray, ...], kind: Kind) -> list[Array]:
    """The inputs on a machine; for bfloat16 kernels that take such operands, rounded there."""
    del kind
    return [machine.array(x) for x in inputs]


def softmax_work(rows: int, N: int) -> list[Work]:
    """Forward and backward of (rows, N)."""

    def draw(r: np.random.Generator) -> tuple[np.ndarray, ...]:
        return tuple(r.standard_normal((2, rows, N)).astype(np.float32))

    def probabilities(x: np.ndarray) -> np.ndarray:
        return softmax_forward(x.astype(np.float64))[0]

    size = f"{rows:,} x {N:,}"
    return [
        Work(
            f"softmax {size}", 8 * rows * N, 5 * rows * N, "float32", lambda r: draw(r)[:1],
            {name: lambda x, f=forward: f(x)[0] for name, (forward, _) in softmax.RUNGS.items()},
            probabilities, lambda torch, x: torch.softmax(x, -1), 1e-5,
        ),
        Work(
            f"softmax backward {size}", 12 * rows * N, 4 * rows * N, "float32",
            lambda r: (draw(r)[0], probabilities(draw(r)[1]).astype(np.float32)),
            {name: backward for name, (_, backward) in softmax.RUNGS.items()},
            lambda dp, p: softmax_backward(dp.astype(np.float64), p.astype(np.float64)),
            lambda torch, dp, p: torch.ops.aten._softmax_backward_data(dp, p, -1, torch.float32), 1e-5,
        ),
    ]  # fmt: skip


def matmul_work(M: int, N: int, K: int) -> list[Work]:
    """(M, K) by (K, N), in float32 and with operands in bfloat16."""

    def draw(r: np.random.Generator) -> tuple[np.ndarray, ...]:
        return r.standard_normal((M, K)).astype(np.float32), r.standard_normal((K, N)).astype(np.float32)

    size, flops = f"{M:,} x {N:,} x {K:,}", 2 * M * N * K
    exact = {name: _rung(name) for name in matmul.RUNGS if name != "tensor_cores"}
    work = [
        Work(f"matmul {size}", 4 * (M * K + K * N + M * N), flops, "float32", draw, exact,
             lambda a, b: a.astype(np.float64) @ b, lambda torch, a, b: a @ b, 8e-7 * K**0.5)
    ]  # fmt: skip
    if "tensor_cores" in matmul.RUNGS:
        work.append(
            Work(f"matmul bfloat16 {size}", 2 * (M * K + K * N) + 4 * M * N, flops, "bfloat16", draw,
                 {"tensor_cores": _rung("tensor_cores")}, lambda a, b: a.astype(np.float64) @ b,
                 lambda torch, a, b: a.bfloat16() @ b.bfloat16(), 2**-7)
        )  # fmt: skip
    return work


def _rung(name: str) -> Callable[..., Array]:
    return lambda a, b: matmul.matmul(a, b, rung=name)


def attention_work(B: int, T: int, H: int, D: int) -> list[Work]:
    """Causal attention of (B, T, H, D) with as many keys as queries."""

    def draw(r: np.random.Generator) -> tuple[np.ndarray, ...]:
        return tuple(r.standard_normal((3, B, T, H, D)).astype(np.float32))

    def peer(torch: Any, q: Any, k: Any, v: Any) -> Any:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)

    def low(torch: Any, q: Any, k: Any, v: Any) -> Any:
        return peer(torch, *(x.bfloat16() for x in (q, k, v)))

    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return attention_forward(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))[0]

    size, n = f"{B} x {T:,} x {H} x {D}", B * T * H * D
    rungs = {name: lambda q, k, v, f=f: f(q, k, v)[0] for name, f in attention.RUNGS.items()}
    exact = {name: f for name, f in rungs.items() if name != "tensor_cores"}
    flops = 4 * B * H * D * T * (T + 1) / 2
    work = [Work(f"attention {size}", 16 * n, flops, "float32", draw, exact, reference, peer, 1e-4)]
    if "tensor_cores" in rungs:
        own = {"tensor_cores": rungs["tensor_cores"]}
        work.append(Work(f"attention bfloat16 {size}", 16 * n, flops, "bfloat16", draw, own, reference, low, 2e-2))
    return work


def console() -> Console:
    """Where tables go: a terminal, or lines wide enough for them."""
    out = Console()
    return out if out.is_terminal else Console(width=120)


def full_size() -> list[Work]:
    """What a card is timed on: large enough to fill it."""
    return [*softmax_work(8192, 4096), *matmul_work(4096, 4096, 4096), *attention_work(4, 2048, 16, 64)]


def small() -> list[Work]:
    """What is checked first, of sizes that are no multiple of any tile."""
    return [*softmax_work(37, 1030), *matmul_work(130, 75, 68), *attention_work(2, 75, 2, 64)]
