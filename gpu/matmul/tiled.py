"""Rung 2: a block computes a 16 x 16 tile of C from tiles of A and B that its threads load together.

              k                            k
        +--------+     +-----+        The tile of A moves right and the tile of B down, 16 steps of k at a time.
      i |  [A]-> |     | [B] |        Each of the 256 threads loads one element of either, all wait, and then each
        |        |     |  |  | k      computes its element of C from the two tiles: 16 FMAs out of shared memory.
        +--------+     +--v--+
                          j

What changed.  An element that is loaded from global memory serves 16 threads.  In each orientation threadIdx.x runs
along the rows as they lie in memory, so all loads are coalesced (16 x 4 bytes: two full sectors); what is transposed
is read from shared memory in the other direction.  A pitch of 17 instead of 16 puts the elements of a column into
different banks: without it B transposed would be read at 16 rows of one bank, one after the other.

Traffic.  Global memory: a tile step loads 2 x 16 x 16 x 4 bytes for 16^3 FMAs, 0.5 bytes a FMA (4 FLOP a byte): an
A100 (1,555 GB/s) is bound to 6.2 TFLOP/s of 19.5.  Shared memory: still 8 bytes a FMA, two requests of the warp for
one FMA.  A multiprocessor answers one request while it could do two FMAs, so a warp gets a quarter of the peak:
4.9 TFLOP/s.  A larger tile would not help; fewer requests a FMA will (rung 3).
"""

import numpy as np
from numba import cuda

from gpu.array import Array
from gpu.kernel import Kernel, ceil_div, kernel
from gpu.matmul.element import element, store
from gpu.matmul.orientation import each_orientation, named

TILE = 16
PITCH = TILE + 1  # elements from one row of a tile in shared memory to the next


def build(transpose_a: bool, transpose_b: bool) -> Kernel:
    """The kernel for one orientation."""

    @kernel("float32[:, :], float32[:, :], float32[:, :], float32, float32", threads=TILE * TILE)
    @named("tiled", transpose_a, transpose_b)
    def tiled(a, b, c, alpha, beta):
        """Thread (x, y) of block (X, Y) computes C[16 Y + y, 16 X + x]; the block's threads load the tiles together."""
        tile_a = cuda.shared.array((TILE, PITCH), np.float32)
        tile_b = cuda.shared.array((TILE, PITCH), np.float32)
        x, y = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
        first_row, first_column = np.uint32(cuda.blockIdx.y) * TILE, np.uint32(cuda.blockIdx.x) * TILE
        total = np.float32(0)
        for first_k in range(0, a.shape[0] if transpose_a else a.shape[1], TILE):
            if transpose_a:
                tile_a[y, x] = element(a, first_k + y, first_row + x)
            else:
                tile_a[y, x] = element(a, first_row + y, first_k + x)
            if transpose_b:
                tile_b[y, x] = element(b, first_column + y, first_k + x)
            else:
                tile_b[y, x] = element(b, first_k + y, first_column + x)
            cuda.syncthreads()  # the tiles are complete
            for k in range(TILE):
                left = tile_a[k, y] if transpose_a else tile_a[y, k]
                right = tile_b[x, k] if transpose_b else tile_b[k, x]
                total += left * right
            cuda.syncthreads()  # nobody needs them any more
        store(c, first_row + y, first_column + x, total, alpha, beta)

    return tiled


KERNELS = each_orientation(build)


def launch(a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, alpha: float, beta: float) -> None:
    """c = alpha op(a) op(b) + beta c with a block for each 16 x 16 tile of c."""
    M, N = c.shape
    grid = ceil_div(N, TILE), ceil_div(M, TILE)
    KERNELS[transpose_a, transpose_b][grid, (TILE, TILE)](a, b, c, alpha, beta)
