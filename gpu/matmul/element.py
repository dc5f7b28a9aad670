"""One element at a time, with care at the edges: what the kernels of every rung read and write outside full tiles.

Indices that are known not to be negative (they are made of uint32) spare the question whether one counts from the end.
"""

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
    """c[row, column] = alpha total + beta c[row, column], where that is inside C.  beta = 0 never reads C."""
    if row < c.shape[0] and column < c.shape[1]:
        value = alpha * total
        if beta != np.float32(0):
            value += beta * c[row, column]
        c[row, column] = value
