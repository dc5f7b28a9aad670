"""AdamW and clipping on the CPU: the reference's numbers, for any size and number of threads."""

import math

import numpy as np
import pytest

from minillm import cpu, ops, threads
from minillm.cpu import rows
from minillm.cpu.rows import CHUNK

SETTINGS = {"lr": 3e-3, "decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
SIZES = [0, 1, 33, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK + 5]


@pytest.fixture(params=[1, 3])
def num_threads(request, monkeypatch):
    before = threads.num_threads()
    threads.set_num_threads(request.param)
    monkeypatch.setattr(rows, "WORTH", 0)
    yield
    threads.set_num_threads(before)


@pytest.mark.parametrize("size", SIZES)
def test_ten_steps_are_the_references(size, num_threads):
    generator = np.random.default_rng(0)
    start = generator.standard_normal(size).astype(np.float32)
    ours, theirs = ([start.copy(), np.zeros_like(start), np.zeros_like(start)] for _ in range(2))
    for step in range(1, 11):
        grads = (generator.standard_normal(size) * 10.0 ** generator.integers(-6, 2)).astype(np.float32)
        grads.flags.writeable = False
        cpu.adamw(ours[0], grads, *ours[1:], step, **SETTINGS)
        ops.adamw(theirs[0], grads, *theirs[1:], step, **SETTINGS)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == np.float32
        allowed = 1e-6 * np.abs(b).max(initial=0)  # ten steps of about five roundings each
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=allowed)


def test_adamw_counts_from_one():
    x = np.ones(1, np.float32)
    with pytest.raises(AssertionError, match="from 1: got 0"):
        cpu.adamw(x, x, x, x, 0, **SETTINGS)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("size", SIZES)
def test_norm_and_clip_are_the_references(size, scale, num_threads):
    vector = (scale * np.random.default_rng(1).standard_normal(size)).astype(np.float32)
    assert cpu.gradient_norm(vector) == pytest.approx(ops.gradient_norm(vector), rel=1e-13)
    ours, theirs = vector.copy(), vector.copy()
    assert cpu.clip(ours, 0.5) == pytest.approx(ops.clip(theirs, 0.5), rel=1e-13)
    np.testing.assert_allclose(ours, theirs, rtol=2e-7)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_norm_that_is_no_number_leaves_the_vector_alone(value):
    vector = np.ones(100, np.float32)
    vector[7] = value
    norm = cpu.clip(vector, 0.5)
    assert not math.isfinite(norm)
    assert vector[0] == 1


@pytest.mark.parametrize("size", SIZES)
def test_the_norm_has_the_same_bytes_on_any_number_of_threads(size, num_threads):
    vector = np.random.default_rng(2).standard_normal(size).astype(np.float32)
    spread = cpu.gradient_norm(vector)
    threads.set_num_threads(1)
    assert cpu.gradient_norm(vector) == spread
