"""Attention, rung 2: tiles of keys and values in shared memory, and an online softmax (FlashAttention).

What changed (Dao et al. 2022, arXiv 2205.14135).  A block takes 64 query rows of one head and walks over the keys, 32
at a time: a key or value once loaded serves 64 rows, and each score is computed once.  The softmax is online: y is
summed for the largest score so far, and shrinks when a larger one comes.  Key tiles wholly behind the diagonal are
not visited, which is half of them.

                     keys   0 1 2 .. 7   8 .. 15   16 .. 23   24 .. 31
    row t                   <- team ->   <- once more, and again ..  ->      A warp is 4 teams of 8 lanes; the block
    row t + 16                 of                                            has 16 teams, and team t these four rows.
    row t + 32               8 lanes
    row t + 48

Lane l of a team has the scores of keys l, l + 8, l + 16, l + 24 with the team's four rows: 16 in registers, for which
it reads four rows of Q and four of K.  Of y it has the same four rows and channels 4 l .. 4 l + 3 of each 32.  A row's
largest and sum meet by three shuffles.  Had a thread a row to itself, q and y alone would take 2 D registers.

Banks.  Rows of Q and K are D + 4 numbers apart, so the 16 bytes that 8 lanes read from 8 keys lie in different banks.
The 8 lanes read one row of V side by side.

Traffic.  A tile is 2 x 32 x 4 D bytes of global memory for 4 x 64 x 32 x D FLOP: 32 FLOP a byte, 150 times rung 1's.
Even if no cache helped, an A100 SXM 40 GB (1,555 GB/s, 19.5 TFLOP/s float32) could be fed at 50 TFLOP/s: arithmetic
is the bound, 0.66 ms for the B = 8, H = 12, T = S = 1024, D = 64 of rung 1.  (Heads of 128 channels have 48 rows and
16 keys a tile, to fit into 48 KB: 24 FLOP a byte, 37 TFLOP/s.)  Out of shared memory a thread makes 8 loads of 16
bytes for 64 FMAs of scores, and with D = 64 12 for 128 of y: one for 9 FMAs, where rung 1 made two for each.  What
keeps it from the peak is that a block does not compute while it loads; two others on its multiprocessor may.
"""

import math

import numpy as np
from numba import cuda

from gpu import ptx
from gpu.array import Array
from gpu.attention.call import TILED_SIGNATURE, AttentionSaved, begin, smallest_width, tiled_arguments
from gpu.attention.loading import load_rows, row_start, segment_at
from gpu.kernel import Claims, Kernel, ceil_div, device, kernel
from gpu.reduction import ALL, LOWEST

THREADS = 128
TEAM = 8  # threads that share query rows: neighbouring lanes
TEAMS = THREADS // TEAM
NOTHING, ZERO, ONE = np.float32(-np.inf), np.float32(0), np.float32(1)
LN_2 = np.float32(math.log(2))


def attention_forward(q: Array, k: Array, v: Array, segments: Array | None = None) -> tuple[Array, AttentionSaved]:
    """See `minillm.ops.attention_forward`.  Head sizes up to 128."""
    saved = begin(q, k, v, segments)
    B, T, H, D = q.shape
    width = smallest_width(D, KERNELS)
    KERNELS[width][(ceil_div(T, QUERIES[width]), H, B), THREADS](*tiled_arguments(saved))
    return saved.y, saved


