"""The ladder of attention kernels against the reference, in the emulator that watches every access."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from gpu.attention import RUNGS, TOP_RUNG, attention_forward
from gpu.emulator import Emulator
from minillm import ops
from minillm.ops.attention import visible
from minillm.ops.cases import OPS, cast, tolerance

ATTENTION = OPS["attention"]
EXACT = ["naive", "tiled"]  # the rungs that compute in float32
ROUNDING = 2.0**-8  # of bfloat16, relative: 8 bits of mantissa with the hidden one, rounded to nearest


def normal(B, T, S, H, G, D, scale=1.0):
    r = np.random.default_rng(B + T + S + D)
    return tuple(scale * r.standard_normal(s) for s in ((B, T, H, D), (B, S, G, D), (B, S, G, D)))


def packed(B, S):
    """Documents of random lengths, and padding at the end of each row."""
    r = np.random.default_rng(S)
    ids = np.sort(r.integers(0, 4, (B, S)), axis=1)
    for row in range(B):
        ids[row, S - r.integers(1, S // 3) :] = -1
    return ids


# Beside the table's: tiles that are full, or have one row too many, in each size of kernel, with and without segments.
CASES = {name: make for name, make in ATTENTION.cases.items() if name != "benchmark"} | {
    "benchmark, cut down": lambda r: (*normal(1, 70, 70, 2, 2, 32), None),
    "one query": lambda r: (*normal(2, 1, 150, 4, 1, 16), None),
    "one query, one key": lambda r: (*normal(1, 1, 1, 2, 1, 64), None),
    "no key": lambda r: (*normal(1, 3, 0, 2, 1, 16), None),
    "T > S": lambda r: (*normal(1, 90, 37, 2, 2, 16), None),
    "exactly a tile": lambda r: (*normal(1, 64, 64, 1, 1, 64), None),
    "a tile and one": lambda r: (*normal(1, 65, 129, 2, 1, 64), None),
    "heads of 128": lambda r: (*normal(1, 50, 67, 4, 1, 128), None),
    "heads of 100": lambda r: (*normal(1, 17, 35, 2, 2, 100), None),
    "heads of 33": lambda r: (*normal(1, 49, 70, 2, 1, 33), None),
    "four share a key": lambda r: (*normal(1, 40, 40, 4, 1, 32), None),
    "packed": lambda r: (*normal(2, 70, 101, 2, 1, 16), packed(2, 101)),
    "packed, heads of 64": lambda r: (*normal(1, 66, 66, 2, 1, 64), packed(1, 66)),
    "all padding": lambda r: (*normal(2, 33, 70, 2, 1, 32), np.full((2, 70), -1)),
    "huge scores": lambda r: (*normal(1, 40, 70, 2, 2, 64, scale=40.0), None),
}


def run(rung, q, k, v, segments=None, machine=None):
    """y and lse of a rung in the checked emulator, as NumPy arrays."""
    machine = machine or Emulator(checked=True)
    arrays = [machine.array(x.astype(np.float32)) for x in (q, k, v)]
    y, saved = RUNGS[rung](*arrays, None if segments is None else machine.array(segments.astype(np.int32)))
    return y.numpy(), saved.lse.numpy()


def reference(q, k, v, segments):
    """y, and the logarithm of the sum of exp(score) over what a row sees: (B, T, H)."""
    (_, T, H, D), (_, S, G, _) = q.shape, k.shape
    scores = np.einsum("bthd,bshd->bths", q, np.repeat(k, H // G, axis=2)) * D**-0.5
    scores = np.where(visible(T, S, segments)[:, 0, 0, :, None], scores, -np.inf)
    return ops.attention_forward(q, k, v, segments)[0], np.logaddexp.reduce(scores, axis=-1)


def bfloat16(x):
    """Rounded to the nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)).view(np.float32)


def largest(x):
    """The largest finite magnitude."""
    return np.abs(x[np.isfinite(x)]).max(initial=0)


def assert_near(got, want, allowed):
    """What is not finite must be the same, and all else no further away than allowed."""
    assert got.shape == want.shape
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert np.isfinite(got[finite]).all() and largest(got[finite] - want[finite]) <= allowed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rung", EXACT)
def test_a_float32_rung_equals_the_reference(rung, case):
    inputs = cast(CASES[case](np.random.default_rng(0)), np.float32)
    y, lse = run(rung, *inputs)
    want, want_lse = reference(*cast(inputs, np.float64))
    allowed = tolerance(ATTENTION, inputs, np.float32)
    assert_near(y, want, allowed * largest(want))
    assert_near(lse, want_lse, allowed * max(largest(want_lse), 1))


