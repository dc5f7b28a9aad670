"""Addition: see minillm/ops/add.py.  One pass either way; ours writes into memory that is warm."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import rows_of, spread, twin
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
    if total.ndim < 2 or not total.flags.c_contiguous:
        np.add(total, part, out=total)
        return
    total, part = total.reshape(-1, total.shape[-1]), rows_of(part)
    spread(_add_rows_into, len(total), total.shape[1], total, part)


@kernel
def _add_rows_into(start, stop, total, part):
    for i in range(start, stop):
        for j in range(total.shape[1]):
            total[i, j] += part[i, j]
