"""Every rung of the matmul ladder, in the emulator that watches every access, against NumPy in float64."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from gpu.emulator import Emulator
from gpu.matmul import RUNGS, TOP_RUNG, matmul, to_bf16
from gpu.simulator import Simulator
from minillm.ops.cases import Op, tolerance

PRODUCT = Op({}, sum_length=lambda inputs: inputs[0].shape[1] + 1)  # the K products, and beta C
ORIENTATIONS = {"nn": (False, False), "nt": (False, True), "tn": (True, False), "tt": (True, True)}
SIZES = {  # M, N, K
    "one": (1, 1, 1),
    "odd": (5, 7, 33),
    "outer product": (17, 40, 1),
    "inner product": (1, 1, 203),
    "ragged": (130, 37, 65),
    "one tile and some rows and columns of 16 bytes": (136, 132, 24),
    "rows of 16 bytes in one operand": (9, 16, 30),
    "exact": (128, 64, 64),
    "no terms": (5, 3, 0),
    "no rows": (0, 4, 3),
    "no columns": (4, 0, 3),
}
PLAIN = sorted(set(RUNGS) - {"tensor_cores"})  # the rungs that compute in float32 and that the simulator can run
every_rung = pytest.mark.parametrize("rung", RUNGS)
every_orientation = pytest.mark.parametrize("flips", ORIENTATIONS.values(), ids=ORIENTATIONS)


def rounded(x):
    """float32 rounded to bfloat16, to nearest, ties to even; NaN and infinities stay what they are."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    up = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, up)


def draw(M, N, K, scale=1.0, seed=0):
    """op(a), op(b) and c in float32."""
    r = np.random.default_rng(seed)
    return tuple((scale * r.standard_normal(s)).astype(np.float32) for s in ((M, K), (K, N), (M, N)))


def run(machine, rung, flips, a, b, alpha=1.0, beta=0.0, c=None):
    """alpha a b + beta c on the machine, from operands that lie there transposed where `flips` says so."""
    on = [machine.array(x.T if flip else x) for x, flip in zip((a, b), flips)]
    out = None if c is None else machine.array(c)
    got = matmul(*on, *flips, alpha, beta, out, rung)
    assert out is None or got is out, "the product belongs into c"
    for x, flip, left in zip((a, b), flips, on):
        np.testing.assert_array_equal(left.numpy(), x.T if flip else x, err_msg="an operand changed")
    return got.numpy()


def assert_product(got, rung, a, b, alpha=1.0, beta=0.0, c=None):
    """`got` is the product; NaN and infinities are where they must be."""
    operands = (rounded(a), rounded(b)) if rung == "tensor_cores" else (a, b)
    with np.errstate(invalid="ignore"):
        want = alpha * (operands[0].astype(np.float64) @ operands[1].astype(np.float64))
    if beta:
        want += beta * c.astype(np.float64)
    assert (got.dtype, got.shape) == (np.float32, want.shape)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert np.isfinite(got[finite]).all(), "an infinity or NaN where none belongs"
    allowed = tolerance(PRODUCT, (a, b), np.float32) * np.abs(want[finite]).max(initial=0)
    assert np.abs(got[finite] - want[finite]).max(initial=0) <= allowed


@pytest.mark.parametrize("size", SIZES)
@every_orientation
@every_rung
def test_each_rung_multiplies(rung, flips, size):
    a, b, c = draw(*SIZES[size])
    machine = Emulator(checked=True, seed=5)
    assert_product(run(machine, rung, flips, a, b), rung, a, b)
    assert_product(run(machine, rung, flips, a, b, 0.5, -2.0, c), rung, a, b, 0.5, -2.0, c)


@pytest.mark.parametrize("N", [8, 9], ids=["wide", "narrow"])
@every_rung
def test_what_is_in_c_is_not_read_when_beta_is_zero(rung, N):
    a, b, c = draw(6, N, 5)
    got = run(Emulator(checked=True), rung, (False, False), a, b, alpha=-1.5, c=np.full_like(c, np.nan))
    assert_product(got, rung, a, b, -1.5)


