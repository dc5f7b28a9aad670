"""Rung 3: tensor cores.  Both products in bfloat16 with float32 sums; the weights never leave the registers.

What changed (Dao 2023, "FlashAttention-2", arXiv 2307.08691).  A warp owns 16 query rows and all keys of a tile, so that
rows meet within four neighbouring lanes and no warp waits for another but to load.  Its scores come out of `mma` as

    c0, c1: row g,     keys 2q, 2q + 1  of 8           a0: row g,     keys 2q, 2q + 1  of 16     a2: 8 keys further
    c2, c3: row g + 8                                  a1: row g + 8                             a3: 8 keys further

and what `mma` wants as its left operand is the same thing: two such pieces, rounded and packed in pairs, are the weights
of 16 keys for the second product.  K is read as it lies (its rows are columns of k^T), V through the transposing
`ldmatrix`.  Queries, keys and values are rounded to bfloat16 on their way into shared memory: their float32 rows cost
twice the traffic, and callers need no copies.

    one block, 4 warps: 64 query rows of one head         tiles of 64 keys (32 where a head has more than 64 channels)

Traffic of a block with D = 64 for one tile of 64 keys: 32 KB of global memory (mostly from the cache, for the blocks of
a head read the same keys), and 2 x 2 x 64 x 64 x 64 = 1 MFLOP: 32 FLOP a byte.  An A100 does 312 TFLOP/s; from its
memory (1,555 GB/s) it could feed 50, from its cache (some 7,200 GB/s) 230.  Besides it needs an exponential for each
score: 4,096 a tile at 16 a clock, 256 clocks beside the 512 of the products.  So two thirds of the peak at best, unless
one block's softmax overlaps another's products, which two and more blocks on one multiprocessor do.

A key that a query must not see has weight exactly 0; NaN or inf in its *value* still spoils the row, as in the
reference, for 0 x NaN is NaN.
"""

import math

import numpy as np
from numba import cuda

from gpu import ptx
from gpu.array import Array
from gpu.attention.call import AttentionSaved, begin, segments_or_nothing
from gpu.attention.loading import segment_at
from gpu.kernel import Claims, Kernel, ceil_div, device, kernel
from gpu.reduction import ALL, LOWEST

U32, I32, F32 = np.uint32, np.int32, np.float32
WARPS = 4
THREADS, QUERIES = 32 * WARPS, 16 * WARPS
NOTHING, ZERO, ONE = F32(-np.inf), F32(0), F32(1)
LOG2_E, LN_2 = math.log2(math.e), F32(math.log(2))


@device
def load_pairs(tile, pitch, width, num_rows, x, start, stride, limit, D):
    """All threads of the block round rows of x to bfloat16 and put them into tile, as `loading.load_rows` does."""
    fours = U32(width // 4)  # pieces of a row
    piece = U32(cuda.threadIdx.x)
    while piece < U32(num_rows) * fours:
        r, d = piece // fours, piece % fours * U32(4)
        at = start + r * stride + d
        a, b, c, e = ZERO, ZERO, ZERO, ZERO
        if r < limit and D % U32(4) == 0:
            if d < D:
                a, b, c, e = ptx.load4(x, at)
        elif r < limit:
            a = x[at] if d < D else ZERO
            b = x[at + U32(1)] if d + U32(1) < D else ZERO
            c = x[at + U32(2)] if d + U32(2) < D else ZERO
            e = x[at + U32(3)] if d + U32(3) < D else ZERO
        word = r * U32(pitch) + d // U32(2)
        tile[word], tile[word + U32(1)] = ptx.pack_bf16(a, b), ptx.pack_bf16(c, e)
        piece += U32(THREADS)


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
    inverse = ZERO if total == ZERO else ONE / total
    if t < T:
        if q == 0:
            lse[row] = NOTHING if total == ZERO else top * LN_2 + math.log(total)
        for n in range(out.shape[0]):
            d = U32(8 * n) + U32(2) * q
            if d < D:
                y[row * D + d] = out[n, half] * inverse
            if d + U32(1) < D:
                y[row * D + d + U32(1)] = out[n, half + 1] * inverse


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
    signature = "float32[:], float32[:], float32[:], int32[:], float32[:], float32[:], " + "int32, " * 6 + "float32"
    return kernel(signature, threads=THREADS, blocks=blocks, claims=Claims(tensor=True))(tensor_cores)


KERNELS = {32: build(32, 64, 4), 64: build(64, 64, 3), 128: build(128, 32, 2)}


def attention_forward(q: Array, k: Array, v: Array, segments: Array | None = None) -> tuple[Array, AttentionSaved]:
    """See `minillm.ops.attention_forward`.  Head sizes up to 128; q, k and v are rounded to bfloat16."""
    saved = begin(q, k, v, segments)
    (B, T, H, D), (_, S, G, _) = q.shape, k.shape
    width = min(w for w in KERNELS if w >= D)
    ids, packed = segments_or_nothing(segments, q.machine, 1)
    arrays = (x.reshape(-1) for x in (q, k, v, ids, saved.y, saved.lse))
    grid = ceil_div(T, QUERIES), H, B
    KERNELS[width][grid, THREADS](*arrays, T, S, G, H // G, D, packed, LOG2_E * D**-0.5)
    return saved.y, saved
