"""Attention on a GPU (forward), as a ladder: each rung is one file that says what it changed and what that saves.

    naive           a thread for each query row; every thread reads all it needs from global memory
    tiled           a block for 64 query rows; tiles of K and V in shared memory, an online softmax
    tensor_cores    the same with both products on tensor cores, from operands rounded to bfloat16

Read them in this order.  All compute what `minillm.ops.attention_forward` does, from and to float32 arrays in its
layout, and keep the logarithm of each row's sum for a backward.  No rung ever stores a T x S matrix.

What is not finite.  A NaN or an infinity in a query stays in its row; one in a key reaches the rows that see the key;
hidden scores are replaced, not added to, so nothing leaks from them.  A NaN in a hidden *value* does leak, as it does
in the reference, because 0 * NaN is NaN: in the reference to all rows, here only to rows whose tile holds the key, and
in rung 1, which skips hidden keys, to none.
"""

from collections.abc import Callable

from gpu.array import Array
from gpu.attention import naive, tensor_cores, tiled
from gpu.attention.call import AttentionSaved

RUNGS: dict[str, Callable[..., tuple[Array, AttentionSaved]]] = {
    "naive": naive.attention_forward,
    "tiled": tiled.attention_forward,
    "tensor_cores": tensor_cores.attention_forward,
}
TOP_RUNG = "tensor_cores"


def attention_forward(
    q: Array, k: Array, v: Array, segments: Array | None = None, rung: str = TOP_RUNG
) -> tuple[Array, AttentionSaved]:
    """y = softmax(q k^T / sqrt(D) + mask) v, for each head; see `minillm.ops.attention_forward`.

    q, y: (B, T, H, D), k, v: (B, S, G, D), all float32; segments: (B, S) int32.
    rung: the kernel.  The top one rounds q, k, v and the probabilities to bfloat16; "tiled" computes in float32.
    """
    if rung not in RUNGS:
        raise ValueError(f"rung must be one of {', '.join(RUNGS)}, got {rung!r}")
    return RUNGS[rung](q, k, v, segments)
