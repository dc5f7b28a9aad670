"""Attention, rung 2."""

import math

import numpy as np
from numba import cuda

from gpu import ptx
from gpu.array import Array
from gpu.attention.call import AttentionSaved, begin, segments_or_nothing
from gpu.kernel import Claims, Kernel, ceil_div, device, kernel

THREADS = 128
ALL_LANES = 0xFFFFFFFF
NOTHING = np.float32(-np.inf)  # the score of a hidden key, and the largest of no scores
ZERO, ONE = np.float32(0), np.float32(1)
LOG2_E, LN_2 = math.log2(math.e), np.float32(math.log(2))
SIGNATURE = (
    "float32[:], float32[:], float32[:], int32[:], float32[:], float32[:], "
    "int32, int32, int32, int32, int32, int32, float32"
)


def attention_tiled(q: Array, k: Array, v: Array, segments: Array | None = None) -> tuple[Array, AttentionSaved]:
    """See `minillm.ops.attention_forward`.  Head sizes up to 128."""
    saved = begin(q, k, v, segments)
    (B, T, H, D), (_, S, G, _) = q.shape, k.shape
    width = min(w for w in KERNELS if w >= D)
    ids, packed = segments_or_nothing(segments, q.machine, 1)
    arrays = (x.reshape(-1) for x in (q, k, v, ids, saved.y, saved.lse))
    grid = ceil_div(T, QUERIES[width]), H, B
    KERNELS[width][grid, THREADS](*arrays, T, S, H, G, D, packed, LOG2_E * D**-0.5)
    return saved.y, saved


@device
def load_up_to_4(x, index, num):
    """x[index .. index + 3], with zeros in place of all but the first num; in one load where 16 bytes are aligned."""
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    if num >= 4 and index % 4 == 0:
        a, b, c, d = ptx.load4(x, index)
    else:
        if num > 0:
            a = x[index]
        if num > 1:
            b = x[index + 1]
        if num > 2:
            c = x[index + 2]
        if num > 3:
            d = x[index + 3]
    return a, b, c, d


@device
def store_up_to_4(x, index, num, a, b, c, d):
    """x[index ..] = the first num of a, b, c, d; in one store where 16 bytes are aligned."""
    if num >= 4 and index % 4 == 0:
        ptx.store4(x, index, a, b, c, d)
    else:
        if num > 0:
            x[index] = a
        if num > 1:
            x[index + 1] = b
        if num > 2:
            x[index + 2] = c
        if num > 3:
            x[index + 3] = d


@device
def load_rows(tile, pitch, num, width, x, start, stride, limit, D):
    """Copy rows of x into a tile"""
    chunks = width // 4
    for step in range(num * chunks // THREADS):
        piece = cuda.threadIdx.x + step * THREADS
        row, d = piece // chunks, piece % chunks * 4
        left = D - d if row < limit else 0
        a, b, c, e = load_up_to_4(x, start + row * stride + d, left)
        ptx.store4(tile, row * pitch + d, a, b, c, e)


@device
def load_segments(tile, num, segments, start, limit, packed):
    for i in range(cuda.threadIdx.x, num, THREADS):
        tile[i] = segments[start + i] if packed and i < limit else -packed


@device
def multiply(scores, q_tile, k_tile, team, lane, width, scale):
    rows, num = scores.shape
    teams, size = THREADS // 8, 8
    pitch = width + 4
    four = cuda.local.array((4, 4), np.float32)
    for r in range(rows):
        for c in range(num):
            scores[r, c] = ZERO
    for d in range(0, width, 4):
        for r in range(rows):
            four[r, 0], four[r, 1], four[r, 2], four[r, 3] = ptx.load4(q_tile, (team + teams * r) * pitch + d)
        for c in range(num):
            k0, k1, k2, k3 = ptx.load4(k_tile, (lane + size * c) * pitch + d)
            for r in range(rows):
                scores[r, c] += four[r, 0] * k0 + four[r, 1] * k1 + four[r, 2] * k2 + four[r, 3] * k3
    for r in range(rows):
        for c in range(num):
            scores[r, c] *= scale


@device
def hide(scores, key_segments, query_segments, team, lane, offset):
    rows, num = scores.shape
    for r in range(rows):
        row = team + THREADS // 8 * r
        for c in range(num):
            j = lane + 8 * c
            same = query_segments[row] == key_segments[j] and key_segments[j] >= 0
            if j > offset + row or not same:
                scores[r, c] = NOTHING


@device
def team_max(x):
    for step in range(3):
        x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, 1 << step))
    return x


