"""Vector registers inside kernels: products of bytes, sixty-four at a time.

What LLVM makes of a loop over int8 numbers widens each to 32 bits first.  Processors have an instruction that takes
four products of bytes and adds them to an int32 (`vpdpbusd` of AVX-512 VNNI), for sixteen sums at once, and nothing but
asking for it by name reaches it.  Elsewhere the same sums are written out for LLVM to do what it can.

Its first operand is unsigned, its second signed; so weights are kept as bytes from 0 to 255, and whoever uses them
takes off  zero * sum(x).
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

BYTE, SHORT, WORD = (ir.IntType(bits) for bits in (8, 16, 32))
SUMS, TOTALS = ir.VectorType(WORD, 16), ir.VectorType(ir.FloatType(), 16)


class Sums(types.Type):
    """Sixteen int32 in one register."""


class Totals(types.Type):
    """Sixteen float32 in one register."""


sums, totals = Sums("Sums"), Totals("Totals")


@register_model(Sums)
class _SumsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, SUMS)


@register_model(Totals)
class _TotalsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, TOTALS)


@intrinsic
def nothing(typingctx):
    """Sixteen totals, all 0."""
    return totals(), lambda context, builder, signature, args: ir.Constant(TOTALS, [0] * 16)


@intrinsic
def dot_bytes(typingctx, u, s):
    """Sums of four products each: of the 64 uint8 at address u and the 64 int8 at s."""

    def generate(context, builder, signature, args):
        return _dot(context, builder, _load(builder, args[0], 64), _load(builder, args[1], 64))

    return sums(types.int64, types.int64), generate


@intrinsic
def dot_nibbles(typingctx, u, s):
    """Likewise of half bytes: element i in the low half of byte i of 32, element 32 + i in the high half."""

    def generate(context, builder, signature, args):
        both = _load(builder, args[0], 32)
        low = builder.and_(both, ir.Constant(both.type, [15] * 32))
        high = builder.lshr(both, ir.Constant(both.type, [4] * 32))
        order = ir.Constant(ir.VectorType(WORD, 64), list(range(64)))
        return _dot(context, builder, builder.shuffle_vector(low, high, order), _load(builder, args[1], 64))

    return sums(types.int64, types.int64), generate


@intrinsic
def add_scaled(typingctx, to, of, low, high):
    """to + of * (low for the first eight, high for the last eight)."""

    def generate(context, builder, signature, args):
        to, of, low, high = args
        pair = ir.Constant(ir.VectorType(ir.FloatType(), 2), ir.Undefined)
        for place, scale in enumerate((low, high)):
            pair = builder.insert_element(pair, scale, ir.Constant(WORD, place))
        halves = ir.Constant(SUMS, [0] * 8 + [1] * 8)
        scales = builder.shuffle_vector(pair, pair, halves)
        fma = ir.FunctionType(TOTALS, [TOTALS] * 3)
        function = cgutils.get_or_insert_function(builder.module, fma, "llvm.fma.v16f32")
        return builder.call(function, [builder.sitofp(of, TOTALS), scales, to])

    return totals(totals, sums, types.float32, types.float32), generate


@intrinsic
def total(typingctx, of):
    """The sum of all sixteen."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), TOTALS])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        return builder.call(function, [ir.Constant(ir.FloatType(), 0.0), args[0]], fastmath=["reassoc"])

    return types.float32(totals), generate


def _load(builder, address, count):
    kind = ir.VectorType(BYTE, count)
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def _dot(context, builder, u, s):
    if "+avx512vnni" in context.codegen()._tm_features:
        kind = ir.FunctionType(SUMS, [SUMS] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
        return builder.call(function, [ir.Constant(SUMS, [0] * 16), builder.bitcast(u, SUMS), builder.bitcast(s, SUMS)])
    wide = ir.VectorType(SHORT, 64)  # 255 * 128 still fits
    products = builder.mul(builder.zext(u, wide), builder.sext(s, wide))
    result = ir.Constant(SUMS, [0] * 16)
    for first in range(4):
        every_fourth = ir.Constant(SUMS, list(range(first, 64, 4)))
        part = builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), every_fourth)
        result = builder.add(result, builder.sext(part, SUMS))
    return result
