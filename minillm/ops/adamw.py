"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

import math

import numpy as np

CHUNK = 65_536  # elements: four arrays and their temporaries, 256 KiB each in float32, stay in cache


def adamw(
    weights: np.ndarray, grads: np.ndarray, mean: np.ndarray, square: np.ndarray,
    step: int, lr: float, decay: float, beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    """One step, in place on `weights`, `mean` and `square`; each is (N,) and they share one dtype.

        m = beta1 * m + (1 - beta1) * g                     mean:   running mean of the gradient
        v = beta2 * v + (1 - beta2) * g^2                   square: running mean of its square
        w = w * (1 - lr * decay) - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    t = `step` counts from 1: both means start at zero, and the two divisions undo that bias.  The decay acts on the
    weight itself and not through the gradient, so large gradients do not weaken it.
    """
    assert step >= 1, f"adamw counts its steps from 1: got {step}"
    rate, root = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
    for start in range(0, weights.size, CHUNK):
        part = slice(start, start + CHUNK)
        w, g, m, v = weights[part], grads[part], mean[part], square[part]
        m *= beta1
        m += (1 - beta1) * g
        v *= beta2
        v += (1 - beta2) * (g * g)
        w *= 1 - lr * decay
        w -= rate * m / (np.sqrt(v) / root + eps)
