"""SwiGLU: see minillm/ops/swiglu.py.  One pass; the backward computes the sigmoid again instead of keeping it."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import rows_of, spread, twin
from minillm.cpu.scalar import sigmoid
from minillm.ops.check_inputs import same_shape

ONE = np.float32(1)


@twin(ops.swiglu_forward)
def swiglu_forward(gate, up):
    same_shape("swiglu", gate=gate, up=up)
    y = store.empty(gate.shape)
    gate, up = rows_of(gate), rows_of(up)
    spread(_forward, *gate.shape, gate, up, y.reshape(gate.shape))
    return y, (gate, up)


@twin(ops.swiglu_backward)
def swiglu_backward(dy, saved):
    gate, up = saved
    dgate, dup = store.empty(dy.shape), store.empty(dy.shape)
    spread(_backward, *gate.shape, rows_of(dy), gate, up, dgate.reshape(gate.shape), dup.reshape(gate.shape))
    return dgate, dup


@kernel
def _forward(start, stop, gate, up, y):
    for i in range(start, stop):
        for j in range(gate.shape[1]):
            y[i, j] = gate[i, j] * sigmoid(gate[i, j]) * up[i, j]


@kernel
def _backward(start, stop, dy, gate, up, dgate, dup):
    for i in range(start, stop):
        for j in range(gate.shape[1]):
            s = sigmoid(gate[i, j])
            dys = dy[i, j] * s
            dgate[i, j] = dys * up[i, j] * (ONE + gate[i, j] * (ONE - s))
            dup[i, j] = dys * gate[i, j]
