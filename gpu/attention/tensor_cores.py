"""Attention, rung 3: both products on tensor cores, in bfloat16 with float32 sums; the weights stay in registers.

What changed (Dao 2023, "FlashAttention-2", arXiv 2307.08691).  A warp owns 16 query rows and all keys of a tile, so
that rows meet within four neighbouring lanes and no warp waits for another but to load.  Its scores come out of `mma`
(`gpu/ptx.py` draws the fragments; g = lane // 4, q = lane % 4) as

    c0, c1: row g,     keys 2q, 2q + 1  of 8           a0: row g,     keys 2q, 2q + 1  of 16     a2: 8 keys further
    c2, c3: row g + 8                                  a1: row g + 8                             a3: 8 keys further

and what `mma` wants as its left operand is the same thing: two such pieces, rounded and packed in pairs, are the
weights of 16 keys for the second product.  K is read as it lies (its rows are columns of k^T), V through the
transposing `ldmatrix`.  Queries, keys and values are rounded to bfloat16 on their way into shared memory: their
float32 rows cost twice the traffic, and passing through registers they cannot be copied in the background (`copy16`),
but callers need no second copy of anything.

Precision.  Rounding to bfloat16 is at most 2^-8 relative: the weights' moves y by at most 2^-8 of the largest value,
that of q and k moves scores by up to 2^-7 of the sum of |q_d k_d|.  Scores, the softmax and all sums are float32.

Traffic of a block, 64 query rows of one head, for a tile of 64 keys (32 where a head has more than 64 channels) with
D = 64: 32 KB of global memory and 4 x 64 x 64 x 64 = 1 MFLOP, 32 FLOP a byte.  An A100 SXM 40 GB does 312 TFLOP/s;
from its memory (1,555 GB/s) it could feed 50, from its cache (5,120 bytes a clock, 7,200 GB/s) 230, and as the blocks
of a head read the same keys it is the cache that feeds them.  Besides, each score needs an exponential: 4,096 a tile
at 16 a clock are 256 clocks, beside the 512 of the products.  One after the other that is two thirds of the peak; but
the three blocks of a multiprocessor can do both at once.

The bound.  For the B = 8, H = 12, T = S = 1024, D = 64 of rung 1 arithmetic takes 0.041 ms and memory 0.065: now memory
is the bound of the task, up to T = 1,600, where its T / 8 FLOP a byte pass the card's ridge of 200.
"""

import math

import numpy as np
from numba import cuda

from gpu import ptx
from gpu.array import Array
from gpu.attention.call import TILED_SIGNATURE, AttentionSaved, begin, smallest_width, tiled_arguments
from gpu.attention.loading import four_or_zeros, segment_at
from gpu.kernel import Claims, Kernel, ceil_div, device, kernel
from gpu.reduction import ALL, LOWEST

U32, I32, F32 = np.uint32, np.int32, np.float32
WARPS = 4
THREADS, QUERIES = 32 * WARPS, 16 * WARPS
NOTHING, ZERO, ONE = F32(-np.inf), F32(0), F32(1)
LN_2 = F32(math.log(2))


def attention_forward(q: Array, k: Array, v: Array, segments: Array | None = None) -> tuple[Array, AttentionSaved]:
    """See `minillm.ops.attention_forward`.  Head sizes up to 128; q, k and v are rounded to bfloat16."""
    saved = begin(q, k, v, segments)
    B, T, H, D = q.shape
    width = smallest_width(D, KERNELS)
    KERNELS[width][(ceil_div(T, QUERIES), H, B), THREADS](*tiled_arguments(saved))
    return saved.y, saved


