"""Softmax, first rung: one thread a row.

What it says is the formula.  What it costs: at each step the 32 threads of a warp read 32 different rows, so each
4-byte number comes in a 32-byte sector of its own, and only the cache can save the other 28.  And a card needs some
hundred thousand threads to hide the wait for memory; there are only as many as rows.

Traffic of N columns: the row is read three times (largest, sum, quotient) and written once as exp(x - m), once
divided: 20 N bytes that count, up to 8 times as many that move.  FLOPs: about 4 N, so memory decides.  On an A100
(1,555 GB/s) 4,096 rows of 4,096 columns cannot take less than 0.22 ms with these five passes; without a cache 1.7 ms.
"""

import math

import numpy as np
from numba import cuda

from gpu.array import Array
from gpu.kernel import ceil_div, kernel
from gpu.reduction import LOWEST

THREADS = 128


@kernel("float32[:], float32[:], int32, int32", threads=THREADS)
def forward(x, p, num_rows, N):
    """Thread i does row i: its largest value, its sum of exponentials, its quotients."""
    row = cuda.grid(1)
    if row < num_rows:
        first, last = row * N, (row + 1) * N
        m = LOWEST
        for j in range(first, last):
            m = max(m, x[j])
        total = np.float32(0)
        for j in range(first, last):
            e = math.exp(x[j] - m)
            p[j] = e
            total += e
        if total == np.float32(0):  # nothing to choose from
            total = np.float32(1)
        for j in range(first, last):
            p[j] /= total


@kernel("float32[:], float32[:], float32[:], int32, int32", threads=THREADS)
def backward(dp, p, dx, num_rows, N):
    """Thread i does row i: the sum of dp * p, then dx."""
    row = cuda.grid(1)
    if row < num_rows:
        first, last = row * N, (row + 1) * N
        total = np.float32(0)
        for j in range(first, last):
            total += dp[j] * p[j]
        for j in range(first, last):
            dx[j] = p[j] * (dp[j] - total)


def softmax_forward(x: Array) -> tuple[Array, Array]:
    """See `minillm/ops/softmax.py`."""
    p = x.machine.empty(x.shape)
    N = x.shape[-1]
    num_rows = x.size // max(N, 1)
    forward[ceil_div(num_rows, THREADS), THREADS](x.reshape(-1), p.reshape(-1), num_rows, N)
    return p, p


def softmax_backward(dp: Array, saved: Array) -> Array:
    """See `minillm/ops/softmax.py`."""
    p, dx = saved, dp.machine.empty(dp.shape)
    N = dp.shape[-1]
    num_rows = dp.size // max(N, 1)
    backward[ceil_div(num_rows, THREADS), THREADS](dp.reshape(-1), p.reshape(-1), dx.reshape(-1), num_rows, N)
    return dx
