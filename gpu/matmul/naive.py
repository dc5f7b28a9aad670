"""Rung 1: one thread computes one element of C.

    C[i, j] = alpha sum_k A[i, k] B[k, j] + beta C[i, j]

Each thread walks along a row of op(A) and a column of op(B).  The 32 threads of a warp are neighbours in one row of C,
so with B as it is they read 32 neighbours of a row of B (128 bytes, one request) and all the same element of A.

Traffic.  Each multiply-add (FMA, 2 FLOPs) asks for 8 bytes of global memory: 0.25 FLOP a byte.  If every request went
to memory, an A100 (1,555 GB/s) could do 0.39 TFLOP/s of its 19.5.  Caches answer most requests, and the kernel becomes
some times faster; but they are shared with everybody and ask to be looked up each time.  Rung 2 keeps what it will need
again where it finds it without asking.

With op = transposed the warp's requests change: A transposed is as good as A (one element for the warp), but B
transposed is read at 32 places K apart: 32 sectors of 32 bytes for 128 useful bytes.
"""

import numpy as np
from numba import cuda

from gpu.array import Array
from gpu.kernel import Kernel, ceil_div, kernel
from gpu.matmul.element import store
from gpu.matmul.orientation import each_orientation, named

WIDTH, HEIGHT = 32, 8  # of a block, in elements of C: a warp is a row


def build(transpose_a: bool, transpose_b: bool) -> Kernel:
    """The kernel for one orientation."""

    @kernel("float32[:, :], float32[:, :], float32[:, :], float32, float32", threads=WIDTH * HEIGHT)
    @named("naive", transpose_a, transpose_b)
    def naive(a, b, c, alpha, beta):
        """Thread (x, y) of block (X, Y) computes C[8 Y + y, 32 X + x]."""
        column, row = cuda.grid(2)
        if row >= c.shape[0] or column >= c.shape[1]:
            return
        total = np.float32(0)
        for k in range(a.shape[0] if transpose_a else a.shape[1]):
            left = a[k, row] if transpose_a else a[row, k]
            right = b[column, k] if transpose_b else b[k, column]
            total += left * right
        store(c, row, column, total, alpha, beta)

    return naive


KERNELS = each_orientation(build)


def launch(a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, alpha: float, beta: float) -> None:
    """c = alpha op(a) op(b) + beta c with a thread for each element of c."""
    M, N = c.shape
    grid = ceil_div(N, WIDTH), ceil_div(M, HEIGHT)
    KERNELS[transpose_a, transpose_b][grid, (WIDTH, HEIGHT)](a, b, c, alpha, beta)
