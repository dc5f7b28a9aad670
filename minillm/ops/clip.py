"""Gradient clipping by global norm (Pascanu, Mikolov & Bengio 2013, arXiv 1211.5063)."""

import math

import numpy as np

CHUNK = 65_536  # elements: the float64 copy of one chunk is 512 KiB and stays in cache


def gradient_norm(vector: np.ndarray) -> float:
    """sqrt(sum(vector^2)), accumulated in float64.  vector: (N,).

    The squares of float32 values from 1e-38 to 3e38 all fit in float64.  Inf or NaN in the vector makes the norm
    Inf or NaN; so does a float64 vector whose squares overflow, beyond about 1e154.
    """
    total = 0.0
    with np.errstate(over="ignore"):  # an overflow is told by the norm itself
        for start in range(0, vector.size, CHUNK):
            part = vector[start : start + CHUNK].astype(np.float64)
            total += float(part @ part)
    return math.sqrt(total)


def clip(vector: np.ndarray, max_norm: float) -> float:
    """vector *= max_norm / norm, in place, where norm > max_norm; returns the norm from before.  vector: (N,).

    max_norm 0 means never.  A norm that is not finite leaves the vector as it is: there is no right length to give
    it, so the caller must look at the norm and drop the step.
    """
    norm = gradient_norm(vector)
    if max_norm > 0 and math.isfinite(norm) and norm > max_norm:
        # In float64, buffered by NumPy piece by piece: the factor itself may be too small for float32.
        np.multiply(vector, max_norm / norm, out=vector, dtype=np.float64, casting="same_kind")
    return norm
