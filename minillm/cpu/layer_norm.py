"""Layer normalisation: see minillm/ops/layer_norm.py.  Keeps the row's mean and scale; the reference keeps n."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import GROUP, num_groups, packed, rows_of, spread, twin
from minillm.ops.check_inputs import last_axis

ZERO, ONE = np.float32(0), np.float32(1)


@twin(ops.layer_norm_forward)
def layer_norm_forward(x, weight, bias, eps=1e-5):
    last_axis("layer_norm", "x", x, weight.shape[0], f"weight {weight.shape}")
    last_axis("layer_norm", "bias", bias, weight.shape[0], f"weight {weight.shape}")
    rows, weight, bias = rows_of(x), packed(weight), packed(bias)
    y, mean, rstd = store.empty(rows.shape), *np.empty((2, len(rows)), np.float32)
    spread(_forward, *rows.shape, rows, weight, bias, np.float32(eps), y, mean, rstd)
    return y.reshape(x.shape), (rows, weight, mean, rstd)


@twin(ops.layer_norm_backward)
def layer_norm_backward(dy, saved):
    rows = saved[0]
    dx = store.empty(dy.shape)
    partial = np.empty((num_groups(len(rows)), 2, rows.shape[1]), np.float32)
    spread(_backward, len(partial), GROUP * rows.shape[1], rows_of(dy), *saved, dx.reshape(rows.shape), partial)
    dweight, dbias = np.sum(partial, axis=0)
    return dx, dweight, dbias


@kernel
def _forward(start, stop, x, weight, bias, eps, y, mean, rstd):
    C = x.shape[1]
    share = ONE / np.float32(C)
    for i in range(start, stop):
        total, squares = ZERO, ZERO
        for j in range(C):
            total += x[i, j]
        m = total * share
        for j in range(C):
            squares += (x[i, j] - m) * (x[i, j] - m)
        r = ONE / np.sqrt(squares * share + eps)
        mean[i], rstd[i] = m, r
        for j in range(C):
            y[i, j] = (x[i, j] - m) * r * weight[j] + bias[j]


@kernel
def _backward(start, stop, dy, x, weight, mean, rstd, dx, partial):
    N, C = x.shape
    share = ONE / np.float32(C)
    for group in range(start, stop):
        dweight, dbias = partial[group, 0], partial[group, 1]
        partial[group, :, :] = 0
        for i in range(group * GROUP, min(group * GROUP + GROUP, N)):
            m, r = mean[i], rstd[i]
            total, product = ZERO, ZERO
            for j in range(C):
                n = (x[i, j] - m) * r
                dn = dy[i, j] * weight[j]
                dx[i, j] = dn  # rounded here, so that with C = 1 it is its own mean
                total += dn
                product += dn * n
                dweight[j] += dy[i, j] * n
                dbias[j] += dy[i, j]
            total, product = total * share, product * share
            for j in range(C):
                dx[i, j] = r * (dx[i, j] - total - (x[i, j] - m) * r * product)
