"""Cross-entropy: see minillm/ops/cross_entropy.py.  Keeps two numbers a row where the reference keeps V."""

import numpy as np

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import packed, rows_of, spread, twin
from minillm.cpu.scalar import exp, highest
from minillm.ops.check_inputs import ids_in_range
from minillm.ops.cross_entropy import IGNORE

ZERO, ONE = np.float32(0), np.float32(1)


@twin(ops.cross_entropy_forward)
def cross_entropy_forward(logits, targets):
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"cross_entropy: one target per row of logits: logits {logits.shape}, targets {targets.shape}")
    ids_in_range("cross_entropy", "targets", targets, logits.shape[-1], ignore=IGNORE)
    rows, flat = rows_of(logits), packed(targets).reshape(-1)
    losses, largest, total = np.empty((3, len(rows)), np.float32)
    spread(_forward, *rows.shape, rows, flat, losses, largest, total)
    return losses.reshape(targets.shape), (rows, flat, largest, total)


@twin(ops.cross_entropy_backward)
def cross_entropy_backward(dlosses, saved, out=None):
    rows = saved[0]
    if out is not None and not out.flags.c_contiguous:
        np.copyto(out, cross_entropy_backward(dlosses, saved)[0])
        return out, None
    dlogits = store.empty(rows.shape) if out is None else out.reshape(rows.shape)
    if not np.may_share_memory(dlogits, rows):
        np.copyto(dlogits, rows)  # the kernel works in place: vector code wants to know that no two rows overlap
    spread(_backward, *rows.shape, packed(dlosses).reshape(-1), dlogits, *saved[1:])
    return dlogits.reshape(*dlosses.shape, rows.shape[1]) if out is None else out, None


@kernel
def _forward(start, stop, logits, targets, losses, largest, totals):
    V = logits.shape[1]
    for i in range(start, stop):
        m, total = highest(logits[i]), ZERO
        for j in range(V):
            total += exp(logits[i, j] - m)
        largest[i], totals[i] = m, ONE if total == ZERO else total
        losses[i] = ZERO if targets[i] == IGNORE else np.log(totals[i]) - (logits[i, targets[i]] - m)


@kernel
def _backward(start, stop, dlosses, dlogits, targets, largest, totals):
    V = dlogits.shape[1]
    for i in range(start, stop):
        if targets[i] == IGNORE:
            dlogits[i, :] = ZERO
            continue
        scale = dlosses[i] / totals[i]
        for j in range(V):
            dlogits[i, j] = exp(dlogits[i, j] - largest[i]) * scale
        dlogits[i, targets[i]] -= dlosses[i]
