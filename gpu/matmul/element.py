"""One element at a time, with care at the edges: what the kernels of every rung read and write outside full tiles."""

import numpy as np

from gpu.kernel import device


@device
def element(x, row, column):
    """x[row, column], or 0 outside x: zeros lengthen a sum without changing it."""
    if row < x.shape[0] and column < x.shape[1]:
        return x[row, column]
    return np.float32(0)


@device
def store(c, row, column, total, alpha, beta):
    """c[row, column] = alpha total + beta c[row, column], if that is inside C.  With beta = 0 what is in C is not read."""
    if row < c.shape[0] and column < c.shape[1]:
        if beta == np.float32(0):
            c[row, column] = alpha * total
        else:
            c[row, column] = alpha * total + beta * c[row, column]
