"""Attention over paged keys and values: see minillm/ops/paged_attention.py.

A few queries look back through the block table, page by page, with nothing copied.  A long chunk of a prompt uses each
key many times: its pages are copied together once, and the attention of minillm/cpu/attention.py does the rest.
"""

import numpy as np

from minillm import ops, store
from minillm.cpu.attention import attention_forward
from minillm.cpu.jit import kernel
from minillm.cpu.rows import packed, spread, twin
from minillm.cpu.scalar import exp, maximum

FEW = 8  # queries of a sequence, up to which they are not worth a copy of the keys
WORK = 4  # a score costs about as much as this many elements of a simple op
ZERO, ONE, NOTHING = np.float32(0), np.float32(1), np.float32(-np.inf)


@twin(ops.paged_attention)
def paged_attention(q, keys, values, tables, starts, lengths, window=0, sinks=0):
    q, y = packed(q), store.empty(q.shape)
    _, P, G, D = keys.shape
    counts = np.diff(starts)
    for b in np.flatnonzero(counts > FEW) if not window else ():
        S, new = lengths[b], slice(starts[b], starts[b + 1])
        pages = tables[b, : -(-S // P)]
        k, v = (x[pages].reshape(1, -1, G, D)[:, :S] for x in (keys, values))
        y[new] = attention_forward(q[None, new], k, v)[0][0]
    short = np.full(len(counts), True) if window else counts <= FEW
    owners = np.repeat(np.arange(len(counts)), counts)
    tokens = np.flatnonzero(short[owners])
    owners = owners[tokens]
    lasts = lengths[owners] - starts[owners + 1] + tokens
    firsts = np.maximum(0, lasts - window + 1) if window else np.zeros_like(lasts)
    if tokens.size:
        cost = WORK * q.shape[1] // G * int((lasts - firsts).mean() + 1)
        spread(_look_back, len(tokens) * G, cost, q, keys, values, tables, tokens, owners, firsts, lasts, sinks, y)
    return y


@kernel
def _look_back(start, stop, q, keys, values, tables, tokens, owners, firsts, lasts, sinks, y):
    """One unit: the query heads of one token that share a key/value head."""
    H, G = q.shape[1], keys.shape[2]
    scores = np.empty(tables.shape[1] * keys.shape[1], np.float32)
    for unit in range(start, stop):
        row, g = unit // G, unit % G
        token, table = tokens[row], tables[owners[row]]
        for h in range(g * (H // G), (g + 1) * (H // G)):
            look_back(q[token, h], keys, values, g, table, firsts[row], lasts[row], sinks, scores, y[token, h])


@kernel
def look_back(query, keys, values, g, table, first, last, sinks, scores, y):
    """y = attention of one query to positions [0, sinks) and [first, last].  query, y: (D,), scores: work space."""
    D, P, scale, m = query.size, keys.shape[1], ONE / np.sqrt(np.float32(query.size)), NOTHING
    for page in range(last // P + 1):
        begin, end = page * P, min(page * P + P, last + 1)
        if sinks <= begin and end <= first:
            continue
        for s in range(begin, end):
            if sinks <= s < first:
                scores[s] = NOTHING
                continue
            key, product = keys[table[page], s - begin, g], ZERO
            for d in range(D):
                product += query[d] * key[d]
            scores[s] = product * scale
            m = maximum(m, scores[s])
    m = ZERO if m == NOTHING else m
    total = ZERO
    y[:] = ZERO
    for page in range(last // P + 1):
        begin, end = page * P, min(page * P + P, last + 1)
        if sinks <= begin and end <= first:
            continue
        for s in range(begin, end):
            scores[s] = exp(scores[s] - m)
            total += scores[s]
        for s in range(begin, end):
            value, p = values[table[page], s - begin, g], scores[s]
            for d in range(D):
                y[d] += p * value[d]
    inverse = ZERO if total == ZERO else ONE / total  # a query that sees nothing gives exactly 0
    for d in range(D):
        y[d] *= inverse
