"""Rung 5: tensor cores.  Operands in bfloat16, sums in float32, tiles that travel while the last ones are used.

              32 of k
             +-------+                 A block computes 128 x 128 of C from tiles of 128 x 32 of A and of B.  Its
       128   |       |   128 x 128     8 warps stand in 2 rows of 4; each computes 64 x 32 of C as 4 x 4 products
             |       |   of C          of 16 x 16 by 16 x 8, what one `mma` instruction does for a whole warp.
             +-------+

What changed.  One instruction now does 2,048 multiply-adds where an FMA of a warp does 32.  To keep it fed, `cp.async`
brings the next tiles straight from global into shared memory, past the registers, into the second of two buffers; and
`ldmatrix` hands out fragments, four 8 x 8 matrices an instruction.  A transposed operand is not moved: its tile keeps
the order it has in memory, and `ldmatrix` transposes while it reads.  Rows of a tile are 8 numbers longer than they
must be, which puts the 8 rows that `ldmatrix` reads at once into different banks.

Traffic.  Global memory: a step of 32 k loads 2 x 128 x 32 x 2 bytes for 128 x 128 x 32 multiply-adds, 64 FLOP a byte.
An A100 does 312 TFLOP/s (bfloat16, dense).  Its memory (1,555 GB/s) binds it to 100, its cache (5,120 bytes a clock of
1.41 GHz), which serves the blocks that share rows and columns, to 460.  Shared memory: a step of a block writes
16 KB and reads 48, 512 clocks at 128 bytes a clock; its 256 `mma` take the four tensor cores of a multiprocessor, 8
clocks each, 512 as well.  So 128 x 128 x 32 is about balanced, and every bank conflict would show.
"""

import numpy as np
from numba import cuda

from gpu import ptx
from gpu.array import Array
from gpu.kernel import Claims, Kernel, ceil_div, device, kernel
from gpu.matmul.orientation import each_orientation, named

U32, F32 = np.uint32, np.float32
TILE, STEP = 128, 32  # of C in both directions; of k
THREADS = 256
K_PITCH, OUTER_PITCH = STEP + 8, TILE + 8  # numbers from row to row of a tile whose rows run along k, or across it
BUFFER = TILE * K_PITCH  # numbers of the larger of the two
BUFFERS = 4 * BUFFER  # for A, B, the next A, the next B
ROUNDING = 256  # threads of a block of `to_bf16`


@kernel("float32[:], uint16[:], uint32", threads=ROUNDING)
def round_to_bf16(x, y, n):
    """Thread i rounds x[i] to the nearest bfloat16."""
    i = U32(cuda.blockIdx.x) * U32(ROUNDING) + U32(cuda.threadIdx.x)
    if i < n:
        y[i] = np.uint16(ptx.pack_bf16(x[i], F32(0)) & U32(0xFFFF))


def to_bf16(x: Array) -> Array:
    """A float32 array rounded to bfloat16, as the bits in uint16."""
    y = x.machine.empty(x.shape, np.uint16)
    round_to_bf16[ceil_div(x.size, ROUNDING), ROUNDING](x.reshape(-1), y.reshape(-1), x.size)
    return y


@device
def load8(tile, at, source, row, column, num_rows, num_columns):
    """Begin to bring source[row, column .. column + 7] to tile[at ..], zeros for what lies outside."""
    first = row * num_columns + column
    if num_columns % U32(8) == 0:  # rows begin at 16 bytes, and eight numbers are inside or outside together
        inside = row < num_rows and column < num_columns
        ptx.copy16(tile, at, source, first if inside else U32(0), U32(16) if inside else U32(0))
    else:
        for i in range(8):
            inside = row < num_rows and column + U32(i) < num_columns
            tile[at + U32(i)] = source[first + U32(i)] if inside else np.uint16(0)


