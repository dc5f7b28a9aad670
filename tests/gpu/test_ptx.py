"""Each operation of `gpu/ptx.py`, performed by the emulator, against its definition in NumPy."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from numba import cuda

from gpu import ptx
from gpu.emulator import Emulator
from gpu.kernel import kernel

F32, U32 = np.float32, np.uint32
LANE = np.arange(32)
G, Q = LANE // 4, LANE % 4


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def machine(request):
    return Emulator(checked=request.param)


def run(machine, made, *arrays, grid=1, block=32):
    on = [machine.array(a) for a in arrays]
    made[grid, block](*on)
    return [a.numpy() for a in on]


def bits(x):
    return np.asarray(x, F32).view(U32)


def bf16(x):
    """Rounded to bfloat16, nearest even, by way of integers; as float32."""
    u = bits(x).astype(np.uint64)
    rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16 << 16
    return np.where(np.isnan(x), np.nan, rounded.astype(U32).view(F32)).astype(F32)


def pairs(low, high):
    return (bits(bf16(high)) & 0xFFFF0000) | bits(bf16(low)) >> 16


@kernel("float32[:], float32[:], uint32[:]", threads=32)
def pack(low, high, out):
    t = cuda.threadIdx.x
    out[t] = ptx.pack_bf16(low[t], high[t])


def test_pack_bf16_rounds_to_nearest_even(machine):
    special = np.array([0, -0.0, np.inf, -np.inf, 3.4e38, 1e-40, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], F32)
    low = np.random.default_rng(0).standard_normal(32).astype(F32)
    low[: len(special)] = special
    out = run(machine, pack, low, low[::-1].copy(), np.zeros(32, U32))[2]
    assert np.array_equal(out, pairs(low, low[::-1]))


def test_pack_bf16_keeps_nan(machine):
    nan = np.full(32, np.nan, F32)
    nan.view(U32)[::2] = 0xFFFFFFFF  # all bits one must not become minus zero
    out = run(machine, pack, nan, nan, np.zeros(32, U32))[2]
    assert np.isnan((out << 16).view(F32)).all() and np.isnan((out & U32(0xFFFF0000)).view(F32)).all()


@kernel("float32[:], uint32[:], float32[:]", threads=32)
def scalars(x, out, y):
    t = cuda.threadIdx.x
    out[t] = ptx.to_tf32(x[t])
    y[t] = ptx.exp2(x[t])
    y[t + 32] = ptx.divide(x[t], x[31 - t])
    y[t + 64] = ptx.as_float(ptx.as_bits(x[t]) & U32(0x7FFFFFFF))


def test_one_operand_functions(machine):
    x = np.linspace(-20, 21, 32).astype(F32)
    x[0], x[1] = -np.inf, 1 + 2.0**-11  # half a unit of TF32: away from zero
    _, tf32, y = run(machine, scalars, x, np.zeros(32, U32), np.zeros(96, F32))
    assert np.array_equal(tf32[1:], (bits(x) + U32(0x1000) & U32(0xFFFFE000))[1:])
    assert tf32[1].view(F32) == 1 + 2.0**-10 and tf32[0].view(F32) == -np.inf
    np.testing.assert_allclose(y[:32], np.exp2(x.astype(np.float64)), rtol=3e-7)
    assert y[0] == 0
    np.testing.assert_allclose(y[32:64], (x.astype(np.float64) / x[::-1]), rtol=3e-7)
    assert np.array_equal(y[64:], np.abs(x))


@kernel("int32[:], int32[:], int32[:]", threads=32)
def dots(a, b, c):
    t = cuda.threadIdx.x
    c[t] = ptx.dp4a(a[t], b[t], c[t])


def test_dp4a_is_a_dot_product_of_signed_bytes(machine):
    r = np.random.default_rng(1)
    a, b = r.integers(-128, 128, (2, 32, 4)).astype(np.int8)
    a[0], b[0] = -128, -128
    c = r.integers(-1000, 1000, 32).astype(np.int32)
    out = run(machine, dots, a.view(np.int32)[:, 0], b.view(np.int32)[:, 0], c)[2]
    assert np.array_equal(out, c + np.sum(a.astype(np.int32) * b, axis=1))


@kernel("uint32[:], uint32[:], float32[:]", threads=32)
def multiply_bf16(a, b, c):
    t = cuda.threadIdx.x
    c0, c1, c2, c3 = ptx.mma_bf16(
        a[t], a[t + 32], a[t + 64], a[t + 96], b[t], b[t + 32], c[t], c[t + 32], c[t + 64], c[t + 96]
    )
    c[t], c[t + 32], c[t + 64], c[t + 96] = c0, c1, c2, c3


@kernel("uint32[:], uint32[:], float32[:]", threads=32)
def multiply_tf32(a, b, c):
    t = cuda.threadIdx.x
    c0, c1, c2, c3 = ptx.mma_tf32(
        a[t], a[t + 32], a[t + 64], a[t + 96], b[t], b[t + 32], c[t], c[t + 32], c[t + 64], c[t + 96]
    )
    c[t], c[t + 32], c[t + 64], c[t + 96] = c0, c1, c2, c3


@kernel("uint32[:], uint32[:], int32[:]", threads=32)
def multiply_int8(a, b, c):
    t = cuda.threadIdx.x
    c0, c1, c2, c3 = ptx.mma_int8(
        a[t], a[t + 32], a[t + 64], a[t + 96], b[t], b[t + 32], c[t], c[t + 32], c[t + 64], c[t + 96]
    )
    c[t], c[t + 32], c[t + 64], c[t + 96] = c0, c1, c2, c3


def accumulator(c):
    """Fragments (4, 32) of a (16, 8) matrix, as the manual has them."""
    return np.stack([c[G, 2 * Q], c[G, 2 * Q + 1], c[G + 8, 2 * Q], c[G + 8, 2 * Q + 1]]).reshape(-1)


def test_mma_bf16(machine):
    r = np.random.default_rng(2)
    a, b, c = (r.standard_normal(s).astype(F32) for s in ((16, 16), (16, 8), (16, 8)))
    fragments_a = np.stack([pairs(a[G + i, 2 * Q + j], a[G + i, 2 * Q + j + 1]) for j in (0, 8) for i in (0, 8)])
    fragments_b = np.stack([pairs(b[2 * Q + j, G], b[2 * Q + j + 1, G]) for j in (0, 8)])
    out = run(machine, multiply_bf16, fragments_a.reshape(-1), fragments_b.reshape(-1), accumulator(c))[2]
    expected = bf16(a).astype(np.float64) @ bf16(b) + c
    np.testing.assert_allclose(out, accumulator(expected), atol=1e-5)


def test_mma_tf32_looks_at_ten_bits_of_the_mantissa(machine):
    r = np.random.default_rng(3)
    a, b, c = (r.standard_normal(s).astype(F32) for s in ((16, 8), (8, 8), (16, 8)))
    fragments_a = np.stack([a[G + i, Q + j] for j in (0, 4) for i in (0, 8)])
    fragments_b = np.stack([b[Q + j, G] for j in (0, 4)])
    out = run(machine, multiply_tf32, bits(fragments_a).reshape(-1), bits(fragments_b).reshape(-1), accumulator(c))[2]
    short = [(bits(x) & U32(0xFFFFE000)).view(F32).astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(out, accumulator(short[0] @ short[1] + c), atol=1e-5)


def test_mma_int8_is_exact(machine):
    r = np.random.default_rng(4)
    a, b = r.integers(-128, 128, (16, 32)).astype(np.int8), r.integers(-128, 128, (32, 8)).astype(np.int8)
    c = r.integers(-(2**20), 2**20, (16, 8)).astype(np.int32)
    four = np.arange(4)
    fragments_a = np.stack([a[(G + i)[:, None], (4 * Q + j)[:, None] + four] for j in (0, 16) for i in (0, 8)])
    fragments_b = np.stack([b[(4 * Q + j)[:, None] + four, G[:, None]] for j in (0, 16)])
    words = [np.ascontiguousarray(f).view(U32).reshape(-1) for f in (fragments_a, fragments_b)]
    out = run(machine, multiply_int8, *words, accumulator(c))[2]
    assert np.array_equal(out, accumulator(a.astype(np.int32) @ b.astype(np.int32) + c))


@kernel("uint16[:], uint32[:], uint32[:], uint32[:], uint32[:]", threads=32)
def load_matrices(source, four, four_t, two, two_t):
    shared = cuda.shared.array(256, np.uint16, 16)
    t = np.uint32(cuda.threadIdx.x)
    for i in range(8):
        shared[t + U32(32 * i)] = source[t + U32(32 * i)]
    cuda.syncthreads()
    row = ptx.shared_address(shared, t * U32(8))
    four[t], four[t + 32], four[t + 64], four[t + 96] = ptx.ldmatrix4(row)
    four_t[t], four_t[t + 32], four_t[t + 64], four_t[t + 96] = ptx.ldmatrix4_transposed(row)
    two[t], two[t + 32] = ptx.ldmatrix2(row)
    two_t[t], two_t[t + 32] = ptx.ldmatrix2_transposed(row)


def test_ldmatrix_hands_out_pairs_of_a_row_or_a_column(machine):
    m = np.random.default_rng(5).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    out = run(machine, load_matrices, m.reshape(-1), *(np.zeros(n, U32) for n in (128, 128, 64, 64)))
    plain = m[:, G, 2 * Q].astype(U32) | m[:, G, 2 * Q + 1].astype(U32) << 16
    turned = m[:, 2 * Q, G].astype(U32) | m[:, 2 * Q + 1, G].astype(U32) << 16
    for got, expected in zip(out[1:], (plain, turned, plain[:2], turned[:2])):
        assert np.array_equal(got, expected.reshape(-1))


@kernel("float32[:], float32[:], float32[:]", threads=32)
def sixteen(x, y, z):
    shared = cuda.shared.array(128, np.float32, 16)
    t = np.uint32(cuda.threadIdx.x)
    a, b, c, d = ptx.load4(x, t * U32(4))
    ptx.store4(y, t * U32(4), d, c, b, a)
    ptx.copy16(shared, t * U32(4), x, t * U32(4), t % U32(5) * U32(4))
    ptx.commit()
    ptx.wait(0)
    cuda.syncthreads()
    a, b, c, d = ptx.load4(shared, (t ^ U32(1)) * U32(4))
    ptx.store4(z, t * U32(4), a, b, c, d)


def test_sixteen_bytes_at_once_and_copies_filled_with_zeros(machine):
    x = np.arange(128, dtype=F32)
    _, y, z = run(machine, sixteen, x, np.zeros(128, F32), np.zeros(128, F32))
    rows = x.reshape(32, 4)
    assert np.array_equal(y.reshape(32, 4), rows[:, ::-1])
    expected = np.where(np.arange(4) < (LANE % 5)[:, None], rows, 0)
    assert np.array_equal(z.reshape(32, 4), expected[LANE ^ 1])


@kernel("float32[:], float32[:], int32", threads=32)
def pipeline(x, y, groups_left):
    shared = cuda.shared.array(256, np.float32, 16)
    t = np.uint32(cuda.threadIdx.x)
    for i in range(2):
        ptx.copy16(shared, t * U32(4) + U32(128 * i), x, t * U32(4) + U32(128 * i), U32(16))
        ptx.commit()
    if groups_left == 0:
        ptx.wait(0)
    else:
        ptx.wait(1)
    cuda.syncthreads()
    for i in range(8):
        y[t + U32(32 * i)] = shared[t + U32(32 * i)]


@pytest.mark.parametrize("groups_left", [0, 1])
def test_a_copy_that_was_not_waited_for_has_not_arrived(groups_left):
    machine = Emulator(checked=True)
    x, y = machine.array(np.arange(256, dtype=F32)), machine.empty(256)
    pipeline[1, 32](x, y, groups_left)
    arrived = y.numpy() == np.arange(256)
    assert arrived[:128].all() and arrived[128:].all() == (groups_left == 0)
    assert groups_left == 0 or np.isnan(y.numpy()[128:]).all()