@pytest.mark.parametrize("case", CASES)
def test_tensor_cores_equal_the_reference_but_for_the_rounding_of_the_weights(case):
    """With q, k and v that bfloat16 holds exactly, products are exact and only the weights p are rounded, by a factor
    1 + e with |e| <= 2^-8, after they were summed:  |error of y| = |sum of p e v| / sum of p  <=  2^-8 max |v|."""
    q, k, v, segments = CASES[case](np.random.default_rng(0))
    inputs = (*map(bfloat16, (q, k, v)), segments)
    y, lse = run("tensor_cores", *inputs)
    want, want_lse = reference(*cast(inputs, np.float64))
    allowed = tolerance(ATTENTION, inputs, np.float32)
    assert_near(y, want, ROUNDING * largest(inputs[2]) + allowed * largest(want))
    assert_near(lse, want_lse, allowed * max(largest(want_lse), 1))


def test_what_rounding_the_inputs_costs():
    """Rounding q and k by 2^-8 each moves a score by at most  m = (2 * 2^-8 + 2^-16) max sum |q_d k_d| / sqrt(D),  so
    each probability by a factor within exp(+-2 m); rounding v and p moves y by 2^-8 of the largest value each."""
    q, k, v = cast(normal(1, 70, 70, 2, 2, 64), np.float32)
    y, _ = run("tensor_cores", q, k, v)
    want, _ = reference(*cast((q, k, v), np.float64), None)
    moved = (2 * ROUNDING + ROUNDING**2) * np.einsum("bthd,bshd->bhts", abs(q), abs(k)).max() * 64**-0.5
    error = largest(y - want) / largest(v)
    assert 1e-4 < error <= np.expm1(2 * moved) + 2 * ROUNDING + ROUNDING**2


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_the_rows_that_see_it(rung, value):
    """As in the reference: a query's stays in its row, a key's reaches those that see it."""
    q, k, v = (bfloat16(x) for x in normal(1, 40, 70, 2, 1, 16))
    clean, clean_lse = run(rung, q, k, v)
    q[0, 7, 1, 3], k[0, 66, 0, 2] = value, value
    y, lse = run(rung, q, k, v)
    with np.errstate(invalid="ignore"):
        want, _ = reference(q, k, v, None)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    untouched = np.ones((1, 40, 2), bool)
    untouched[0, 7, 1], untouched[0, 36:] = False, False
    np.testing.assert_array_equal(y[untouched], clean[untouched])
    np.testing.assert_array_equal(lse[untouched], clean_lse[untouched])


@pytest.mark.parametrize("rung", EXACT)
def test_a_float32_rung_runs_as_python_too(rung):
    pytest.importorskip("greenlet")
    from gpu.simulator import Simulator

    inputs = (*normal(1, 5, 35, 2, 1, 4), packed(1, 35))
    inputs = cast(inputs, np.float32)
    y, lse = run(rung, *inputs, machine=Simulator())
    want, want_lse = reference(*cast(inputs, np.float64))
    allowed = tolerance(ATTENTION, inputs, np.float32)
    assert_near(y, want, allowed * largest(want))
    assert_near(lse, want_lse, allowed * max(largest(want_lse), 1))


def test_attention_forward_takes_the_top_rung_unless_told():
    machine = Emulator()
    q, k, v = (machine.array(x.astype(np.float32)) for x in normal(1, 9, 9, 2, 1, 16))
    y, saved = attention_forward(q, k, v)
    assert saved.q is q and saved.k is k and saved.v is v and saved.segments is None and saved.y is y
    np.testing.assert_array_equal(y.numpy(), RUNGS[TOP_RUNG](q, k, v)[0].numpy())
    assert not np.array_equal(y.numpy(), attention_forward(q, k, v, rung="tiled")[0].numpy())
    with pytest.raises(ValueError, match="rung must be one of naive, tiled, tensor_cores, got 'fast'"):
        attention_forward(q, k, v, rung="fast")


@pytest.mark.parametrize("rung", RUNGS)
def test_shapes_that_do_not_fit_are_refused(rung):
    machine = Emulator()

    def refused(message, *shapes, segments=None):
        with pytest.raises(ValueError, match=message):
            RUNGS[rung](*map(machine.empty, shapes), segments)

    refused("q must be", (3, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4))
    refused("q must be", (1, 3, 2, 4), (1, 3, 2, 5), (1, 3, 2, 5))
    refused("do not divide evenly", (1, 3, 3, 4), (1, 3, 2, 4), (1, 3, 2, 4))
    refused("segments must be", *((1, 3, 2, 4),) * 3, segments=machine.empty((1, 4), np.int32))
    refused("argument 'segments' must be int32", *((1, 3, 2, 4),) * 3, segments=machine.empty((1, 3), np.int64))
    if rung != "naive":
        refused("heads of 129 channels", *((1, 3, 2, 129),) * 3)
