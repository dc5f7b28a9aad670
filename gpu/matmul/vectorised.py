"""Rung 4: 16 bytes in every request, 8 x 8 elements of C a thread, and the next tiles under way while these are used.

    tiles of step n       multiply [buffer 0]      | barrier |    multiply [buffer 1]      | barrier |
    tiles of step n + 1   memory -> registers      ->  [buffer 1]
    tiles of step n + 2                                           memory -> registers      ->  [buffer 0]

What changed.  (1) `load4` and `store4` move four neighbours in one instruction, from global and from shared memory: a
quarter of the instructions.  Where rows do not begin at multiples of 16 bytes, because their length is no multiple of
4, the four are moved one by one.  (2) There are two buffers for the tiles.  A thread asks for its part of the next
tiles, multiplies the present ones, and only then stores what came meanwhile into the other buffer: the way from global
memory is hidden behind 512 FMAs, and one barrier a step is enough, since nobody reads the buffer that is being filled.
(3) 8 x 8 elements a thread instead of 4 x 4, from 128 x 128 tiles, 8 steps deep: half the traffic of each kind.  The 64
sums and what else is alive fit into 128 registers, so two blocks of 256 threads fit on a multiprocessor.

The thread at (x, y) of 16 x 16 owns four rows at 4 y and four at 64 + 4 y, and columns likewise: eight threads side by
side read 128 bytes, each bank once.

Traffic.  Global memory: 2 x 128 x 8 x 4 bytes for 128 x 128 x 8 FMAs, 1/16 byte a FMA (32 FLOP a byte): an A100
(1,555 GB/s) is bound to 50 TFLOP/s, so its 19.5 TFLOP/s of arithmetic are the bound.  Shared memory: 1 byte a FMA, 4
requests for 64 FMAs of a warp; they need half of the time that the FMAs take.
"""

import numpy as np
from numba import cuda

from gpu import ptx
from gpu.array import Array
from gpu.kernel import Claims, Kernel, ceil_div, device, kernel
from gpu.matmul.orientation import each_orientation, named

TILE = 128  # rows and columns of C a block computes
DEPTH = 8  # steps of k between two barriers
SIDE = 16  # threads along a side of the tile
OWN = TILE // SIDE  # rows, and columns, of C that one thread computes
THREADS = SIDE * SIDE  # each loads 4 numbers of either tile
PITCH = TILE + 4  # numbers from one step of k to the next in a tile: a multiple of 4; see `keep_along`
BUFFER = DEPTH * PITCH  # numbers of a tile
BOTH = 2 * BUFFER
HALF = TILE // 2


@device
def room(x, row, column):
    """How many elements of x lie in this row from this column on; none or less outside x."""
    return np.int32(x.shape[1] - column) if row < x.shape[0] else np.int32(0)


@device
def load_four(x, row, column, wide):
    """x[row, column .. column + 3], zeros outside.  wide: each row begins at a multiple of 16 bytes."""
    row, column, zero = np.uint32(row), np.uint32(column), np.float32(0)
    inside = room(x, row, column)
    if wide and inside > 0:
        return ptx.load4(x, row * x.shape[1] + column)
    x0 = x[row, column] if inside > 0 else zero
    x1 = x[row, column + 1] if inside > 1 else zero
    x2 = x[row, column + 2] if inside > 2 else zero
    x3 = x[row, column + 3] if inside > 3 else zero
    return x0, x1, x2, x3


@device
def store_four(x, row, column, x0, x1, x2, x3, wide):
    """x[row, column .. column + 3] = x0, x1, x2, x3, where that is inside x."""
    row, column = np.uint32(row), np.uint32(column)
    inside = room(x, row, column)
    if wide and inside > 0:
        ptx.store4(x, row * x.shape[1] + column, x0, x1, x2, x3)
        return
    if inside > 0:
        x[row, column] = x0
    if inside > 1:
        x[row, column + 1] = x1
    if inside > 2:
        x[row, column + 2] = x2
    if inside > 3:
        x[row, column + 3] = x3


