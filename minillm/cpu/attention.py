"""Causal attention: see minillm/ops/attention.py.  Blocks of scores that stay in cache; (T, S) is never whole.

The online softmax of FlashAttention (Milakov & Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135):
a row's maximum and sum are kept while its keys go by in blocks, and what was summed before is scaled whenever the
maximum grows.  Saved are these two numbers a row; the backward computes the probabilities again.  Blocks beyond the
last visible key are not computed at all, which is half of them.
"""

from typing import NamedTuple

import numpy as np

from minillm import ops, store
from minillm.cpu.gemm import gemm
from minillm.cpu.jit import kernel
from minillm.cpu.rows import packed, spread, twin
from minillm.cpu.scalar import exp, maximum
from minillm.ops.attention import check_inputs

QUERIES, KEYS = 64, 256  # a block of scores: 64 KiB, and as much again in the backward
WORK = 4  # a score costs about as much as this many elements of a simple op
ZERO, ONE, NOTHING = np.float32(0), np.float32(1), np.float32(-np.inf)


class AttentionSaved(NamedTuple):
    """q, y: (B, T, H, D), k, v: (B, S, G, D), segments: (B, S), largest and total: (B, H, T)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    segments: np.ndarray
    y: np.ndarray
    largest: np.ndarray
    total: np.ndarray


@twin(ops.attention_forward)
def attention_forward(q, k, v, segments=None):
    check_inputs(q, k, v, segments)
    q, k, v = (packed(x) for x in (q, k, v))
    (B, T, H, D), S = q.shape, k.shape[1]
    segments = np.empty((0, 0), np.int64) if segments is None else packed(segments.astype(np.int64, copy=False))
    y = store.empty(q.shape)
    largest, total = np.empty((2, B, H, T), np.float32)
    spread(_forward, B * H, WORK * T * S, q, k, v, segments, np.float32(D**-0.5), y, largest, total)
    return y, AttentionSaved(q, k, v, segments, y, largest, total)


@twin(ops.attention_backward)
def attention_backward(dy, saved):
    q, k, v = saved.q, saved.k, saved.v
    dq, dk, dv = store.empty(q.shape), store.empty(k.shape), store.empty(v.shape)
    B, S, G, _ = k.shape
    scale = np.float32(q.shape[3] ** -0.5)
    spread(_backward, B * G, 2 * WORK * S * q.shape[1], packed(dy), *saved, scale, dq, dk, dv)
    return dq, dk, dv


@kernel
def _forward(start, stop, q, k, v, segments, scale, y, largest, total):
    """One unit: one head of one row."""
    B, T, H, D = q.shape
    S, G = k.shape[1:3]
    scores = np.empty((QUERIES, KEYS), np.float32)
    for unit in range(start, stop):
        b, h = unit // H, unit % H
        g = h // (H // G)
        for first in range(0, T, QUERIES):
            num = min(QUERIES, T - first)
            largest[b, h, first : first + num] = NOTHING
            total[b, h, first : first + num] = ZERO
            end = min(first + num + S - T, S)  # keys that the last of these queries sees
            if end <= 0:
                y[b, first : first + num, h] = ZERO
            for left in range(0, end, KEYS):
                width = min(KEYS, end - left)
                gemm(num, width, D, scale, q[b, first:, h], False, k[b, left:, g], True, ZERO, scores)
                for i in range(num):
                    t = first + i
                    row, seen = scores[i], min(max(t + S - T + 1 - left, 0), width)
                    if segments.size:
                        _hide(row, seen, segments[b], left, segments[b, S - T + t])
                    m = largest[b, h, t]
                    for j in range(seen):
                        m = maximum(m, row[j])
                    m_old, largest[b, h, t] = largest[b, h, t], m
                    m = ZERO if m == NOTHING else m
                    part = ZERO
                    for j in range(seen):
                        row[j] = exp(row[j] - m)
                        part += row[j]
                    row[seen:width] = ZERO
                    shrink = exp(m_old - m)
                    total[b, h, t] = total[b, h, t] * shrink + part
                    if left:
                        for d in range(D):
                            y[b, t, h, d] *= shrink
                beta = ONE if left else ZERO
                gemm(num, D, width, ONE, scores, False, v[b, left:, g], False, beta, y[b, first:, h])
            for t in range(first, first + num):
                if total[b, h, t] == ZERO:
                    largest[b, h, t], total[b, h, t] = ZERO, ONE
                inverse = ONE / total[b, h, t]
                for d in range(D):
                    y[b, t, h, d] *= inverse


@kernel
def _backward(start, stop, dy, q, k, v, segments, y, largest, total, scale, dq, dk, dv):
    """One unit: one key/value head of one row, with all the query heads that share it."""
    B, T, H, D = q.shape
    S, G = k.shape[1:3]
    probs, dscores = np.empty((QUERIES, KEYS), np.float32), np.empty((QUERIES, KEYS), np.float32)
    for unit in range(start, stop):
        b, g = unit // G, unit % G
        dk[b, :, g], dv[b, :, g] = ZERO, ZERO
        for h in range(g * (H // G), (g + 1) * (H // G)):
            for first in range(0, T, QUERIES):
                num = min(QUERIES, T - first)
                end = min(first + num + S - T, S)
                if end <= 0:
                    dq[b, first : first + num, h] = ZERO
                for left in range(0, end, KEYS):
                    width = min(KEYS, end - left)
                    gemm(num, width, D, scale, q[b, first:, h], False, k[b, left:, g], True, ZERO, probs)
                    gemm(num, width, D, ONE, dy[b, first:, h], False, v[b, left:, g], True, ZERO, dscores)
                    for i in range(num):
                        t = first + i
                        row, drow = probs[i], dscores[i]
                        seen = min(max(t + S - T + 1 - left, 0), width)
                        if segments.size:
                            _hide(row, seen, segments[b], left, segments[b, S - T + t])
                        product = ZERO  # of dy and y, which is the row's sum of dscores * probs
                        for d in range(D):
                            product += dy[b, t, h, d] * y[b, t, h, d]
                        m, inverse = largest[b, h, t], ONE / total[b, h, t]
                        for j in range(seen):
                            row[j] = exp(row[j] - m) * inverse
                            drow[j] = row[j] * (drow[j] - product) * scale
                        row[seen:width], drow[seen:width] = ZERO, ZERO
                    gemm(width, D, num, ONE, probs, True, dy[b, first:, h], False, ONE, dv[b, left:, g])
                    gemm(width, D, num, ONE, dscores, True, q[b, first:, h], False, ONE, dk[b, left:, g])
                    beta = ONE if left else ZERO
                    gemm(num, D, width, ONE, dscores, False, k[b, left:, g], False, beta, dq[b, first:, h])


@kernel
def _hide(row, seen, segments, left, segment):
    """-inf where a key is of another segment than the query, or where the query is padding."""
    for j in range(seen):
        if segments[left + j] != segment or segment < 0:
            row[j] = NOTHING
