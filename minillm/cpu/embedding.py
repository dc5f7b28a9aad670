"""Embedding: see minillm/ops/embedding.py.  The backward is split by channels, so no two threads add to one element."""

from minillm import ops, store
from minillm.cpu.jit import kernel
from minillm.cpu.rows import packed, rows_of, spread, twin
from minillm.ops.check_inputs import ids_in_range

STRIP = 64  # channels per unit of the backward


@twin(ops.embedding_forward)
def embedding_forward(ids, table):
    ids_in_range("embedding", "ids", ids, table.shape[0])
    y = store.empty((*ids.shape, table.shape[1]))
    flat = packed(ids).reshape(-1)
    spread(_gather, flat.size, table.shape[1], flat, packed(table), y.reshape(flat.size, table.shape[1]))
    return y, (flat, table.shape)


@twin(ops.embedding_backward)
def embedding_backward(dy, saved):
    ids, shape = saved
    dtable = store.zeros(shape)
    spread(_add_rows, -(-shape[1] // STRIP), STRIP * ids.size, ids, rows_of(dy), dtable)
    return None, dtable


@kernel
def _gather(start, stop, ids, table, y):
    for i in range(start, stop):
        row, into = table[ids[i]], y[i]
        for j in range(row.size):
            into[j] = row[j]


@kernel
def _add_rows(start, stop, ids, dy, dtable):
    first, last = start * STRIP, min(stop * STRIP, dtable.shape[1])
    for i in range(ids.size):
        row, part = dtable[ids[i], first:last], dy[i, first:last]
        for j in range(row.size):
            row[j] += part[j]
