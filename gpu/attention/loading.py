"""Rows of one head on their way from global to shared memory, and the documents that they belong to.

The channels of one head at one position lie together, and the next position's a whole position further: q[b, t, h] is
at  ((b T + t) H + h) D  of the flattened array, and q[b, t + 1, h]  H D  behind it.  So a row is one stretch of memory,
of which neighbouring threads read 16 bytes each, and nothing has to be transposed or copied first.

Offsets within a tile are int32 by force (`np.int32(...)`): numba computes in 64 bits, and a 64-bit offset for each of
a thread's loads, kept over the whole loop, costs two registers each.
"""

import numpy as np
from numba import cuda

from gpu import ptx
from gpu.kernel import device

ZERO = np.float32(0)
PADDING = np.int32(-1)  # the segment of what neither sees nor is seen


@device
def row_start(b, t, h, length, heads, D):
    """Where the channels of position t of head h of row b begin in an array of shape (batch, length, heads, D)."""
    return ((b * length + t) * heads + h) * D


@device
def load_rows(tile, pitch, width, num_rows, x, start, stride, limit, D, num_threads):
    """All threads of the block copy rows of x into tile, `width` channels of row r to tile[r * pitch ..].

    Row r begins at x[start + r * stride].  Rows from `limit` on and channels from D on are not there and become 0.
    Where D is a multiple of 4, so is each row's beginning, and 16 bytes are loaded at once.
    """
    thread = cuda.threadIdx.x
    if D % 4 == 0:
        pieces = width // 4  # of a row
        for step in range(num_rows * pieces // num_threads):
            r = np.int32(thread // pieces + step * (num_threads // pieces))
            d = np.int32(thread % pieces * 4)
            a, b, c, e = four_or_zeros(x, start + np.int32(r * stride + d), r < limit and d < D)
            ptx.store4(tile, np.int32(r * pitch + d), a, b, c, e)
    else:
        for piece in range(thread, num_rows * width, num_threads):
            r, d = np.int32(piece // width), np.int32(piece % width)
            there = r < limit and d < D
            tile[np.uint32(r * pitch + d)] = x[start + np.int32(r * stride + d)] if there else ZERO


@device
def four_or_zeros(x, index, there):
    """x[index .. index + 3] in one load, or zeros where they are not there."""
    if there:
        return ptx.load4(x, index)
    return ZERO, ZERO, ZERO, ZERO


@device
def segment_at(segments, packed, row, t, length):
    """The segment of position t of a row that begins at segments[row]: PADDING outside; 0 if there are no segments."""
    if packed == 0:
        return np.int32(0)
    return segments[row + t] if 0 <= t < length else PADDING
