"""Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv 1910.07467)."""

import numpy as np

from minillm.ops.check_inputs import last_axis


def rms_norm_forward(x, weight, eps=1e-5):
    """y = n * weight,  n = x / sqrt(mean(x^2) + eps),  over the last axis.  x: (..., C), weight: (C,)."""
    last_axis("rms_norm", "x", x, weight.shape[0], f"weight {weight.shape}")
    rstd = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * rstd * weight, (x, weight, rstd)  # n is cheaper to recompute than to keep


def rms_norm_backward(dy, saved):
    """dx = rstd * (dn - n * mean(dn * n)),  dn = dy * weight;  dweight = sum(dy * n)."""
    x, weight, rstd = saved
    n, dn = x * rstd, dy * weight
    dx = rstd * (dn - n * np.mean(dn * n, axis=-1, keepdims=True))
    return dx, np.sum(dy * n, axis=tuple(range(dy.ndim - 1)))
