"""A tiled matrix product in numba's plainest CUDA, which every simulator can run."""

import numpy as np
from numba import cuda

TILE = 16


def tiled(a, b, c):
    """Each block computes a 16 x 16 tile of c = a b; the sizes are multiples of 16."""
    tile_a = cuda.shared.array((TILE, TILE), np.float32)
    tile_b = cuda.shared.array((TILE, TILE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
    total = np.float32(0)
    for first in range(0, a.shape[1], TILE):
        tile_a[y, x] = a[row, first + x]
        tile_b[y, x] = b[first + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()
    c[row, column] = total
