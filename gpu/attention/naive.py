"""Attention, rung 1: a thread for each query row of each head.

The formula read aloud: a score for each key that the row sees, the softmax of the scores, and the mean of the values
by it.  A row's S scores do not fit into a thread's registers, and T x S of them in global memory are what makes
attention slow (268 MB for one head at T = S = 8192), so each score is computed twice instead of stored:

    first pass      the largest score m and  l = sum of exp(score - m),  both at once: when a larger score comes, what
                    was summed before shrinks by exp(m_old - m_new)  (Milakov & Gimelshein 2018, arXiv 1805.02867)
    second pass     y = sum of  exp(score - m) / l * value,  added up where y lies, in global memory

Traffic.  For each row and key the thread reads q and k twice and v once, and y it reads and writes: 7 D numbers, 28 D
bytes, for 6 D FLOP (2 D for each of two scores, 2 D for y): 0.21 FLOP a byte.  If all came from memory, an A100 SXM
40 GB (1,555 GB/s, 19.5 TFLOP/s float32) would run at 0.33 TFLOP/s, 1.7% of its peak.  Caches do better, for the
threads of a warp all read the same key and value; but neighbouring threads are neighbouring rows, H D numbers apart in
q and y, so each such load of a warp falls into 32 sectors, of which it wants 4 bytes each.

The bound.  The task itself moves q, k, v and y once and does 4 D FLOP for each visible pair.  For B = 8, H = G = 12,
T = S = 1024, D = 64 these are 101 MB (0.065 ms) and 12.9 GFLOP (0.66 ms): arithmetic bounds it, at every T above 100,
since there are T / 8 FLOP a byte and the card's ridge is at 12.5.  To come near, a kernel must use again what it reads.
"""

import math

import numpy as np
from numba import cuda

from gpu.array import Array
from gpu.attention.call import AttentionSaved, begin, segments_or_nothing
from gpu.kernel import ceil_div, device, kernel
from gpu.reduction import LOWEST

THREADS = 128
NOTHING, ZERO = np.float32(-np.inf), np.float32(0)


def attention_forward(q: Array, k: Array, v: Array, segments: Array | None = None) -> tuple[Array, AttentionSaved]:
    """See `minillm.ops.attention_forward`.  Any head size."""
    saved = begin(q, k, v, segments)
    B, T, H, D = q.shape
    ids, packed = segments_or_nothing(saved)
    naive[(ceil_div(T, THREADS), H, B), THREADS](q, k, v, ids, saved.y, saved.lse, packed, D**-0.5)
    return saved.y, saved


@kernel(
    "float32[:, :, :, :], float32[:, :, :, :], float32[:, :, :, :], int32[:, :], "
    "float32[:, :, :, :], float32[:, :, :], int32, float32",
    threads=THREADS,
)
def naive(q, k, v, segments, y, lse, packed, scale):
    """Thread x of the grid does query x of one head of one row: the grid's y counts heads, its z the batch."""
    b, h, i = cuda.blockIdx.z, cuda.blockIdx.y, cuda.grid(1)
    T, H, D = q.shape[1], q.shape[2], q.shape[3]
    S, G = k.shape[1], k.shape[2]
    if i >= T:
        return
    g = h // (H // G)
    last = i + S - T  # the last key that the query may see, and its own position among the keys
    largest, total = LOWEST, ZERO
    for j in range(last + 1):
        if same_segment(segments, packed, b, last, j):
            s = score(q, k, b, i, h, j, g, scale)
            before, largest = largest, max(largest, s)
            total = total * math.exp(before - largest) + math.exp(s - largest)
    lse[b, i, h] = NOTHING if total == ZERO else largest + math.log(total)
    for d in range(D):
        y[b, i, h, d] = ZERO
    if total == ZERO:  # the query sees nothing
        return
    for j in range(last + 1):
        if same_segment(segments, packed, b, last, j):
            p = math.exp(score(q, k, b, i, h, j, g, scale) - largest) / total
            for d in range(D):
                y[b, i, h, d] += p * v[b, j, g, d]


@device
def score(q, k, b, i, h, j, g, scale):
    """Query i of head h times key j of key/value head g, in row b of the batch."""
    total = ZERO
    for d in range(q.shape[3]):
        total += q[b, i, h, d] * k[b, j, g, d]
    return total * scale


@device
def same_segment(segments, packed, b, i, j):
    """Do positions i and j of row b belong together?  Padding (-1) belongs to nothing.  packed: are there segments?"""
    return packed == 0 or (segments[b, j] == segments[b, i] and segments[b, j] >= 0)
