"""Softmax and log-softmax over the last axis.

A row that is all -inf has nothing to choose from: its probabilities are all 0, their logarithms all -inf.
A NaN anywhere in a row makes the whole row NaN.
"""

import numpy as np


def softmax_forward(x):
    """p = exp(x - m) / sum(exp(x - m)),  m = max(x).  x, p: (..., N)."""
    p = x - _finite_max(x)
    np.exp(p, out=p)
    total = np.sum(p, axis=-1, keepdims=True)
    p /= np.where(total == 0, 1, total)
    return p, p


def softmax_backward(dp, saved):
    """dx = p * (dp - sum(dp * p))."""
    p = saved
    return p * (dp - np.sum(dp * p, axis=-1, keepdims=True))


def log_softmax_forward(x):
    """y = x - m - log(sum(exp(x - m))),  m = max(x).  x, y: (..., N)."""
    z = x - _finite_max(x)
    total = np.sum(np.exp(z), axis=-1, keepdims=True)
    y = z - np.log(np.where(total == 0, 1, total))
    return y, y


def log_softmax_backward(dy, saved):
    """dx = dy - softmax(x) * sum(dy);  0 in a row that is all -inf."""
    p = np.exp(saved)
    masked = np.sum(p, axis=-1, keepdims=True) == 0
    return np.where(masked, 0, dy - p * np.sum(dy, axis=-1, keepdims=True))


def _finite_max(x):
    """The row's maximum, or 0 where it is -inf (so that -inf - max stays -inf instead of NaN)."""
    m = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    return np.where(m == -np.inf, 0, m)
