"""Sums and largest values over the lanes of a warp: five exchanges, each with the lane at half the distance."""

import numpy as np
from numba import cuda

from gpu.kernel import device

ALL = np.uint32(0xFFFFFFFF)  # every lane of a warp
LOWEST = np.float32(np.finfo(np.float32).min)  # below every number; unlike -inf it can be subtracted from -inf


@device
def warp_max(value):
    """The largest value of the 32 lanes, in every lane.  All lanes must call it."""
    for distance in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(ALL, value, distance))
    return value


@device
def warp_sum(value):
    """The sum of the 32 lanes' values, in every lane and in the same order in each.  All lanes must call it."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL, value, distance)
    return value