@device
def fetch_along(x, first_line, first_k, thread, wide):
    """Four numbers of x[line, k]: memory runs along k, and two threads fetch the 8 numbers of a line."""
    return load_four(x, first_line + thread // 2, first_k + thread % 2 * 4, wide)


@device
def keep_along(tile, buffer, thread, numbers):
    """Put them into a column of the tile.  A warp: two steps of k, 4 x 132 numbers (16 banks) apart, of 16 lines."""
    place = buffer + thread % 2 * 4 * PITCH + thread // 2
    for k in range(4):
        tile[place + k * PITCH] = numbers[k]


@device
def fetch_across(x, first_line, first_k, thread, wide):
    """Four numbers of x[k, line]: memory runs across the lines, and a warp fetches one number of 128 lines."""
    return load_four(x, first_k + thread // 32, first_line + thread % 32 * 4, wide)


@device
def keep_across(tile, buffer, thread, numbers):
    """Put them into a row of the tile."""
    place = buffer + thread // 32 * PITCH + thread % 32 * 4
    ptx.store4(tile, place, numbers[0], numbers[1], numbers[2], numbers[3])


@device
def multiply(tile_a, tile_b, buffer, x, y, total):
    """Add the products of a step's two tiles to a thread's sums: total[i, j] += a[i] b[j] for each k."""
    left, right = cuda.local.array(OWN, np.float32), cuda.local.array(OWN, np.float32)
    for k in range(DEPTH):
        place = buffer + k * PITCH
        left[0], left[1], left[2], left[3] = ptx.load4(tile_a, place + y)
        left[4], left[5], left[6], left[7] = ptx.load4(tile_a, place + y + HALF)
        right[0], right[1], right[2], right[3] = ptx.load4(tile_b, place + x)
        right[4], right[5], right[6], right[7] = ptx.load4(tile_b, place + x + HALF)
        for i in range(OWN):
            for j in range(OWN):
                total[i, j] += left[i] * right[j]


@device
def add_c(total, c, row, column, beta, wide):
    """total += beta C: what the thread owns lies at rows and columns 0 .. 3 and 64 .. 67 from (row, column)."""
    for i in range(OWN):
        for j in range(2):
            c0, c1, c2, c3 = load_four(c, row + i // 4 * HALF + i % 4, column + j * HALF, wide)
            total[i, 4 * j] += beta * c0
            total[i, 4 * j + 1] += beta * c1
            total[i, 4 * j + 2] += beta * c2
            total[i, 4 * j + 3] += beta * c3


@device
def store(total, c, row, column, wide):
    """C = total."""
    for i in range(OWN):
        for j in range(2):
            n0, n1, n2, n3 = total[i, 4 * j], total[i, 4 * j + 1], total[i, 4 * j + 2], total[i, 4 * j + 3]
            store_four(c, row + i // 4 * HALF + i % 4, column + j * HALF, n0, n1, n2, n3, wide)


def build(transpose_a: bool, transpose_b: bool) -> Kernel:
    """The kernel for one orientation."""
    fetch_a, keep_a = (fetch_across, keep_across) if transpose_a else (fetch_along, keep_along)
    fetch_b, keep_b = (fetch_along, keep_along) if transpose_b else (fetch_across, keep_across)

    @kernel(
        "float32[:, :], float32[:, :], float32[:, :], float32, float32",
        threads=THREADS,
        blocks=2,
        claims=Claims(wide=True),
    )
    @named("vectorised", transpose_a, transpose_b)
    def vectorised(a, b, c, alpha, beta):
        """Block (X, Y) computes C from row 128 Y, column 128 X; a thread two times four of the rows and columns."""
        tile_a = cuda.shared.array(BOTH, np.float32, 16)
        tile_b = cuda.shared.array(BOTH, np.float32, 16)
        total = cuda.local.array((OWN, OWN), np.float32)
        for i in range(OWN):
            for j in range(OWN):
                total[i, j] = np.float32(0)
        thread = np.uint32(cuda.threadIdx.x)
        x, y = thread % SIDE * 4, thread // SIDE * 4
        row, column = np.uint32(cuda.blockIdx.y) * TILE, np.uint32(cuda.blockIdx.x) * TILE
        wide_a, wide_b, wide_c = a.shape[1] % 4 == 0, b.shape[1] % 4 == 0, c.shape[1] % 4 == 0

        keep_a(tile_a, 0, thread, fetch_a(a, row, 0, thread, wide_a))
        keep_b(tile_b, 0, thread, fetch_b(b, column, 0, thread, wide_b))
        cuda.syncthreads()
        buffer = 0
        for first_k in range(0, a.shape[0] if transpose_a else a.shape[1], DEPTH):
            next_a = fetch_a(a, row, first_k + DEPTH, thread, wide_a)  # zeros behind the end
            next_b = fetch_b(b, column, first_k + DEPTH, thread, wide_b)
            multiply(tile_a, tile_b, buffer, x, y, total)
            buffer = BUFFER - buffer
            keep_a(tile_a, buffer, thread, next_a)
            keep_b(tile_b, buffer, thread, next_b)
            cuda.syncthreads()

        for i in range(OWN):
            for j in range(OWN):
                total[i, j] *= alpha
        if beta != np.float32(0):
            add_c(total, c, row + y, column + x, beta, wide_c)
        store(total, c, row + y, column + x, wide_c)

    return vectorised


KERNELS = each_orientation(build)


def launch(a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, alpha: float, beta: float) -> None:
    """c = alpha op(a) op(b) + beta c with a block for each 128 x 128 tile of c."""
    M, N = c.shape
    grid = ceil_div(N, TILE), ceil_div(M, TILE)
    KERNELS[transpose_a, transpose_b][grid, THREADS](a, b, c, alpha, beta)
