"""Gradient norm and clipping."""

import math
import tracemalloc

import numpy as np
import pytest

from minillm.ops import clip, gradient_norm
from minillm.ops.clip import CHUNK


@pytest.mark.parametrize("size", [0, 1, 33, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norm_equals_a_float64_norm_of_the_whole_vector(rng, size, dtype):
    vector = rng.standard_normal(size).astype(dtype)
    expected = math.sqrt(math.fsum(vector.astype(np.float64) ** 2))
    assert gradient_norm(vector) == pytest.approx(expected, rel=1e-13)
    assert type(gradient_norm(vector)) is float


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_long_vector_is_scaled_to_max_norm_and_keeps_its_direction(rng, dtype):
    vector = rng.standard_normal(CHUNK + 33).astype(dtype)
    before = vector.copy()
    norm = clip(vector, 0.5)
    assert norm == gradient_norm(before)
    np.testing.assert_allclose(vector, before * (0.5 / norm), rtol=2 * np.finfo(dtype).eps)


def test_a_short_vector_is_returned_bit_for_bit(rng):
    vector = rng.standard_normal(33).astype(np.float32)
    before = vector.copy()
    assert clip(vector, gradient_norm(vector)) == gradient_norm(before)
    np.testing.assert_array_equal(vector, before)


def test_max_norm_zero_means_never(rng):
    vector = 1e6 * rng.standard_normal(33)
    before = vector.copy()
    assert clip(vector, 0) == gradient_norm(before)
    np.testing.assert_array_equal(vector, before)


@pytest.mark.parametrize(("value", "size"), [(1e20, 7), (3e38, 1_000_003), (1e-30, 7)])
def test_finite_float32_gradients_of_any_length_clip_to_one(value, size):
    vector = np.full(size, value, np.float32)
    norm = clip(vector, 1.0 if value > 1 else 1e-33)
    assert norm == pytest.approx(value * math.sqrt(size), rel=1e-6)
    # Each element is rounded to float32 alike, so the length is off by half a unit in the last place at most.
    assert gradient_norm(vector) == pytest.approx(1.0 if value > 1 else 1e-33, rel=2**-24 * 1.01)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_gradient_that_is_not_finite_is_left_alone_and_told_by_the_norm(bad):
    vector = np.array([bad, 1, -3], np.float32)
    before = vector.copy()
    assert not math.isfinite(clip(vector, 1.0))
    np.testing.assert_array_equal(vector, before)


def test_a_float64_overflow_of_the_squares_counts_as_not_finite():
    vector = np.full(3, 1e200)
    assert clip(vector, 1.0) == math.inf
    assert (vector == 1e200).all()


def test_no_copy_of_the_whole_vector_is_made(rng):
    vector = rng.standard_normal(64 * CHUNK).astype(np.float32)
    tracemalloc.start()
    clip(vector, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < vector.nbytes / 8
