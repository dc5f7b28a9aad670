"""Root-mean-square normalisation: see minillm/ops/rms_norm.py.  Each row is read once and stays in cache for it."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import GROUP, num_groups, packed, rows_of, spread, twin
from minillm.ops.check_inputs import last_axis

ZERO, ONE = np.float32(0), np.float32(1)


@twin(ops.rms_norm_forward)
def rms_norm_forward(x, weight, eps=1e-5):
    last_axis("rms_norm", "x", x, weight.shape[0], f"weight {weight.shape}")
    rows, weight = rows_of(x), packed(weight)
    y, rstd = store.empty(rows.shape), np.empty(len(rows), np.float32)
    spread(_forward, *rows.shape, rows, weight, np.float32(eps), y, rstd)
    return y.reshape(x.shape), (rows, weight, rstd)


@twin(ops.rms_norm_backward)
def rms_norm_backward(dy, saved):
    rows, weight, rstd = saved
    dx = store.empty(dy.shape)
    partial = np.empty((num_groups(len(rows)), rows.shape[1]), np.float32)
    spread(_backward, len(partial), GROUP * rows.shape[1], rows_of(dy), *saved, dx.reshape(rows.shape), partial)
    return dx, np.sum(partial, axis=0)


@kernel
def _forward(start, stop, x, weight, eps, y, rstd):
    C = x.shape[1]
    share = ONE / np.float32(C)
    for i in range(start, stop):
        squares = ZERO
        for j in range(C):
            squares += x[i, j] * x[i, j]
        rstd[i] = ONE / np.sqrt(squares * share + eps)
        for j in range(C):
            y[i, j] = x[i, j] * rstd[i] * weight[j]


@kernel
def _backward(start, stop, dy, x, weight, rstd, dx, dweight):
    N, C = x.shape
    share = ONE / np.float32(C)
    for group in range(start, stop):
        total = dweight[group]
        total[:] = 0
        for i in range(group * GROUP, min(group * GROUP + GROUP, N)):
            r, product = rstd[i], ZERO
            for j in range(C):
                n = x[i, j] * r
                product += dy[i, j] * weight[j] * n
                total[j] += dy[i, j] * n
            mean = product * share
            for j in range(C):
                dx[i, j] = r * (dy[i, j] * weight[j] - x[i, j] * r * mean)
