"""Gradient clipping: see minillm/ops/clip.py.  float64 here alone, for what float32 cannot hold."""

import math

import numpy as np

from minillm import ops
from minillm.cpu.jit import kernel
from minillm.cpu.rows import CHUNK, num_chunks, packed, spread, twin


@twin(ops.gradient_norm)
def gradient_norm(vector):
    partial = np.empty(num_chunks(vector.size))
    spread(_squares, len(partial), CHUNK, packed(vector), partial)
    return math.sqrt(np.sum(partial))


@twin(ops.clip)
def clip(vector, max_norm):
    norm = gradient_norm(vector)
    if max_norm > 0 and math.isfinite(norm) and norm > max_norm:
        spread(_scale, num_chunks(vector.size), CHUNK, vector, max_norm / norm)
    return norm


@kernel
def _squares(start, stop, vector, partial):
    for chunk in range(start, stop):
        part, total = vector[chunk * CHUNK : (chunk + 1) * CHUNK], 0.0
        for i in range(part.size):
            total += np.float64(part[i]) * np.float64(part[i])
        partial[chunk] = total


@kernel
def _scale(start, stop, vector, factor):
    part = vector[start * CHUNK : stop * CHUNK]
    for i in range(part.size):
        part[i] = np.float32(np.float64(part[i]) * factor)  # the factor itself may be too small for float32
