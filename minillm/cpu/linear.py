"""Linear layer: see minillm/ops/linear.py.  The products are BLAS's; what is ours is memory and threads."""

import numpy as np

from minillm import ops, store, threads
from minillm.cpu.jit import kernel
from minillm.cpu.rows import GROUP, PIECES, num_groups, packed, rows_of, spread, twin
from minillm.ops.check_inputs import last_axis

# Multiplications a thread should get at least.  BLAS has another way for small products, whose sums come out otherwise
# in the last bit; among large ones an element has the same bytes however the rest is cut.
PIECE = 1 << 23


@twin(ops.linear_forward)
def linear_forward(x, weight, bias=None):
    last_axis("linear", "x", x, weight.shape[1], f"weight {weight.shape}")
    if bias is not None:
        last_axis("linear", "bias", bias, weight.shape[0], f"weight {weight.shape}")
    rows = rows_of(x)
    y = product(rows, weight.T)
    if bias is not None:
        spread(_add_bias, len(y), y.shape[1], y, packed(bias))
    return y.reshape(*x.shape[:-1], weight.shape[0]), (rows, weight, bias is not None, x.shape)


@twin(ops.linear_backward)
def linear_backward(dy, saved):
    rows, weight, has_bias, shape = saved
    dy = rows_of(dy)
    dx = product(dy, weight).reshape(shape)
    return dx, product(dy.T, rows), sum_rows(dy) if has_bias else None


def product(a, b):
    """a b.  a: (M, K), b: (K, N), either may be a transposed view.  Alone, cut along its longer side."""
    y = store.empty((a.shape[0], b.shape[1]))
    pieces = 1 if threads.is_busy() else min(PIECES * threads.num_threads(), y.size * a.shape[1] // PIECE)
    if pieces < 2:
        return np.matmul(a, b, out=y)

    def multiply(piece):
        if len(y) >= y.shape[1]:
            part = slice(len(y) * piece // pieces, len(y) * (piece + 1) // pieces)
            np.matmul(a[part], b, out=y[part])
        else:
            part = slice(y.shape[1] * piece // pieces, y.shape[1] * (piece + 1) // pieces)
            np.matmul(a, b[:, part], out=y[:, part])

    threads.run_all(multiply, range(pieces))
    return y


def sum_rows(x):
    """The sum over rows.  x: (N, C)  ->  (C,)."""
    partial = np.empty((num_groups(len(x)), x.shape[1]), np.float32)
    spread(_sum_groups, len(partial), GROUP * x.shape[1], x, partial)
    return np.sum(partial, axis=0)


@kernel
def _add_bias(start, stop, y, bias):
    for i in range(start, stop):
        for j in range(y.shape[1]):
            y[i, j] += bias[j]


@kernel
def _sum_groups(start, stop, x, partial):
    N, C = x.shape
    for group in range(start, stop):
        total = partial[group]
        total[:] = 0
        for i in range(group * GROUP, min(group * GROUP + GROUP, N)):
            for j in range(C):
                total[j] += x[i, j]
