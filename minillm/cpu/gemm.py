"""Matrix products inside kernels: BLAS on parts of larger arrays, without copies and without the interpreter.

np.dot in a kernel wants contiguous operands and a fresh or whole result.  Attention multiplies slices of (B, T, H, D)
arrays and adds into slices, which BLAS can do: it takes the distance between rows, and adds beta times what was there.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minillm.cpu.jit import inline

_PARAMETERS = ("ta", "tb", "m", "n", "k", "alpha", "a", "lda", "b", "ldb", "beta", "c", "ldc")


@intrinsic
def _sgemm(typingctx, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """numba's own entry to BLAS, column-major; addresses come as integers."""

    def generate(context, builder, signature, args):
        value = dict(zip(_PARAMETERS, args))
        char, size, pointer = ir.IntType(8), ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(
            ir.IntType(32), [char] * 3 + [size] * 3 + [pointer, pointer, size, pointer, size, pointer, pointer, size]
        )
        function = cgutils.get_or_insert_function(builder.module, kind, "numba_xxgemm")

        def by_reference(x):
            return builder.bitcast(cgutils.alloca_once_value(builder, x), pointer)

        def address(x):
            return builder.inttoptr(x, pointer)

        builder.call(function, [
            ir.Constant(char, ord("s")), value["ta"], value["tb"], value["m"], value["n"], value["k"],
            by_reference(value["alpha"]), address(value["a"]), value["lda"], address(value["b"]), value["ldb"],
            by_reference(value["beta"]), address(value["c"]), value["ldc"],
        ])  # fmt: skip
        return context.get_dummy_value()

    char, size, number = types.int8, types.int64, types.float32
    return types.void(char, char, size, size, size, number, size, size, size, size, number, size, size), generate


PLAIN, TRANSPOSED = ord("n"), ord("t")


@inline
def gemm(m, n, k, alpha, a, a_transposed, b, b_transposed, beta, c):
    """c = alpha op(a) op(b) + beta c, with op(a): (m, k), op(b): (k, n), c: (m, n) float32.

    a, b and c are 2-D views whose last axis has no gaps; their rows may lie apart.  m, n and k say how much of them
    is used.  With beta 0 whatever c held is ignored.
    """
    if m <= 0 or n <= 0:
        return
    # BLAS counts columns first, and sees our rows as columns: c^T = op(b)^T op(a)^T.
    _sgemm(
        TRANSPOSED if b_transposed else PLAIN, TRANSPOSED if a_transposed else PLAIN, n, m, k,
        alpha, b.ctypes.data, b.strides[0] // 4, a.ctypes.data, a.strides[0] // 4, beta, c.ctypes.data,
        c.strides[0] // 4,
    )  # fmt: skip
