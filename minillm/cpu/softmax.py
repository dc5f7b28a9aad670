"""Softmax and log-softmax: see minillm/ops/softmax.py.  A row stays in cache between its passes."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import rows_of, spread, twin
from minillm.cpu.scalar import exp, highest, minus_both

ZERO, ONE = np.float32(0), np.float32(1)


@twin(ops.softmax_forward)
def softmax_forward(x):
    p = _rowwise(_softmax, x)
    return p, p


@twin(ops.softmax_backward)
def softmax_backward(dp, saved):
    return _rowwise(_softmax_back, dp, saved)


@twin(ops.log_softmax_forward)
def log_softmax_forward(x):
    y = _rowwise(_log_softmax, x)
    return y, y


@twin(ops.log_softmax_backward)
def log_softmax_backward(dy, saved):
    return _rowwise(_log_softmax_back, dy, saved)


def _rowwise(row_kernel, *arrays):
    y = store.empty(arrays[0].shape)
    rows = [rows_of(a) for a in arrays]
    spread(row_kernel, *rows[0].shape, *rows, y.reshape(rows[0].shape))
    return y


@kernel
def _softmax(start, stop, x, p):
    N = x.shape[1]
    for i in range(start, stop):
        m, total = highest(x[i]), ZERO
        for j in range(N):
            p[i, j] = exp(x[i, j] - m)
            total += p[i, j]
        scale = ONE if total == ZERO else ONE / total
        for j in range(N):
            p[i, j] *= scale


@kernel
def _softmax_back(start, stop, dp, p, dx):
    N = p.shape[1]
    for i in range(start, stop):
        product = ZERO
        for j in range(N):
            product += dp[i, j] * p[i, j]
        for j in range(N):
            dx[i, j] = p[i, j] * (dp[i, j] - product)


@kernel
def _log_softmax(start, stop, x, y):
    N = x.shape[1]
    for i in range(start, stop):
        m, total = highest(x[i]), ZERO
        for j in range(N):
            total += exp(x[i, j] - m)
        log = ZERO if total == ZERO else np.log(total)
        for j in range(N):
            y[i, j] = minus_both(x[i, j], m, log)


@kernel
def _log_softmax_back(start, stop, dy, y, dx):
    N = y.shape[1]
    for i in range(start, stop):
        total, mass = ZERO, ZERO
        for j in range(N):
            total += dy[i, j]
            mass += exp(y[i, j])
        for j in range(N):
            dx[i, j] = ZERO if mass == ZERO else dy[i, j] - exp(y[i, j]) * total
