"""From a matrix to integers and scales: the choice of a range, and rounding to the nearest.

    q = round(W / scale) + zero   in 0 .. 2^bits - 1,   W ~ scale * (q - zero)

Symmetric: zero is the middle and the largest magnitude becomes 2^(bits - 1) - 1.  Asymmetric: the range reaches from
the least weight (or 0) to the greatest (or 0), and zero is an integer, so that a weight of 0 stays 0 exactly.
"""

import numpy as np

from minillm.config import QuantizeConfig
from minillm.ops.quantized import Quantized, quantized_pack

SHRINKS = np.linspace(1.0, 0.4, 25)  # shares of the largest magnitude that `mse` tries
PERCENTILE = 99.5  # of a group's magnitudes


def quantize_matrix(weight: np.ndarray, config: QuantizeConfig) -> Quantized:
    """Each weight to its nearest integer.  weight: (O, I) float."""
    group = group_of(weight, config)
    scale, zero = ranges(weight, config)
    of = np.arange(weight.shape[1]) // group
    return quantized_pack(nearest(weight, scale[:, of], zero[:, of], config.bits), scale, zero, config.bits, group)


def group_of(weight: np.ndarray, config: QuantizeConfig) -> int:
    """Columns that share a scale."""
    return min(config.group, weight.shape[1]) or max(weight.shape[1], 1)


def ranges(weight: np.ndarray, config: QuantizeConfig) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zeros, (O, G) float each, of a matrix or of some columns of one that begin with a group."""
    group = group_of(weight, config)
    O, G = len(weight), -(-weight.shape[1] // group)
    padded = np.zeros((O, G * group), weight.dtype)
    padded[:, : weight.shape[1]] = weight  # zeros lie inside every range
    parts = padded.reshape(O, G, group)
    if not config.symmetric:
        low, high = parts.min(axis=-1).clip(max=0), parts.max(axis=-1).clip(min=0)
        scale = (high - low) / ((1 << config.bits) - 1)
        return scale, np.rint(-low / np.where(scale == 0, 1, scale))
    zero = np.full((O, G), 1 << (config.bits - 1), weight.dtype)
    magnitude = np.abs(parts)
    most = (1 << (config.bits - 1)) - 1
    if config.range == "percentile":
        return np.percentile(magnitude, PERCENTILE, axis=-1).astype(weight.dtype) / most, zero
    scale = magnitude.max(axis=-1) / most
    return (_least_error(parts, scale, zero, config.bits) if config.range == "mse" else scale), zero


def nearest(weight: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int) -> np.ndarray:
    """The integers.  All arrays of the same shape; where the scale is 0, so are the weights, and q is the zero."""
    q = np.rint(weight / np.where(scale == 0, 1, scale)) + zero
    return q.clip(0, (1 << bits) - 1).astype(np.uint8)


def _least_error(parts: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int) -> np.ndarray:
    """For each group, the share of its largest magnitude that rounds it with the least squared error."""
    best, least = scale.copy(), np.full(scale.shape, np.inf)
    for shrink in SHRINKS:
        tried = scale[..., None] * parts.dtype.type(shrink)
        back = tried * (nearest(parts, tried, zero[..., None], bits) - zero[..., None])
        error = np.sum((back - parts) ** 2, axis=-1)
        best, least = np.where(error < least, tried[..., 0], best), np.minimum(error, least)
    return best
