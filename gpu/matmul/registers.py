"""Rung 3: a thread computes a 4 x 4 tile of C from 4 numbers of A and 4 of B at a time, in registers.

             b0 b1 b2 b3      For each step of k a thread reads 8 numbers from shared memory and does 16 FMAs.  A block
         a0   *  *  *  *      of 256 threads computes 64 x 64 elements of C, from tiles of 64 lines and 16 steps of k.
         a1   *  *  *  *
         a2   *  *  *  *      A *line* is what an element of C sums over: a row of op(A), a column of op(B).  Both
         a3   *  *  *  *      tiles are kept as tile[k, line], whichever way they lie in global memory.

What changed.  Rung 2 asked shared memory twice for each FMA; here it is half a time.  A multiprocessor can do two FMAs
of a warp in a cycle and answer one request, so both would be busy all the time.  The 16 sums of a thread do not depend
on each other either: while one FMA is under way the next can begin, which rung 2 left to other warps.

The thread at (x, y) of 16 x 16 owns rows y, y + 16, .. and columns x, x + 16, ..: neighbours read neighbours from
shared memory and write neighbours of C.  Where memory runs along k, 16 threads load 16 numbers of a line and put them
into one column of the tile; a pitch of 66 spreads this half warp over the even banks and the next line over the odd.

Traffic.  Global memory: 2 x 64 x 16 x 4 bytes for 64 x 64 x 16 FMAs, 1/8 byte a FMA (16 FLOP a byte): an A100 (1,555
GB/s) is bound to 24.9 TFLOP/s, more than the 19.5 it can compute.  Shared memory: 2 bytes a FMA, just what there is;
the kernel would have to lose no cycle.  Rung 4 asks for four numbers in one request.
"""

import numpy as np
from numba import cuda

from gpu.array import Array
from gpu.kernel import Kernel, ceil_div, device, kernel
from gpu.matmul.element import element, store
from gpu.matmul.orientation import each_orientation, named

TILE = 64  # rows and columns of C a block computes
DEPTH = 16  # steps of k between two barriers
SIDE = 16  # threads along a side of the tile
OWN = TILE // SIDE  # rows, and columns, of C that one thread computes
THREADS = SIDE * SIDE
PITCH = TILE + 2  # numbers from one step of k to the next in a tile


@device
def load_along(tile, x, first_line, first_k, thread):
    """tile[k, line] = x[line, k]: memory runs along k, and 16 threads load the 16 numbers of a line."""
    for i in range(TILE * DEPTH // THREADS):
        line, k = thread // DEPTH + i * (THREADS // DEPTH), thread % DEPTH
        tile[k, line] = element(x, first_line + line, first_k + k)


@device
def load_across(tile, x, first_line, first_k, thread):
    """tile[k, line] = x[k, line]: memory runs across the lines, and 64 threads load one number of each."""
    for i in range(TILE * DEPTH // THREADS):
        line, k = thread % TILE, thread // TILE + i * (THREADS // TILE)
        tile[k, line] = element(x, first_k + k, first_line + line)


def build(transpose_a: bool, transpose_b: bool) -> Kernel:
    """The kernel for one orientation."""
    load_a = load_across if transpose_a else load_along
    load_b = load_along if transpose_b else load_across

    @kernel("float32[:, :], float32[:, :], float32[:, :], float32, float32", threads=THREADS, blocks=4)
    @named("registers", transpose_a, transpose_b)
    def registers(a, b, c, alpha, beta):
        """Block (X, Y) computes C from row 64 Y, column 64 X; thread (x, y) rows y + 16 i, columns x + 16 j."""
        tile_a = cuda.shared.array((DEPTH, PITCH), np.float32)
        tile_b = cuda.shared.array((DEPTH, PITCH), np.float32)
        left = cuda.local.array(OWN, np.float32)
        right = cuda.local.array(OWN, np.float32)
        total = cuda.local.array((OWN, OWN), np.float32)
        for i in range(OWN):
            for j in range(OWN):
                total[i, j] = np.float32(0)
        thread = np.uint32(cuda.threadIdx.x)
        x, y = thread % SIDE, thread // SIDE
        first_row, first_column = np.uint32(cuda.blockIdx.y) * TILE, np.uint32(cuda.blockIdx.x) * TILE
        for first_k in range(0, a.shape[0] if transpose_a else a.shape[1], DEPTH):
            load_a(tile_a, a, first_row, first_k, thread)
            load_b(tile_b, b, first_column, first_k, thread)
            cuda.syncthreads()  # the tiles are complete
            for k in range(DEPTH):
                for i in range(OWN):
                    left[i] = tile_a[k, y + SIDE * i]
                    right[i] = tile_b[k, x + SIDE * i]
                for i in range(OWN):
                    for j in range(OWN):
                        total[i, j] += left[i] * right[j]
            cuda.syncthreads()  # nobody needs them any more
        for i in range(OWN):
            for j in range(OWN):
                store(c, first_row + y + SIDE * i, first_column + x + SIDE * j, total[i, j], alpha, beta)

    return registers


KERNELS = each_orientation(build)


def launch(a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, alpha: float, beta: float) -> None:
    """c = alpha op(a) op(b) + beta c with a block for each 64 x 64 tile of c."""
    M, N = c.shape
    grid = ceil_div(N, TILE), ceil_div(M, TILE)
    KERNELS[transpose_a, transpose_b][grid, THREADS](a, b, c, alpha, beta)
