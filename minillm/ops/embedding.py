"""Embedding: rows of a table by id.  Token embeddings and learned positions are both this."""

import numpy as np

from minillm.ops.check_inputs import ids_in_range


def embedding_forward(ids, table):
    """y[...] = table[ids[...]].  ids: (...) integers in [0, V), table: (V, C)  ->  y: (..., C)."""
    ids_in_range("embedding", "ids", ids, table.shape[0])
    return table[ids], (ids, table.shape)


def embedding_backward(dy, saved):
    """dtable[v] = sum of dy over the places where ids == v.  The ids have no gradient."""
    ids, shape = saved
    order = np.argsort(ids, axis=None, kind="stable")  # equal ids side by side: one sum per distinct id
    rows = dy.reshape(-1, shape[1])[order]
    distinct, first = np.unique(ids.reshape(-1)[order], return_index=True)
    dtable = np.zeros(shape, dy.dtype)
    if len(distinct):
        dtable[distinct] = np.add.reduceat(rows, first, axis=0)
    return None, dtable
