"""Softmax, second rung: one warp a row, its 32 lanes side by side.

What changed: neighbouring lanes read neighbouring numbers, so a load of a warp is four full sectors, and there are 32
times as many threads to wait with.  The lanes' partial results meet in registers, by shuffles, without shared memory
and without a barrier.  The exponentials are computed twice rather than written and read again.

Traffic of N columns: three reads and one write, 16 N bytes.  On an A100 (1,555 GB/s) 4,096 rows of 4,096 columns cannot
take less than 0.17 ms; where a row stays in the first-level cache between the passes (up to some 4,000 columns), half.
"""

import math

import numpy as np
from numba import cuda

from gpu.array import Array
from gpu.kernel import ceil_div, kernel
from gpu.reduction import LOWEST, warp_max, warp_sum

WARPS = 4  # rows of a block
LANES = np.uint32(32)


@kernel("float32[:], float32[:], uint32, uint32", threads=32 * WARPS)
def forward(x, p, num_rows, N):
    """Each warp does a row; lane i does columns i, i + 32, ..."""
    lane = np.uint32(cuda.threadIdx.x) % LANES
    row = np.uint32(cuda.blockIdx.x) * np.uint32(WARPS) + np.uint32(cuda.threadIdx.x) // LANES
    if row >= num_rows:
        return
    first, last = row * N + lane, row * N + N
    m = LOWEST
    j = first
    while j < last:
        m = max(m, x[j])
        j += LANES
    m = warp_max(m)
    total = np.float32(0)
    j = first
    while j < last:
        total += math.exp(x[j] - m)
        j += LANES
    total = warp_sum(total)
    if total == np.float32(0):  # nothing to choose from
        total = np.float32(1)
    j = first
    while j < last:
        p[j] = math.exp(x[j] - m) / total
        j += LANES


@kernel("float32[:], float32[:], float32[:], uint32, uint32", threads=32 * WARPS)
def backward(dp, p, dx, num_rows, N):
    """Each warp does a row; lane i does columns i, i + 32, ..."""
    lane = np.uint32(cuda.threadIdx.x) % LANES
    row = np.uint32(cuda.blockIdx.x) * np.uint32(WARPS) + np.uint32(cuda.threadIdx.x) // LANES
    if row >= num_rows:
        return
    first, last = row * N + lane, row * N + N
    total = np.float32(0)
    j = first
    while j < last:
        total += dp[j] * p[j]
        j += LANES
    total = warp_sum(total)
    j = first
    while j < last:
        dx[j] = p[j] * (dp[j] - total)
        j += LANES


def softmax_forward(x: Array) -> tuple[Array, Array]:
    """See `minillm/ops/softmax.py`."""
    p = x.machine.empty(x.shape)
    N = x.shape[-1]
    num_rows = x.size // max(N, 1)
    forward[ceil_div(num_rows, WARPS), 32 * WARPS](x.reshape(-1), p.reshape(-1), num_rows, N)
    return p, p


def softmax_backward(dp: Array, saved: Array) -> Array:
    """See `minillm/ops/softmax.py`."""
    p, dx = saved, dp.machine.empty(dp.shape)
    N = dp.shape[-1]
    num_rows = dp.size // max(N, 1)
    backward[ceil_div(num_rows, WARPS), 32 * WARPS](dp.reshape(-1), p.reshape(-1), dx.reshape(-1), num_rows, N)
    return dx
