"""Attention, rung 1: one thread for each query row of each head.

The formula read aloud: for each key that the row sees, a score; the softmax of the scores; the values' mean by it.  A
row's S scores would not fit into a thread's registers, and T x S of them in global memory are what makes attention
slow (at T = S = 8192 one head's scores take 256 MB), so each is computed twice instead of stored:

    first pass    the row's largest score m and  l = sum of exp(score - m),  both at once: whenever a larger score comes,
                  what was summed before shrinks by exp(m_old - m_new) (Milakov & Gimelshein 2018, arXiv 1805.02867)
    second pass   y = sum of exp(score - m) / l * value

What it moves.  Per row and key 6 D operations (two scores of 2 D, 2 D for y) and, as each thread reads for itself,
k twice, v once, and y read and written: 5 D numbers, so 20 D bytes for 6 D FLOP, 0.3 FLOP a byte.  Caches give much of it
out again: the threads of a warp read the same key, and blocks on one head share its keys.  But neighbouring threads are
neighbouring *rows* here, H D numbers apart in q and in y, so each of the 32 loads of a warp is a transaction of its own.

On an A100 SXM 40 GB (1,555 GB/s, 19.5 TFLOP/s) work with this many FLOP for each byte of memory would run at 0.5 TFLOP/s,
2% of the card; caches lift that, uncoalesced loads lower it.  With B = 8, T = S = 1024, H = 12, D = 64, causal, the
6 D B H T S / 2 = 19 GFLOP take 1 ms at the card's full rate.  The roofline of the task itself: q, k, v, y once are 101 MB,
0.06 ms, and 4 D B H T S / 2 = 13 GFLOP are 0.66 ms, so arithmetic bounds it, and a good kernel must reuse what it reads.
"""

import math

import numpy as np
from numba import cuda

from gpu.array import Array
from gpu.attention.call import AttentionSaved, begin, segments_or_nothing
from gpu.kernel import ceil_div, device, kernel

THREADS = 128
NOTHING = np.float32(-np.inf)  # the score of a hidden key, and the largest of no scores
ZERO, ONE = np.float32(0), np.float32(1)


def attention_forward(q: Array, k: Array, v: Array, segments: Array | None = None) -> tuple[Array, AttentionSaved]:
    """See `minillm.ops.attention_forward`.  Any head size."""
    saved = begin(q, k, v, segments)
    B, T, H, D = q.shape
    grid = ceil_div(T, THREADS), H, B
    ids, packed = segments_or_nothing(segments, q.machine, 2)
    naive[grid, THREADS](q, k, v, ids, saved.y, saved.lse, packed, D**-0.5)
    return saved.y, saved


@device
def score(q, k, b, i, h, j, g, scale):
    """Query i of head h times key j of key/value head g."""
    total = ZERO
    for d in range(q.shape[3]):
        total += q[b, i, h, d] * k[b, j, g, d]
    return total * scale


@device
def same_segment(segments, packed, b, i, j):
    """Do positions i and j of row b belong together?  Padding (-1) belongs to nothing.  packed: are there segments?"""
    return packed == 0 or (segments[b, j] == segments[b, i] and segments[b, j] >= 0)


@kernel(
    "float32[:, :, :, :], float32[:, :, :, :], float32[:, :, :, :], int32[:, :], "
    "float32[:, :, :, :], float32[:, :, :], int32, float32",
    threads=THREADS,
)
def naive(q, k, v, segments, y, lse, packed, scale):
    """Thread x of the grid does query x; the grid's y counts heads, its z the batch.  y is summed where it lies."""
    b, h, i = cuda.blockIdx.z, cuda.blockIdx.y, cuda.grid(1)
    T, H, D = q.shape[1], q.shape[2], q.shape[3]
    S, G = k.shape[1], k.shape[2]
    if i >= T:
        return
    g = h // (H // G)
    last = i + S - T  # the last key that the query may see, and its own position among the keys
    largest, total = NOTHING, ZERO
    for j in range(last + 1):
        if same_segment(segments, packed, b, last, j):
            s = score(q, k, b, i, h, j, g, scale)
            before, largest = largest, max(largest, s)
            shift = ZERO if largest == NOTHING else largest  # -inf - -inf would be NaN
            total = total * math.exp(before - shift) + math.exp(s - shift)
    shift = ZERO if largest == NOTHING else largest
    inverse = ZERO if total == ZERO else ONE / total
    lse[b, i, h] = largest + math.log(total) if total != ZERO else NOTHING
    for d in range(D):
        y[b, i, h, d] = ZERO
    for j in range(last + 1):
        if same_segment(segments, packed, b, last, j):
            p = math.exp(score(q, k, b, i, h, j, g, scale) - shift) * inverse
            for d in range(D):
                y[b, i, h, d] += p * v[b, j, g, d]
