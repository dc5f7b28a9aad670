"""Gaussian error linear unit: see minillm/ops/gelu.py.  One pass; the backward computes the tanh again."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import inline, kernel
from minillm.cpu.rows import CHUNK, num_chunks, packed, spread, twin
from minillm.cpu.scalar import erf, exp, sigmoid
from minillm.ops.gelu import CUBIC, INV_SQRT_2PI, SQRT_2_OVER_PI, SQRT_HALF

F = np.float32
TWICE_SLOPE, TWICE_CUBIC = F(2 * SQRT_2_OVER_PI), F(2 * SQRT_2_OVER_PI * CUBIC)
ROOT_HALF, DENSITY = F(SQRT_HALF), F(INV_SQRT_2PI)
HALF, ONE, THREE = F(0.5), F(1), F(3)


@twin(ops.gelu_tanh_forward)
def gelu_tanh_forward(x):
    return _each(_tanh_forward, x), x


@twin(ops.gelu_tanh_backward)
def gelu_tanh_backward(dy, saved):
    return _each(_tanh_backward, dy, saved)


@twin(ops.gelu_erf_forward)
def gelu_erf_forward(x):
    return _each(_erf_forward, x), x


@twin(ops.gelu_erf_backward)
def gelu_erf_backward(dy, saved):
    return _each(_erf_backward, dy, saved)


def _each(chunk_kernel, *arrays):
    """One result element per element of the inputs."""
    y = store.empty(arrays[0].shape)
    flat = [packed(a).reshape(-1) for a in arrays]
    spread(chunk_kernel, num_chunks(y.size), CHUNK, *flat, y.reshape(-1))
    return y


@inline
def probability(x):
    """(1 + tanh(u)) / 2 = sigmoid(2u),  u = sqrt(2/pi) (x + 0.044715 x^3)."""
    return sigmoid(x * (TWICE_SLOPE + TWICE_CUBIC * x * x))


@kernel
def _tanh_forward(start, stop, x, y):
    x, y = x[start * CHUNK : stop * CHUNK], y[start * CHUNK : stop * CHUNK]
    for i in range(y.size):
        y[i] = x[i] * probability(x[i])


@kernel
def _tanh_backward(start, stop, dy, x, dx):
    dy, x, dx = dy[start * CHUNK : stop * CHUNK], x[start * CHUNK : stop * CHUNK], dx[start * CHUNK : stop * CHUNK]
    for i in range(dx.size):
        p = probability(x[i])
        slope = TWICE_SLOPE + THREE * TWICE_CUBIC * x[i] * x[i]
        dx[i] = dy[i] * (p + x[i] * p * (ONE - p) * slope)


@kernel
def _erf_forward(start, stop, x, y):
    x, y = x[start * CHUNK : stop * CHUNK], y[start * CHUNK : stop * CHUNK]
    for i in range(y.size):
        y[i] = x[i] * (HALF * (ONE + erf(x[i] * ROOT_HALF)))


@kernel
def _erf_backward(start, stop, dy, x, dx):
    dy, x, dx = dy[start * CHUNK : stop * CHUNK], x[start * CHUNK : stop * CHUNK], dx[start * CHUNK : stop * CHUNK]
    for i in range(dx.size):
        below = HALF * (ONE + erf(x[i] * ROOT_HALF))
        dx[i] = dy[i] * (below + x[i] * DENSITY * exp(-HALF * x[i] * x[i]))
