"""Matrix product on a GPU, as a ladder: each rung is one file that computes the same and moves less.

    naive           a thread for each element of C
    tiled           a block for each tile of C; tiles of A and B in shared memory
    registers       a small tile of C for each thread
    vectorised      16 bytes in each request; the next tiles under way while these are used: the best for float32
    tensor_cores    bfloat16 operands, multiplied by the tensor cores into float32

Read them in this order; each file says what it changed and what bounds it now.  All compute

    C = alpha op(A) op(B) + beta C        op(A): (M, K),  op(B): (K, N),  C: (M, N)

for matrices stored by rows, of any size, where op(X) is X or its transpose.  C is float32; beta = 0 never reads it.
"""

from collections.abc import Callable

import numpy as np

from gpu.array import Array
from gpu.matmul import naive, registers, tensor_cores, tiled, vectorised
from gpu.matmul.tensor_cores import to_bf16

__all__ = ["RUNGS", "TOP_RUNG", "matmul", "product_shape", "to_bf16"]

RUNGS: dict[str, Callable[[Array, Array, Array, bool, bool, float, float], None]] = {
    "naive": naive.launch,
    "tiled": tiled.launch,
    "registers": registers.launch,
    "vectorised": vectorised.launch,
    "tensor_cores": tensor_cores.launch,
}
TOP_RUNG = {np.dtype(np.float32): "vectorised", np.dtype(np.uint16): "tensor_cores"}


def matmul(
    a: Array,
    b: Array,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Array | None = None,
    rung: str | None = None,
) -> Array:
    """alpha op(a) op(b) + beta c, written into c (into a new array where it is None), which is returned.

    a: (M, K) or, transposed, (K, M).  b: (K, N) or, transposed, (N, K).  c: (M, N), must not share memory with a and b.
    Operands are float32, or bfloat16 as the bits in uint16 (see `to_bf16`); "tensor_cores" rounds float32 to bfloat16.
    rung: which kernel; None: the highest one for the operands' dtype.
    """
    rung = rung or TOP_RUNG.get(a.dtype, "vectorised")
    if rung not in RUNGS:
        raise ValueError(f"rung must be one of {', '.join(RUNGS)}, got {rung!r}")
    M, N = product_shape(a, b, transpose_a, transpose_b)
    if c is None:
        if beta != 0:
            raise ValueError(f"beta = {beta} scales c, and there is none; pass c, or beta=0")
        c = a.machine.empty((M, N), np.float32)
    if (c.shape, c.dtype) != ((M, N), np.float32):
        raise ValueError(f"c must be float32 of shape {(M, N)}, got {c.dtype} of shape {c.shape}")
    RUNGS[rung](a, b, c, transpose_a, transpose_b, alpha, beta)
    return c


def product_shape(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> tuple[int, int]:
    """(M, N) of op(a) op(b).  ValueError where they do not fit together."""
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(
            f"a and b must be matrices, got shapes {a.shape} and {b.shape}; reshape them to two dimensions"
        )
    M, K = a.shape[::-1] if transpose_a else a.shape
    K_of_b, N = b.shape[::-1] if transpose_b else b.shape
    if K_of_b != K:
        raise ValueError(
            f"op(a) must have as many columns as op(b) has rows: {(M, K)} and {(K_of_b, N)}, "
            f"from a {a.shape}{' transposed' * transpose_a} and b {b.shape}{' transposed' * transpose_b}"
        )
    return M, N
