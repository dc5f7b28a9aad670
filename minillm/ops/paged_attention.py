"""Attention over paged keys and values (Kwon et al. 2023, arXiv 2309.06180), for tokens of several sequences at once.

Keys and values live in pages of P slots that all sequences share.  The block table of a sequence lists its pages in
order: position s is slot s % P of page table[s // P].  It is for inference alone, so it has no backward.
"""

import numpy as np

from minillm.ops.attention import attention_forward


def paged_attention(q, keys, values, tables, starts, lengths, window=0, sinks=0):
    """Causal attention of each sequence's newest tokens to all its tokens, whose keys and values are in their pages.

    q, y: (N, H, D): queries of B sequences one after the other, those of sequence b from starts[b] to starts[b + 1].
    keys, values: (pages, P, G, D), tables: (B, M) integers, starts: (B + 1,), lengths: (B,) tokens, the queries' too.
    window: a query sees the last so many positions, itself among them; 0: all.  sinks: and the first so many, as the
    softmax wants somewhere to put what belongs nowhere (Xiao et al. 2024, arXiv 2309.17453).
    """
    y, (_, P, G, D) = np.empty_like(q), keys.shape
    for b, S in enumerate(lengths):
        pages = tables[b, : -(-S // P)]
        k, v = (x[pages].reshape(1, -1, G, D)[:, :S] for x in (keys, values))
        own = slice(starts[b], starts[b + 1])
        y[own] = _windowed(q[None, own], k, v, window, sinks)[0] if window else attention_forward(q[None, own], k, v)[0]
    return y


def first_seen(position, window):
    """The first position that a query at `position` sees, sinks aside."""
    return max(0, position - window + 1) if window else 0


def _windowed(q, k, v, window, sinks):
    """One query at a time, with just the keys that it sees.  q, y: (1, T, H, D), k, v: (1, S, G, D)."""
    T, S = q.shape[1], k.shape[1]
    rows = []
    for i in range(T):
        position = S - T + i
        first = first_seen(position, window)
        seen = np.r_[0 : min(sinks, first), first : position + 1]
        rows.append(attention_forward(q[:, i : i + 1], k[:, seen], v[:, seen])[0])
    return np.concatenate(rows, axis=1)
