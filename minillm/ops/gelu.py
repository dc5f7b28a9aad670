"""Gaussian error linear unit (Hendrycks & Gimpel 2016, arXiv 1606.08415), exact and as GPT-2 approximates it."""

import numpy as np
from scipy.special import erf

SQRT_2_OVER_PI = float(np.sqrt(2 / np.pi))
CUBIC = 0.044715
SQRT_HALF = float(np.sqrt(0.5))
INV_SQRT_2PI = float(1 / np.sqrt(2 * np.pi))


def gelu_erf_forward(x):
    """y = x * Phi(x),  Phi(x) = (1 + erf(x / sqrt 2)) / 2: the share of a normal distribution below x."""
    return x * (0.5 * (1 + erf(x * SQRT_HALF))), x


def gelu_erf_backward(dy, saved):
    """dx = dy * (Phi(x) + x * phi(x)),  phi(x) = exp(-x^2 / 2) / sqrt(2 pi)."""
    x = saved
    return dy * (0.5 * (1 + erf(x * SQRT_HALF)) + x * INV_SQRT_2PI * np.exp(-0.5 * x * x))


def gelu_tanh_forward(x):
    """y = x * (1 + t) / 2,  t = tanh(sqrt(2/pi) * (x + 0.044715 x^3)): within 5e-4 of the exact one."""
    t = np.tanh(SQRT_2_OVER_PI * x * (1 + CUBIC * x * x))
    return 0.5 * x * (1 + t), (x, t)


def gelu_tanh_backward(dy, saved):
    """dx = dy * ((1 + t) / 2 + x * (1 - t^2) / 2 * sqrt(2/pi) * (1 + 3 * 0.044715 x^2))."""
    x, t = saved
    slope = SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x)
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
