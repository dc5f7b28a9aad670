"""Functions of one float32 that the compiler can turn into vector code: the exponential and its relatives.

The C library's `expf` is a call per element.  Written as arithmetic alone, it becomes sixteen lanes of a register.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minillm.cpu.jit import exact, inline

F = np.float32
NOTHING = F(-np.inf)
SMALLEST, LARGEST = F(-87.33), F(88.73)  # exp of less is 0 (no subnormals), of more is inf
LOG2_E = F(1.44269504)
LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.12194440e-4)  # their sum is ln 2; n * LN2_HIGH is exact
# exp(r) - 1 - r = r^2 (P5 + P4 r + ... + P0 r^5) to 1e-8 for |r| <= ln(2)/2: the coefficients of Cephes (Moshier 1989)
P0, P1, P2 = F(1.9875691500e-4), F(1.3981999507e-3), F(8.3334519073e-3)
P3, P4, P5 = F(4.1665795894e-2), F(1.6666665459e-1), F(5.0000001201e-1)
A0, A1, A2 = F(0.254829592), F(-0.284496736), F(1.421413741)
A3, A4, A5 = F(-1.453152027), F(1.061405429), F(0.3275911)
BIAS, HALF, ONE = np.int32(127), np.int32(1), F(1)  # of a float32's exponent field


@intrinsic
def _float_of_bits(typingctx, bits):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def maximum(typingctx, x, y):
    """The larger of two float32; NaN if either is.  Unlike max(), its reduction over a row is vector code."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 2)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.maximum.f32"), args)

    return types.float32(types.float32, types.float32), generate


@inline
def highest(row):
    """The largest element of a row, or 0 where all are -inf, so that -inf less it stays -inf; NaN if any is."""
    m = NOTHING
    for j in range(row.size):
        m = maximum(m, row[j])
    return F(0) if m == NOTHING else m


@inline
def exp(x):
    """e^x = 2^n e^r,  n = round(x / ln 2),  |r| <= ln(2)/2; 2^n is put together from its bits.

    Within 1.1e-7 of the true value, relatively.  exp(-inf) = 0, exp(inf) = inf, exp(NaN) = NaN.
    """
    z = SMALLEST if x < SMALLEST else x
    z = LARGEST if z > LARGEST else z
    n = np.floor(z * LOG2_E + F(0.5))
    r = z - n * LN2_HIGH - n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    p = p * r * r + r + ONE
    whole = np.int32(n)
    half = whole >> HALF  # 2^128 is no float32, but it is the product of two
    y = p * _float_of_bits((half + BIAS) << np.int32(23)) * _float_of_bits((whole - half + BIAS) << np.int32(23))
    return F(0) if x < SMALLEST else y


@inline
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return ONE / (ONE + exp(-x))


@inline
def erf(x):
    """The error function, within 2e-7: 1 - (A0 t + ... + A4 t^5) e^(-x^2),  t = 1 / (1 + A5 |x|).

    Formula 7.1.26 of Abramowitz & Stegun (1964).
    """
    t = ONE / (ONE + A5 * abs(x))
    p = ((((A4 * t + A3) * t + A2) * t + A1) * t + A0) * t
    y = ONE - p * exp(-x * x)
    return -y if x < F(0) else y


@exact
def minus_both(x, y, z):
    """(x - y) - z, rounded twice.  In a kernel the compiler might take x - (y + z), which loses z beside a large y."""
    return (x - y) - z