@pytest.mark.parametrize("N", [8, 9], ids=["wide", "narrow"])
@every_rung
def test_what_is_no_number_in_c_stays_where_it_is(rung, N):
    a, b, c = draw(6, N, 5)
    c[0, 0], c[5, N - 1], c[2, 4] = np.nan, np.inf, -np.inf
    got = run(Emulator(checked=True), rung, (False, False), a, b, 1.0, 1.0, c)
    assert_product(got, rung, a, b, 1.0, 1.0, c)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("K", [32, 37])
@every_orientation
@every_rung
def test_what_is_no_number_spreads_over_its_row_and_column_only(rung, flips, K, value):
    """At the very edges, next to the zeros that fill up the tiles: 0 times infinity would be NaN."""
    a, b, _ = draw(20, 19, K)
    a[19, K - 1] = a[3, 0] = value
    b[K - 1, 18] = b[1, 4] = value
    assert_product(run(Emulator(checked=True), rung, flips, a, b), rung, a, b)


@pytest.mark.parametrize("scale", [1e6, 1e-15])
@every_rung
def test_large_and_small_numbers(rung, scale):
    a, b, _ = draw(19, 23, 40, scale)
    assert_product(run(Emulator(checked=True), rung, (False, False), a, b), rung, a, b)


@pytest.mark.parametrize("flips", [(False, False), (True, True)], ids=["nn", "tt"])
@every_rung
def test_the_fast_emulator_and_the_checked_one_agree_to_the_last_bit(rung, flips):
    a, b, c = draw(130, 140, 37)
    fast, checked = (run(machine, rung, flips, a, b, 0.7, 1.3, c) for machine in (Emulator(), Emulator(checked=True)))
    np.testing.assert_array_equal(fast, checked)


@pytest.mark.parametrize("flips", [(False, True), (True, False)], ids=["nt", "tn"])
@pytest.mark.parametrize("rung", PLAIN)
def test_the_simulator_multiplies_too(rung, flips):
    a, b, c = draw(18, 8, 10)
    got = run(Simulator(seed=2), rung, flips, a, b, 0.5, -2.0, c)
    assert_product(got, rung, a, b, 0.5, -2.0, c)


def test_numbers_are_rounded_to_the_nearest_bfloat16():
    r = np.random.default_rng(0)
    ties = np.array([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0xBF808000], np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-40], np.float32)
    x = np.concatenate([ties, special, r.standard_normal(300).astype(np.float32)])
    y = to_bf16(Emulator(checked=True).array(x)).numpy()
    assert y.dtype == np.uint16
    np.testing.assert_array_equal((y.astype(np.uint32) << 16).view(np.float32), rounded(x))


def test_bfloat16_operands_need_no_rounding_and_go_to_the_tensor_cores():
    a, b, _ = draw(33, 40, 50)
    machine = Emulator(checked=True)
    bits = to_bf16(machine.array(a)), to_bf16(machine.array(b))
    assert TOP_RUNG[np.dtype(np.uint16)] == "tensor_cores"
    assert_product(matmul(*bits).numpy(), "tensor_cores", a, b)


def test_float32_operands_go_to_the_highest_rung_that_does_not_round():
    a, b, _ = draw(9, 8, 7)
    machine = Emulator(checked=True)
    assert TOP_RUNG[np.dtype(np.float32)] == "vectorised"
    assert_product(matmul(machine.array(a), machine.array(b)).numpy(), "vectorised", a, b)


def test_mistakes_are_explained():
    machine = Emulator()
    a, b, c = (machine.array(x) for x in draw(3, 4, 5))
    with pytest.raises(ValueError, match=r"as many columns as op\(b\) has rows: \(3, 5\) and \(4, 5\)"):
        matmul(a, b, transpose_b=True)
    with pytest.raises(ValueError, match=r"matrices, got shapes \(15,\) and \(5, 4\)"):
        matmul(a.reshape(-1), b)
    with pytest.raises(ValueError, match=r"c must be float32 of shape \(3, 4\), got float32 of shape \(4, 3\)"):
        matmul(a, b, c=c.reshape(4, 3))
    with pytest.raises(ValueError, match=r"beta = 2.0 scales c, and there is none"):
        matmul(a, b, beta=2.0)
    with pytest.raises(ValueError, match=r"rung must be one of naive, tiled, .*, got 'fastest'"):
        matmul(a, b, rung="fastest")
    with pytest.raises(ValueError, match=r"'a' must be float32\[:, :\], got uint16"):
        matmul(to_bf16(a), b, rung="naive")
