"""Linear layer: a matrix product, weights stored (out, in) as checkpoints have them."""

import numpy as np

from minillm.ops.check_inputs import last_axis


def linear_forward(x, weight, bias=None):
    """y = x W^T + b.  x: (..., I), weight: (O, I), bias: (O,) or None  ->  y: (..., O)."""
    last_axis("linear", "x", x, weight.shape[1], f"weight {weight.shape}")
    y = (x.reshape(-1, x.shape[-1]) @ weight.T).reshape(*x.shape[:-1], weight.shape[0])  # one large product
    if bias is not None:
        last_axis("linear", "bias", bias, weight.shape[0], f"weight {weight.shape}")
        y += bias
    return y, (x, weight, bias is not None)


def linear_backward(dy, saved):
    """dx = dy W,  dW = dy^T x,  db = sum(dy) over all rows; db is None where there was no bias."""
    x, weight, has_bias = saved
    rows = dy.reshape(-1, dy.shape[-1])
    dweight = rows.T @ x.reshape(-1, x.shape[-1])
    return linear_backward_input(dy, weight), dweight, np.sum(rows, axis=0) if has_bias else None


def linear_backward_input(dy, weight):
    """dx = dy W  alone, for a weight that is frozen.  dy: (..., O)  ->  dx: (..., I)."""
    return (dy.reshape(-1, dy.shape[-1]) @ weight).reshape(*dy.shape[:-1], weight.shape[1])