def build(width: int, keys: int, blocks: int) -> Kernel:
    """The kernel for heads of up to `width` channels, with `keys` keys a tile."""
    pitch = width // 2 + 4  # words (pairs) from row to row: 4 more than needed, so that 8 rows lie in different banks
    q_size, k_size = QUERIES * pitch, keys * pitch
    scores_shape, out_shape = (keys // 8, 4), (width // 8, 4)

    def tensor_cores(q, k, v, segments, y, lse, T, S, G, group, D, packed, scale):
        """Each warp does 16 query rows.  The grid's x counts tiles of queries, y heads, z the batch."""
        q_tile = cuda.shared.array(q_size, np.uint32, 16)
        k_tile, v_tile = cuda.shared.array(k_size, np.uint32, 16), cuda.shared.array(k_size, np.uint32, 16)
        key_segments = cuda.shared.array(keys, np.int32)
        scores, out = cuda.local.array(scores_shape, np.float32), cuda.local.array(out_shape, np.float32)
        for n in range(width // 8):
            for e in range(4):
                out[n, e] = ZERO
        thread = U32(cuda.threadIdx.x)
        lane, row = thread % U32(32), thread // U32(32) * U32(16)
        h, b, H, uD = U32(cuda.blockIdx.y), U32(cuda.blockIdx.z), U32(G * group), U32(D)
        first = I32((cuda.gridDim.x - 1 - cuda.blockIdx.x) * QUERIES)  # the tiles that see most begin first
        mine = first + I32(row) + I32(lane // U32(4))  # and mine + 8: this lane's rows
        low = segment_at(segments, packed, b * S, mine + S - T, S)
        high = segment_at(segments, packed, b * S, mine + 8 + S - T, S)
        top_low, top_high, total_low, total_high = LOWEST, LOWEST, ZERO, ZERO
        start = ((b * U32(T) + U32(first)) * H + h) * uD
        load_pairs(q_tile, pitch, width, QUERIES, q, start, H * uD, U32(T - first), uD)
        for first_key in range(0, min(first + QUERIES + S - T, S), keys):
            cuda.syncthreads()  # nobody needs the last tiles any more
            start = ((b * U32(S) + U32(first_key)) * U32(G) + h // U32(group)) * uD
            load_pairs(k_tile, pitch, width, keys, k, start, U32(G) * uD, U32(S - first_key), uD)
            load_pairs(v_tile, pitch, width, keys, v, start, U32(G) * uD, U32(S - first_key), uD)
            if thread < U32(keys):
                key_segments[thread] = segment_at(segments, packed, b * S, first_key + I32(thread), S)
            cuda.syncthreads()  # these are complete
            multiply_by_keys(scores, q_tile, k_tile, pitch, width, row, lane)
            diagonal = I32(first + S - T - first_key) + I32(row)
            if packed or diagonal < keys - 1:
                hide(scores, low, high, key_segments, diagonal, lane)
            top_low, total_low = weigh(scores, out, 0, top_low, total_low, scale)
            top_high, total_high = weigh(scores, out, 2, top_high, total_high, scale)
            add_values(out, scores, v_tile, pitch, lane)
        number = (b * U32(T) + U32(mine)) * H + h
        store_row(y, lse, out, 0, top_low, total_low, mine, T, number, uD, lane % U32(4))
        store_row(y, lse, out, 2, top_high, total_high, mine + 8, T, number + U32(8) * H, uD, lane % U32(4))

    tensor_cores.__name__ = f"tensor_cores_{width}"
    return kernel(TILED_SIGNATURE, threads=THREADS, blocks=blocks, claims=Claims(tensor=True))(tensor_cores)


@device
def load_pairs(tile, pitch, width, num_rows, x, start, stride, limit, D):
    """All threads of the block round rows of x to bfloat16 and put them into tile: see `loading.load_rows`.

    A thread makes the 16 bytes of one store out of 8 channels, two loads of 16 bytes; all its loads begin before it
    needs the first.
    """
    thread = U32(cuda.threadIdx.x)
    if D % U32(4) == 0:
        pieces = width // 8  # of a row
        for step in range(num_rows * pieces // THREADS):
            r = U32(thread // U32(pieces) + U32(step * (THREADS // pieces)))
            d = U32(thread % U32(pieces) * U32(8))
            at = start + U32(r * stride + d)
            a, b, c, e = four_or_zeros(x, at, r < limit and d < D)
            low, high = ptx.pack_bf16(a, b), ptx.pack_bf16(c, e)
            a, b, c, e = four_or_zeros(x, at + U32(4), r < limit and d + U32(4) < D)
            ptx.store4(tile, U32(r * U32(pitch) + d // U32(2)), low, high, ptx.pack_bf16(a, b), ptx.pack_bf16(c, e))
    else:
        for piece in range(thread, num_rows * width // 2, THREADS):
            r, d = U32(piece // (width // 2)), U32(piece % (width // 2) * 2)
            at = start + U32(r * stride + d)
            low = x[at] if r < limit and d < D else ZERO
            high = x[at + U32(1)] if r < limit and d + U32(1) < D else ZERO
            tile[U32(r * U32(pitch) + d // U32(2))] = ptx.pack_bf16(low, high)


@device
def multiply_by_keys(scores, q_tile, k_tile, pitch, width, row, lane):
    """scores = 16 query rows, from `row` on, times all keys of the tile."""
    for n in range(scores.shape[0]):
        for e in range(4):
            scores[n, e] = ZERO
    matrix, r = lane // U32(8), lane % U32(8)
    for k in range(width // 16):
        q_at = (row + r + U32(8) * (matrix % U32(2))) * U32(pitch) + U32(8 * k) + U32(4) * (matrix // U32(2))
        a0, a1, a2, a3 = ptx.ldmatrix4(ptx.shared_address(q_tile, q_at))
        for n in range(0, scores.shape[0], 2):
            key = U32(8 * n) + r + U32(8) * (matrix // U32(2))
            k_at = key * U32(pitch) + U32(8 * k) + U32(4) * (matrix % U32(2))
            b0, b1, b2, b3 = ptx.ldmatrix4(ptx.shared_address(k_tile, k_at))
            scores[n, 0], scores[n, 1], scores[n, 2], scores[n, 3] = ptx.mma_bf16(
                a0, a1, a2, a3, b0, b1, scores[n, 0], scores[n, 1], scores[n, 2], scores[n, 3]
            )
            scores[n + 1, 0], scores[n + 1, 1], scores[n + 1, 2], scores[n + 1, 3] = ptx.mma_bf16(
                a0, a1, a2, a3, b2, b3, scores[n + 1, 0], scores[n + 1, 1], scores[n + 1, 2], scores[n + 1, 3]
            )


@device
def hide(scores, low_segment, high_segment, key_segments, diagonal, lane):
    """-inf for keys behind the query (row 0 of the warp sees key `diagonal` of the tile), or of another segment."""
    g, q = I32(lane // U32(4)), I32(lane % U32(4))
    for n in range(scores.shape[0]):
        for e in range(4):
            j = I32(8 * n + 2 * q + e % 2)
            mine = low_segment if e < 2 else high_segment
            segment = key_segments[U32(j)]
            if j > diagonal + g + 8 * (e // 2) or segment != mine or segment < 0:
                scores[n, e] = NOTHING


@device
def weigh(scores, out, half, top, total, scale):
    """One step of the online softmax for one of a lane's two rows, half = 0 or 2; returns its largest and its total.

    Scores become weights in powers of two, and what was summed before shrinks to the new largest.
    """
    before = top
    for n in range(scores.shape[0]):
        scores[n, half] *= scale
        scores[n, half + 1] *= scale
        top = max(top, max(scores[n, half], scores[n, half + 1]))
    top = max(top, cuda.shfl_xor_sync(ALL, top, 1))
    top = max(top, cuda.shfl_xor_sync(ALL, top, 2))
    shrink = ptx.exp2(before - top)
    total *= shrink
    for n in range(scores.shape[0]):
        scores[n, half] = ptx.exp2(scores[n, half] - top)
        scores[n, half + 1] = ptx.exp2(scores[n, half + 1] - top)
        total += scores[n, half] + scores[n, half + 1]
    for n in range(out.shape[0]):
        out[n, half] *= shrink
        out[n, half + 1] *= shrink
    return top, total


@device
def add_values(out, weights, v_tile, pitch, lane):
    """out += weights times the tile of values: 16 keys and 16 channels at a time."""
    matrix, r = lane // U32(8), lane % U32(8)
    for k in range(0, weights.shape[0], 2):
        a0, a1 = ptx.pack_bf16(weights[k, 0], weights[k, 1]), ptx.pack_bf16(weights[k, 2], weights[k, 3])
        a2, a3 = (
            ptx.pack_bf16(weights[k + 1, 0], weights[k + 1, 1]),
            ptx.pack_bf16(weights[k + 1, 2], weights[k + 1, 3]),
        )
        for n in range(0, out.shape[0], 2):
            key = U32(8 * k) + r + U32(8) * (matrix % U32(2))
            v_at = key * U32(pitch) + U32(4 * n) + U32(4) * (matrix // U32(2))
            b0, b1, b2, b3 = ptx.ldmatrix4_transposed(ptx.shared_address(v_tile, v_at))
            out[n, 0], out[n, 1], out[n, 2], out[n, 3] = ptx.mma_bf16(
                a0, a1, a2, a3, b0, b1, out[n, 0], out[n, 1], out[n, 2], out[n, 3]
            )
            out[n + 1, 0], out[n + 1, 1], out[n + 1, 2], out[n + 1, 3] = ptx.mma_bf16(
                a0, a1, a2, a3, b2, b3, out[n + 1, 0], out[n + 1, 1], out[n + 1, 2], out[n + 1, 3]
            )


@device
def store_row(y, lse, out, half, top, total, t, T, row, D, q):
    """y = out / total and lse of one row, whose number among all (batch, position, head) is `row`; q: lane % 4."""
    total += cuda.shfl_xor_sync(ALL, total, 1)
    total += cuda.shfl_xor_sync(ALL, total, 2)
    inverse = ZERO if total == ZERO else ptx.divide(ONE, total)
    if t < T:
        if q == 0:
            lse[row] = NOTHING if total == ZERO else top * LN_2 + math.log(total)
        for n in range(out.shape[0]):
            d = U32(8 * n) + U32(2) * q
            if d < D:
                y[row * D + d] = out[n, half] * inverse
            if d + U32(1) < D:
                y[row * D + d + U32(1)] = out[n, half + 1] * inverse


KERNELS = {16: build(16, 64, 4), 32: build(32, 64, 4), 64: build(64, 64, 3), 128: build(128, 32, 3)}