def build(width: int, rows: int, keys: int, blocks: int) -> Kernel:
    """The kernel for heads of up to `width` channels, with `rows` query rows a team and `keys` keys a tile."""
    queries, pitch = TEAMS * rows, width + 4
    q_size, k_size, v_size, w_size = queries * pitch, keys * pitch, keys * width, queries * (keys + 4)
    scores_shape, out_shape = (rows, keys // TEAM), (rows, width // TEAM)

    def tiled(q, k, v, segments, y, lse, T, S, G, group, D, packed, scale):
        """A team of 8 lanes does `rows` query rows.  The grid's x counts tiles of queries, y heads, z the batch."""
        q_tile = cuda.shared.array(q_size, np.float32, 16)
        k_tile, v_tile = cuda.shared.array(k_size, np.float32, 16), cuda.shared.array(v_size, np.float32, 16)
        w_tile = cuda.shared.array(w_size, np.float32, 16)
        key_segments = cuda.shared.array(keys, np.int32)
        scores, out = cuda.local.array(scores_shape, np.float32), cuda.local.array(out_shape, np.float32)
        largest, total = cuda.local.array(rows, np.float32), cuda.local.array(rows, np.float32)
        mine = cuda.local.array(rows, np.int32)
        thread, h, b = cuda.threadIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        team, lane, g = np.int32(thread // TEAM), np.int32(thread % TEAM), np.int32(np.uint32(h) // np.uint32(group))
        H = np.int32(G * group)
        first = np.int32((cuda.gridDim.x - 1 - cuda.blockIdx.x) * queries)  # the tiles that see most begin first
        for r in range(rows):
            largest[r], total[r] = LOWEST, ZERO
            mine[r] = segment_at(segments, packed, b * S, first + team + TEAMS * r + S - T, S)
            for d in range(width // TEAM):
                out[r, d] = ZERO
        start = row_start(b, first, h, T, H, D)
        load_rows(q_tile, pitch, width, queries, q, start, np.int32(H * D), np.int32(T - first), D, THREADS)
        for first_key in range(0, min(first + queries + S - T, S), keys):
            cuda.syncthreads()  # nobody needs the last tiles any more
            start = row_start(b, first_key, g, S, G, D)
            load_rows(k_tile, pitch, width, keys, k, start, np.int32(G * D), np.int32(S - first_key), D, THREADS)
            load_rows(v_tile, width, width, keys, v, start, np.int32(G * D), np.int32(S - first_key), D, THREADS)
            if thread < keys:
                key_segments[thread] = segment_at(segments, packed, b * S, first_key + thread, S)
            cuda.syncthreads()  # these are complete
            multiply_by_keys(scores, q_tile, k_tile, pitch, width, team, lane, scale)
            diagonal = np.int32(first + S - T - first_key)
            if packed or diagonal < keys - 1:
                hide(scores, mine, key_segments, diagonal, team, lane)
            weigh(scores, largest, total, out)
            add_values(out, scores, w_tile, v_tile, width, team, lane)
        store_rows(y, lse, out, largest, total, b, first + team, h, T, H, D, lane)

    tiled.__name__ = f"tiled_{width}"
    return kernel(TILED_SIGNATURE, threads=THREADS, blocks=blocks, claims=Claims(wide=True))(tiled)


@device
def multiply_by_keys(scores, q_tile, k_tile, pitch, width, team, lane, scale):
    """scores[r, c] = scale * query row r of the team times key lane + 8 c: 4 channels of everything at a time."""
    rows, columns = scores.shape
    q = cuda.local.array((4, 4), np.float32)
    for r in range(rows):
        for c in range(columns):
            scores[r, c] = ZERO
    for d in range(0, width, 4):
        for r in range(rows):
            q[r, 0], q[r, 1], q[r, 2], q[r, 3] = ptx.load4(q_tile, (team + TEAMS * r) * pitch + d)
        for c in range(columns):
            k0, k1, k2, k3 = ptx.load4(k_tile, (lane + TEAM * c) * pitch + d)
            for r in range(rows):
                scores[r, c] += q[r, 0] * k0 + q[r, 1] * k1 + q[r, 2] * k2 + q[r, 3] * k3
    for r in range(rows):
        for c in range(columns):
            scores[r, c] *= scale


@device
def hide(scores, mine, key_segments, diagonal, team, lane):
    """-inf for keys behind the query (row 0 of the tile sees key `diagonal` of the tile), or of another segment."""
    rows, columns = scores.shape
    for c in range(columns):
        j = np.int32(lane + TEAM * c)
        segment = key_segments[j]
        for r in range(rows):
            if j > diagonal + team + TEAMS * r or segment != mine[r] or segment < 0:
                scores[r, c] = NOTHING


@device
def weigh(scores, largest, total, out):
    """One step of the online softmax: scores become weights, and what was summed before shrinks to the new largest."""
    rows, columns = scores.shape
    for r in range(rows):
        before, top = largest[r], largest[r]
        for c in range(columns):
            top = max(top, scores[r, c])
        top = team_max(top)
        shrink = ptx.exp2(before - top)
        largest[r] = top
        total[r] *= shrink
        for c in range(columns):
            scores[r, c] = ptx.exp2(scores[r, c] - top)
            total[r] += scores[r, c]
        for d in range(out.shape[1]):
            out[r, d] *= shrink


@device
def add_values(out, weights, w_tile, v_tile, width, team, lane):
    """out += weights times the tile of values; each lane needs its rows' weights, by way of shared memory.

    Shuffles would too, but on sm_80 each has a slow path for warps that are not together, a call around which values
    must be kept: that took 250 registers in place of 160.
    """
    rows, columns = weights.shape
    keys = TEAM * columns
    pitch = keys + 4
    w = cuda.local.array((4, 4), np.float32)
    for r in range(rows):
        for c in range(columns):
            w_tile[np.int32((team + TEAMS * r) * pitch + lane + TEAM * c)] = weights[r, c]
    cuda.syncwarp()  # the team's weights are there
    for first in range(0, keys, 4):
        for r in range(rows):
            w[r, 0], w[r, 1], w[r, 2], w[r, 3] = ptx.load4(w_tile, np.int32((team + TEAMS * r) * pitch + first))
        for j in range(4):
            for d in range(0, out.shape[1], 4):
                v0, v1, v2, v3 = ptx.load4(v_tile, np.int32((first + j) * width + TEAM * d + 4 * lane))
                for r in range(rows):
                    out[r, d] += w[r, j] * v0
                    out[r, d + 1] += w[r, j] * v1
                    out[r, d + 2] += w[r, j] * v2
                    out[r, d + 3] += w[r, j] * v3


@device
def store_rows(y, lse, out, largest, total, b, first, h, T, H, D, lane):
    """y = out / total and lse of the team's rows: first, first + 16, ..."""
    rows, channels = out.shape
    for r in range(rows):
        whole = team_sum(total[r])
        inverse = ZERO if whole == ZERO else ptx.divide(ONE, whole)
        t = first + TEAMS * r
        if t < T:
            if lane == 0:
                lse[row_start(b, t, h, T, H, 1)] = NOTHING if whole == ZERO else largest[r] * LN_2 + math.log(whole)
            start = row_start(b, t, h, T, H, D)
            for c in range(0, channels, 4):
                d = TEAM * c + 4 * lane
                if D % 4 == 0:
                    if d < D:
                        ptx.store4(
                            y,
                            start + d,
                            out[r, c] * inverse,
                            out[r, c + 1] * inverse,
                            out[r, c + 2] * inverse,
                            out[r, c + 3] * inverse,
                        )
                else:
                    for e in range(4):
                        if d + e < D:
                            y[start + d + e] = out[r, c + e] * inverse


@device
def team_max(value):
    """The largest value of the team's lanes, in each of them."""
    for distance in (4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(ALL, value, distance))
    return value


@device
def team_sum(value):
    """The sum of the team's values, in each lane."""
    for distance in (4, 2, 1):
        value += cuda.shfl_xor_sync(ALL, value, distance)
    return value


KERNELS = {32: build(32, 4, 32, 4), 64: build(64, 4, 32, 3), 128: build(128, 3, 16, 3)}
QUERIES = {32: 64, 64: 64, 128: 48}
