"""Dropout (Srivastava et al. 2014, JMLR 15): zero elements at random, scale the rest to keep the mean."""

import numpy as np


def dropout_forward(x, rate, generator):
    """y = x * keep / (1 - rate),  keep ~ Bernoulli(1 - rate) drawn from `generator`.  x, y: any shape.

    The generator is explicit: the same one in the same state gives the same mask, whatever ran before.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate must be in [0, 1): got {rate}")
    keep = generator.random(x.shape, dtype=np.float32) >= rate
    scale = x.dtype.type(1 / (1 - rate))
    return x * keep * scale, (keep, scale)


def dropout_backward(dy, saved):
    """dx = dy * keep / (1 - rate)."""
    keep, scale = saved
    return dy * keep * scale