def loader(along_k: bool):
    """A device function that begins to load a tile of 128 x 32; along_k: its rows in memory run along k."""
    pitch, chunks = (U32(K_PITCH), U32(STEP // 8)) if along_k else (U32(OUTER_PITCH), U32(TILE // 8))

    @device
    def load(tile, start, source, outer, k, num_outer, num_k, t):
        """Each thread brings two pieces of 8 numbers."""
        for half in range(2):
            piece = t + U32(half * THREADS)
            row, column = piece // chunks, piece % chunks * U32(8)
            at = start + row * pitch + column
            if along_k:
                load8(tile, at, source, outer + row, k + column, num_outer, num_k)
            else:
                load8(tile, at, source, k + row, outer + column, num_k, num_outer)

    return load


def fragments(along_k: bool, of_a: bool):
    """A device function: the fragments of 16 (outer) x 16 (k) numbers of a tile, beginning at (outer, k).

    For A they are a0, a1, a2, a3 of `ptx.mma_bf16`; for B, b0 and b1 of the first 8 columns, then of the next 8.
    """

    @device
    def load(tile, start, outer, k, lane):
        """Lane 8 i + r points at row r of the i-th 8 x 8 matrix: A goes down first, then along k, B the other way."""
        matrix, row = lane // U32(8), lane % U32(8)
        down, along = (matrix % U32(2), matrix // U32(2)) if of_a else (matrix // U32(2), matrix % U32(2))
        outer += U32(8) * down
        k += U32(8) * along
        if along_k:
            return ptx.ldmatrix4(ptx.shared_address(tile, start + (outer + row) * U32(K_PITCH) + k))
        return ptx.ldmatrix4_transposed(ptx.shared_address(tile, start + (k + row) * U32(OUTER_PITCH) + outer))

    return load


def multiplier(transpose_a: bool, transpose_b: bool):
    """A device function that multiplies the two tiles in one buffer."""
    fragments_a, fragments_b = fragments(not transpose_a, True), fragments(transpose_b, False)

    @device
    def multiply(tile, start, acc, row, column, lane):
        """Add the product of the tiles to a warp's 64 x 32 of C."""
        for step in range(STEP // 16):
            k = U32(16 * step)
            b0, b1, b2, b3 = fragments_b(tile, start + U32(BUFFER), column, k, lane)
            b4, b5, b6, b7 = fragments_b(tile, start + U32(BUFFER), column + U32(16), k, lane)
            for i in range(4):
                a0, a1, a2, a3 = fragments_a(tile, start, row + U32(16 * i), k, lane)
                for j, b, c in ((0, b0, b1), (1, b2, b3), (2, b4, b5), (3, b6, b7)):
                    acc[i, j, 0], acc[i, j, 1], acc[i, j, 2], acc[i, j, 3] = ptx.mma_bf16(
                        a0, a1, a2, a3, b, c, acc[i, j, 0], acc[i, j, 1], acc[i, j, 2], acc[i, j, 3]
                    )

    return multiply


def build(transpose_a: bool, transpose_b: bool) -> Kernel:
    """The kernel for one orientation."""
    load_a, load_b = loader(not transpose_a), loader(transpose_b)
    multiply = multiplier(transpose_a, transpose_b)

    @kernel(
        "uint16[:], uint16[:], float32[:], uint32, uint32, uint32, float32, float32",
        threads=THREADS,
        blocks=2,
        claims=Claims(tensor=True, asynchronous=True),
    )
    @named("tensor_cores", transpose_a, transpose_b)
    def tensor_cores(a, b, c, M, N, K, alpha, beta):
        """Block (X, Y) computes C[128 Y .., 128 X ..]; warp w its part of 64 x 32 at row w // 4, column w % 4."""
        tiles = cuda.shared.array(BUFFERS, np.uint16, 16)
        acc = cuda.local.array((4, 4, 4), np.float32)
        for i in range(4):
            for j in range(4):
                for e in range(4):
                    acc[i, j, e] = F32(0)
        t = U32(cuda.threadIdx.x)
        lane, warp = t % U32(32), t // U32(32)
        first_row, first_column = U32(cuda.blockIdx.y) * U32(TILE), U32(cuda.blockIdx.x) * U32(TILE)
        row, column = warp // U32(4) * U32(64), warp % U32(4) * U32(32)
        here, there = U32(0), U32(2 * BUFFER)
        load_a(tiles, here, a, first_row, U32(0), M, K, t)
        load_b(tiles, here + U32(BUFFER), b, first_column, U32(0), N, K, t)
        ptx.commit()
        k = U32(0)
        while k < K:
            k += U32(STEP)
            if k < K:
                load_a(tiles, there, a, first_row, k, M, K, t)
                load_b(tiles, there + U32(BUFFER), b, first_column, k, N, K, t)
            ptx.commit()
            ptx.wait(1)  # all but the newest group: these tiles are here
            cuda.syncthreads()  # and the other threads' parts of them
            multiply(tiles, here, acc, row, column, lane)
            cuda.syncthreads()  # nobody needs them any more
            here, there = there, here
        row, column = first_row + row + lane // U32(4), first_column + column + lane % U32(4) * U32(2)
        write(c, acc, 0, row, column, M, N, alpha, beta)
        write(c, acc, 1, row, column, M, N, alpha, beta)
        write(c, acc, 2, row, column, M, N, alpha, beta)
        write(c, acc, 3, row, column, M, N, alpha, beta)

    return tensor_cores


@device
def write(c, acc, i, row, column, M, N, alpha, beta):
    """A lane's part of 16 rows of C: two neighbours in two rows, in each of 4 fragments.

    Called with a number for i: only so are all indices into `acc` known to the compiler, and `acc` in registers.
    """
    for j in range(4):
        for e in range(4):
            r, s = row + U32(16 * i + 8 * (e // 2)), column + U32(8 * j + e % 2)
            if r < M and s < N:
                value = alpha * acc[i, j, e]
                if beta != F32(0):
                    value += beta * c[r * N + s]
                c[r * N + s] = value


KERNELS = each_orientation(build)


def launch(a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, alpha: float, beta: float) -> None:
    """c = alpha op(a) op(b) + beta c.  Operands in float32 are rounded to bfloat16 first."""
    a, b = (to_bf16(x) if x.dtype == np.float32 else x for x in (a, b))
    M, N = c.shape
    K = a.shape[0] if transpose_a else a.shape[1]
    grid = ceil_div(N, TILE), ceil_div(M, TILE)
    flat = (x.reshape(-1) for x in (a, b, c))
    KERNELS[transpose_a, transpose_b][grid, THREADS](*flat, M, N, K, alpha, beta)
