"""Muon: momentum, orthogonalised by Newton-Schulz (Jordan 2024, https://kellerjordan.github.io/posts/muon)."""

import math

import numpy as np

MOMENTUM = 0.95  # the value of the original, where nothing nearby did better
ITERATIONS = 5
# Found by search in the original: the largest slope at zero, so small singular values grow fastest, at the price of
# not settling at 1.
QUINTIC = (3.4445, -4.7750, 2.0315)
SMALLEST = 1e-7  # a matrix shorter than this is noise (or zero) and stays short


def orthogonalize(matrix: np.ndarray) -> np.ndarray:
    """About U V^T, where matrix = U S V^T: every singular value is brought near 1.  matrix: (O, I)  ->  (O, I).

        x = matrix / |matrix|;    five times:  x = a x + b (x x^T) x + c (x x^T)^2 x

    An odd polynomial in x moves the singular values and leaves U and V alone.  Those above 0.01 (after the division)
    end between about 0.68 and 1.13; smaller ones end lower.  A zero matrix stays zero.  Keeps its dtype.
    """
    a, b, c = QUINTIC
    rows, cols = matrix.shape
    x = matrix.T if rows > cols else matrix  # wide: x x^T is then the smaller of the two square products
    x = x / max(float(np.linalg.norm(x)), SMALLEST)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if rows > cols else x


def muon(weights: np.ndarray, grads: np.ndarray, mean: np.ndarray, lr: float, decay: float) -> None:
    """One step, in place on `weights` and `mean`; each is (O, I): out and in channels, as linear layers have them.

        m = mu * m + (1 - mu) * g
        w = w * (1 - lr * decay) - lr * sqrt(max(1, O / I)) * orthogonalize((1 - mu) * g + mu * m)

    The argument is Nesterov's: the mean as it would be if this gradient came once more.  The root is the original's
    choice: an orthogonal matrix with more rows than columns has smaller entries, and this evens out how far a step
    changes an output.
    """
    O, I = weights.shape
    mean *= MOMENTUM
    mean += (1 - MOMENTUM) * grads
    direction = orthogonalize((1 - MOMENTUM) * grads + MOMENTUM * mean)
    weights *= 1 - lr * decay
    weights -= lr * math.sqrt(max(1, O / I)) * direction
