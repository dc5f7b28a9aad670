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
EXACT = sorted(set(RUNGS) - {"tensor_cores"})  # the rungs that compute in float32
LOG_ROUNDING = 1e-6


def normal(B, T, S, H, G, D, scale=1.0, seed=0):
    r = np.random.default_rng(seed)
    return tuple(scale * r.standard_normal(s) for s in ((B, T, H, D), (B, S, G, D), (B, S, G, D)))


def packed(B, S, seed=0):
    """Documents of random lengths, and padding at the end of each row."""
    r = np.random.default_rng(seed)
    ids = np.sort(r.integers(0, 4, (B, S)), axis=1)
    for row in range(B):
        ids[row, S - r.integers(0, S // 3) :] = -1
    return ids


CASES = {name: make for name, make in ATTENTION.cases.items() if name != "benchmark"} | {
    "benchmark, cut down": lambda r: (*normal(1, 70, 70, 2, 2, 32), None),
    "one query": lambda r: (*normal(2, 1, 150, 4, 1, 16), None),
    "one query, first key": lambda r: (*normal(1, 1, 1, 2, 1, 64), None),
    "T > S": lambda r: (*normal(1, 90, 37, 2, 2, 16), None),
    "exactly a tile": lambda r: (*normal(1, 64, 64, 1, 1, 64), None),
    "a tile and one": lambda r: (*normal(1, 65, 129, 2, 1, 64), None),
    "heads of 128": lambda r: (*normal(1, 50, 67, 4, 1, 128), None),
    "heads of 100": lambda r: (*normal(1, 17, 35, 2, 2, 100), None),
    "four share a key": lambda r: (*normal(1, 40, 40, 4, 1, 32), None),
    "packed": lambda r: (*normal(2, 70, 101, 2, 1, 16), packed(2, 101)),
    "packed, heads of 64": lambda r: (*normal(1, 66, 66, 2, 1, 64), packed(1, 66)),
    "all padding": lambda r: (*normal(2, 33, 70, 2, 1, 32), np.full((2, 70), -1)),
    "huge scores": lambda r: (*normal(1, 40, 70, 2, 2, 64, scale=40.0), None),
}


def run(rung, q, k, v, segments):
    """y and lse of a rung in the checked emulator, as NumPy arrays."""
    machine = Emulator(checked=True)
    arrays = [machine.array(x.astype(np.float32)) for x in (q, k, v)]
    y, saved = RUNGS[rung](*arrays, None if segments is None else machine.array(segments.astype(np.int32)))
    return y.numpy(), saved.lse.numpy()


def reference_lse(q, k, segments):
    """The logarithm of the sum of exp(score) over what a row sees: (B, T, H)."""
    (B, T, H, D), (_, S, G, _) = q.shape, k.shape
    scores = np.einsum("bthd,bshd->bhts", q, np.repeat(k, H // G, axis=2)) * D**-0.5
    scores = np.where(visible(T, S, segments)[:, 0], scores, -np.inf)
    largest = np.max(scores, axis=-1, initial=-np.inf, keepdims=True)
    finite = np.where(largest == -np.inf, 0, largest)
    with np.errstate(divide="ignore"):
        lse = finite + np.log(np.sum(np.exp(scores - finite), axis=-1, keepdims=True))
    return lse[..., 0].transpose(0, 2, 1)


def largest(x):
    """The largest finite magnitude."""
    return np.abs(x[np.isfinite(x)]).max(initial=0)


def assert_near(got, want, allowed):
    """Infinities in the same places, and elsewhere no further away than allowed."""
    assert got.shape == want.shape
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert largest(got[finite] - want[finite]) <= allowed and np.isfinite(got[finite]).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rung", EXACT)
def test_a_float32_rung_equals_the_reference(rung, case):
    q, k, v, segments = inputs = cast(CASES[case](np.random.default_rng(0)), np.float32)
    y, lse = run(rung, *inputs)
    exact = cast(inputs, np.float64)
    want = ops.attention_forward(*exact)[0]
    assert_near(y, want, tolerance(ATTENTION, inputs, np.float32) * np.abs(want).max(initial=0))
    want = reference_lse(*exact[:2], segments)
    assert_near(lse, want, tolerance(ATTENTION, inputs, np.float32) * max(largest(want), 1))
