"""Rotary position embedding: see minillm/ops/rope.py.  Looks the angles up by position instead of gathering them."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import packed, spread, twin
from minillm.ops.check_inputs import ids_in_range, last_axis


@twin(ops.rope_forward)
def rope_forward(x, positions, cos, sin):
    last_axis("rope", "x", x, 2 * cos.shape[1], f"the table {cos.shape}")
    ids_in_range("rope", "positions", positions, cos.shape[0])
    positions = packed(np.broadcast_to(positions, x.shape[:2])).reshape(-1)
    cos, sin = packed(cos), packed(sin)
    return _turn(x, positions, cos, sin, np.float32(1)), (positions, cos, sin)


@twin(ops.rope_backward)
def rope_backward(dy, saved):
    return _turn(dy, *saved, np.float32(-1))


def _turn(x, positions, cos, sin, sign):
    B, T, H, D = x.shape
    y = store.empty(x.shape)
    rows, turned = (a.reshape(B * T, H, D) for a in (packed(x), y))
    spread(_turn_rows, B * T, H * D, rows, positions, cos, sin, sign, turned)
    return y


@kernel
def _turn_rows(start, stop, x, positions, cos, sin, sign, y):
    _, H, D = x.shape
    half = D // 2
    for i in range(start, stop):
        c, s = cos[positions[i]], sin[positions[i]]
        for h in range(H):
            for d in range(half):
                a, b = x[i, h, d], x[i, h, half + d]
                y[i, h, d] = a * c[d] - b * (sign * s[d])
                y[i, h, half + d] = b * c[d] + a * (sign * s[d])
