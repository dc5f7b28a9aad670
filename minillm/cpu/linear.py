"""Linear layer: see minillm/ops/linear.py.  BLAS multiplies; one compiled call does all that belongs to a product.

The bias is what the product adds to: BLAS reads y anyway, so adding it costs one write of y and no pass of its own.
"""

import numpy as np

from minillm import ops, store, threads
from minillm.cpu.dots import few_rows
from minillm.cpu.gemm import gemm
from minillm.cpu.jit import kernel
from minillm.cpu.rows import PIECES, packed, rows_of, twin
from minillm.ops.check_inputs import last_axis

ZERO, ONE = np.float32(0), np.float32(1)
FEW = 8  # rows for which reading the weights is all the work
# Multiplications a thread should get at least.  BLAS has another way for small products, whose sums come out otherwise
# in the last bit; among large ones an element has the same bytes however the rest is cut.
PIECE = 1 << 23


@twin(ops.linear_forward)
def linear_forward(x, weight, bias=None):
    last_axis("linear", "x", x, weight.shape[1], f"weight {weight.shape}")
    if bias is not None:
        last_axis("linear", "bias", bias, weight.shape[0], f"weight {weight.shape}")
    rows, weight, bias = rows_of(x), packed(weight), np.empty(0, np.float32) if bias is None else packed(bias)
    N, O = len(rows), len(weight)
    y = store.empty((N, O))
    cuts = pieces(N, O, weight.shape[1])
    threads.run_all(lambda cut: _forward(*cut, rows, weight, bias, y), cuts)
    return y.reshape(*x.shape[:-1], O), (rows, weight, bias.size > 0, x.shape)


@twin(ops.linear_backward)
def linear_backward(dy, saved):
    rows, weight, has_bias, shape = saved
    dy = rows_of(dy)
    (N, I), O = rows.shape, len(weight)
    dx, dweight = store.empty(rows.shape), store.empty(weight.shape)
    dbias = np.empty(O if has_bias else 0, np.float32)
    left, right = pieces(N, I, O), pieces(O, I, N)
    if len(left) == len(right) == 1:
        _backward(*left[0], *right[0], dy, rows, weight, dx, dweight, dbias)
    else:
        threads.run_all(lambda cut: _backward_input(*cut, dy, weight, dx), left)
        threads.run_all(lambda cut: _backward_weight(*cut, dy, rows, dweight, dbias), right)
    return dx.reshape(shape), dweight, dbias if has_bias else None


@twin(ops.linear_backward_input)
def linear_backward_input(dy, weight):
    rows, weight = rows_of(dy), packed(weight)
    (N, O), I = rows.shape, weight.shape[1]
    dx = store.empty((N, I))
    threads.run_all(lambda cut: _backward_input(*cut, rows, weight, dx), pieces(N, I, O))
    return dx.reshape(*dy.shape[:-1], I)


def pieces(M, N, K):
    """How to cut a product (M, K) (K, N) among threads: a list of (top, bottom, left, right), along its longer side."""
    least = PIECE if M > FEW else PIECE >> 4  # a few rows take as long as their weights
    num = 1 if threads.is_busy() else min(PIECES * threads.num_threads(), M * N * K // least, max(M, N))
    if num < 2 or threads.num_threads() == 1:
        return [(0, M, 0, N)]
    if M >= N:
        return [(M * i // num, M * (i + 1) // num, 0, N) for i in range(num)]
    return [(0, M, N * i // num, N * (i + 1) // num) for i in range(num)]


@kernel
def _forward(top, bottom, left, right, x, weight, bias, y):
    if bias.size:
        for i in range(top, bottom):
            y[i, left:right] = bias[left:right]
    if len(x) <= FEW:
        few_rows(x[top:bottom], weight, left, right, bias.size > 0, y[top:bottom])
        return
    beta = ONE if bias.size else ZERO
    gemm(bottom - top, right - left, x.shape[1], ONE, x[top:], False, weight[left:], True, beta, y[top:, left:])


@kernel
def _backward_input(top, bottom, left, right, dy, weight, dx):
    m, n, k = bottom - top, right - left, dy.shape[1]
    gemm(m, n, k, ONE, dy[top:], False, weight[:, left:], False, ZERO, dx[top:, left:])


@kernel
def _backward_weight(top, bottom, left, right, dy, x, dweight, dbias):
    """Rows of dweight are outputs: top and bottom bound these."""
    m, n, k = bottom - top, right - left, dy.shape[0]
    gemm(m, n, k, ONE, dy[:, top:], True, x[:, left:], False, ZERO, dweight[top:, left:])
    if dbias.size and left == 0:
        total = dbias[top:bottom]
        total[:] = ZERO
        for i in range(dy.shape[0]):
            row = dy[i, top:bottom]
            for j in range(row.size):
                total[j] += row[j]


@kernel
def _backward(top, bottom, left, right, first, last, begin, end, dy, x, weight, dx, dweight, dbias):
    """Both products in one call."""
    _backward_input(top, bottom, left, right, dy, weight, dx)
    _backward_weight(first, last, begin, end, dy, x, dweight, dbias)
