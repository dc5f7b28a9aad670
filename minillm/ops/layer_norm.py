"""Layer normalisation (Ba, Kiros & Hinton 2016, arXiv 1607.06450)."""

import numpy as np

from minillm.ops.check_inputs import last_axis


def layer_norm_forward(x, weight, bias, eps=1e-5):
    """y = n * weight + bias,  n = (x - mean(x)) / sqrt(var(x) + eps),  over the last axis.

    x: (..., C), weight: (C,), bias: (C,)  ->  y: (..., C).  The variance divides by C.
    """
    last_axis("layer_norm", "x", x, weight.shape[0], f"weight {weight.shape}")
    last_axis("layer_norm", "bias", bias, weight.shape[0], f"weight {weight.shape}")
    centred = x - np.mean(x, axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    n = centred * rstd
    return n * weight + bias, (n, rstd, weight)


def layer_norm_backward(dy, saved):
    """dx = rstd * (dn - mean(dn) - n * mean(dn * n)),  dn = dy * weight;  dweight = sum(dy * n),  dbias = sum(dy).

    The two means are what the row's mean and its variance feed back.
    """
    n, rstd, weight = saved
    dn = dy * weight
    dx = rstd * (dn - np.mean(dn, axis=-1, keepdims=True) - n * np.mean(dn * n, axis=-1, keepdims=True))
    rows = tuple(range(dy.ndim - 1))
    return dx, np.sum(dy * n, axis=rows), np.sum(dy, axis=rows)