@device
def team_sum(x):
    for step in range(3):
        x += cuda.shfl_xor_sync(ALL_LANES, x, 1 << step)
    return x


@device
def softmax(scores, peak, total, out):
    rows, num = scores.shape
    for r in range(rows):
        top = peak[r]
        for c in range(num):
            top = max(top, scores[r, c])
        top = team_max(top)
        shift = ZERO if top == NOTHING else top
        shrink = ptx.exp2(peak[r] - shift)
        peak[r] = top
        total[r] *= shrink
        for c in range(num):
            scores[r, c] = ptx.exp2(scores[r, c] - shift)
            total[r] += scores[r, c]
        for c in range(out.shape[1]):
            out[r, c] *= shrink


@device
def accumulate(out, probs, v_tile, team, lane, width):
    rows, num = probs.shape
    channels = out.shape[1]
    base = team % 4 * 8
    p = cuda.local.array(4, np.float32)
    for c in range(num):
        for j in range(8):
            for r in range(rows):
                p[r] = cuda.shfl_sync(ALL_LANES, probs[r, c], base + j)
            for d in range(0, channels, 4):
                v0, v1, v2, v3 = ptx.load4(v_tile, (8 * c + j) * width + 8 * d + 4 * lane)
                for r in range(rows):
                    out[r, d] += p[r] * v0
                    out[r, d + 1] += p[r] * v1
                    out[r, d + 2] += p[r] * v2
                    out[r, d + 3] += p[r] * v3


def build(width: int, rows: int, keys: int) -> Kernel:
    teams = THREADS // 8
    queries, pitch = teams * rows, width + 4
    q_size, k_size, v_size = queries * pitch, keys * pitch, keys * width
    score_shape, out_shape = (rows, keys // 8), (rows, width // 8)

    def tiled(q, k, v, segments, y, lse, T, S, H, G, D, packed, scale):
        q_tile = cuda.shared.array(q_size, np.float32, 16)
        k_tile = cuda.shared.array(k_size, np.float32, 16)
        v_tile = cuda.shared.array(v_size, np.float32, 16)
        query_segments = cuda.shared.array(queries, np.int32)
        key_segments = cuda.shared.array(keys, np.int32)
        scores = cuda.local.array(score_shape, np.float32)
        out = cuda.local.array(out_shape, np.float32)
        peak = cuda.local.array(rows, np.float32)
        total = cuda.local.array(rows, np.float32)
        team, lane = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8
        b, h = cuda.blockIdx.z, cuda.blockIdx.y
        g = h // (H // G)
        first = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * queries
        for r in range(rows):
            peak[r], total[r] = NOTHING, ZERO
            for d in range(out_shape[1]):
                out[r, d] = ZERO
        load_rows(q_tile, pitch, queries, width, q, ((b * T + first) * H + h) * D, H * D, T - first, D)
        load_segments(query_segments, queries, segments, b * S + S - T + first, T - first, packed)
        for first_key in range(0, min(first + queries + S - T, S), keys):
            cuda.syncthreads()
            start = ((b * S + first_key) * G + g) * D
            load_rows(k_tile, pitch, keys, width, k, start, G * D, S - first_key, D)
            load_rows(v_tile, width, keys, width, v, start, G * D, S - first_key, D)
            load_segments(key_segments, keys, segments, b * S + first_key, S - first_key, packed)
            cuda.syncthreads()
            multiply(scores, q_tile, k_tile, team, lane, width, scale)
            offset = first + S - T - first_key
            if packed or keys - 1 > offset:
                hide(scores, key_segments, query_segments, team, lane, offset)
            softmax(scores, peak, total, out)
            accumulate(out, scores, v_tile, team, lane, width)
        for r in range(rows):
            i = first + team + teams * r
            sum_ = team_sum(total[r])
            inverse = ZERO if sum_ == ZERO else ONE / sum_
            if i < T:
                at = (b * T + i) * H + h
                if lane == 0:
                    lse[at] = (peak[r] * LN_2 + math.log(sum_)) if sum_ != ZERO else NOTHING
                for d in range(0, width // 8, 4):
                    here = 8 * d + 4 * lane
                    store_up_to_4(y, at * D + here, D - here, out[r, d] * inverse, out[r, d + 1] * inverse, out[r, d + 2] * inverse, out[r, d + 3] * inverse)

    tiled.__name__ = f"tiled_{width}"
    return kernel(SIGNATURE, threads=THREADS, claims=Claims(wide=True))(tiled)


QUERIES = {32: 64, 64: 64, 128: 48}
KERNELS = {32: build(32, 4, 32), 64: build(64, 4, 32), 128: build(128, 3, 16)}
