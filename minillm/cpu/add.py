"""Addition: see minillm/ops/add.py.  One pass either way; ours writes into memory that is warm."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import CHUNK, num_chunks, packed, spread, twin
from minillm.ops.check_inputs import same_shape


@twin(ops.add)
def add(x, y):
    same_shape("add", x=x, y=y)
    return np.add(x, y, out=store.empty(x.shape))


@twin(ops.add_forward)
def add_forward(x, y):
    return add(x, y), None


@twin(ops.add_backward)
def add_backward(dy, saved):
    return ops.add_backward(dy, saved)


@twin(ops.add_into)
def add_into(total, part):
    same_shape("add_into", total=total, part=part)
    if not total.flags.c_contiguous:
        np.add(total, part, out=total)
        return
    spread(_add_into, num_chunks(total.size), CHUNK, total.reshape(-1), packed(part).reshape(-1))


@kernel
def _add_into(start, stop, total, part):
    total, part = total[start * CHUNK : stop * CHUNK], part[start * CHUNK : stop * CHUNK]
    for i in range(total.size):
        total[i] += part[i]
