"""AdamW: see minillm/ops/adamw.py.  One sweep: four arrays read, three written, nothing in between."""

import math

import numpy as np

from minillm import ops
from minillm.cpu.jit import kernel
from minillm.cpu.rows import CHUNK, num_chunks, packed, spread, twin

ONE = np.float32(1)


@twin(ops.adamw)
def adamw(weights, grads, mean, square, step, lr, decay, beta1, beta2, eps):
    assert step >= 1, f"adamw counts its steps from 1: got {step}"
    rate, root = lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)
    numbers = (np.float32(x) for x in (rate, root, 1 - lr * decay, beta1, 1 - beta1, beta2, 1 - beta2, eps))
    spread(_sweep, num_chunks(weights.size), CHUNK, weights, packed(grads), mean, square, *numbers)


@kernel
def _sweep(start, stop, weights, grads, mean, square, rate, root, shrink, beta1, rest1, beta2, rest2, eps):
    part = slice(start * CHUNK, stop * CHUNK)
    w, g, m, v = weights[part], grads[part], mean[part], square[part]
    for i in range(w.size):
        m[i] = beta1 * m[i] + rest1 * g[i]
        v[i] = beta2 * v[i] + rest2 * (g[i] * g[i])
        w[i] = w[i] * shrink - rate * m[i] / (np.sqrt(v[i]) * root + eps)
