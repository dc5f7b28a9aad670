"""The compiled products of small integers are the reference's, with the processor's own instruction and without."""

import os
import subprocess
import sys

import numpy as np
import pytest

from minillm import backend, ops, threads
from minillm.cpu import quantized, rows
from minillm.ops.quantized import quantized_pack, round_activations

CPU = backend.load("cpu")
SHAPES = [(1, 1, 1), (2, 10, 4), (5, 33, 33), (4, 64, 32), (33, 100, 32), (70, 130, 64), (37, 320, 128), (40, 192, 192)]
EPS = np.finfo(np.float32).eps


def drawn(O, I, group, bits):
    r, G = np.random.default_rng(0), -(-I // group)
    q, zero = r.integers(0, 1 << bits, (O, I)), r.integers(0, 1 << bits, (O, G))
    return quantized_pack(q, (r.random((O, G)) + 0.5).astype(np.float32), zero, bits, group)


def check(op, x, w, bias, **options):
    want = getattr(ops, op)(x.astype(np.float64), w._replace(scale=w.scale.astype(np.float64)), bias, **options)
    got = getattr(CPU, op)(x, w, bias, **options)
    assert got.dtype == np.float32
    assert got.shape == want.shape
    largest = np.abs(x).max(initial=0) * (1 << w.bits) * w.scale.max() * w.inputs
    assert np.abs(got - want).max(initial=0) <= 8 * EPS * largest / max(w.inputs, 1) ** 0.5


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("O", "I", "group"), SHAPES)
def test_products_are_the_references(O, I, group, bits, num_threads, monkeypatch):
    monkeypatch.setattr(rows, "WORTH", 0)
    w, r = drawn(O, I, group, bits), np.random.default_rng(1)
    before = threads.num_threads()
    threads.set_num_threads(num_threads)
    try:
        for N in (0, 1, 3, 8, 9, 40):  # few rows and many go different ways
            x = r.standard_normal((N, I)).astype(np.float32)
            for bias in (None, r.standard_normal(O).astype(np.float32)):
                check("quantized_linear", x, w, bias)
                check("integer_linear", x, w, bias)
                check("integer_linear", x, w, bias, whole=True)
    finally:
        threads.set_num_threads(before)


@pytest.mark.parametrize("whole", [False, True])
def test_activations_round_as_the_references_do(whole):
    x = np.random.default_rng(3).standard_normal((5, 150)).astype(np.float32)
    x[1], x[2, :3], x[3, 64:128] = 0, [127, 0.5, 1.5], 1e-30
    x[4] *= 1e30
    expected, steps = round_activations(x, whole)
    got, step = np.empty((5, 192), np.int8), np.empty((5, 3), np.float32)
    quantized.round_rows(0, 5, x, whole, 150, got, step, np.empty((5, 1), np.float32))
    assert np.array_equal(step, steps)
    assert np.array_equal(got, expected)


def test_float64_goes_to_the_reference():
    w = drawn(3, 10, 10, 8)
    x = np.random.default_rng(0).standard_normal((2, 10))
    assert np.array_equal(CPU.integer_linear(x, w), ops.integer_linear(x, w))


WITHOUT = """
import numpy as np
from minillm import backend, ops
from minillm.ops.quantized import quantized_pack
r = np.random.default_rng(0)
for bits in (4, 8):
    q, zero = r.integers(0, 1 << bits, (5, 200)), r.integers(0, 1 << bits, (5, 4))
    w = quantized_pack(q, r.random((5, 4)).astype(np.float32), zero, bits, 64)
    x = r.standard_normal((2, 200)).astype(np.float32)
    got, want = backend.load("cpu").integer_linear(x, w), ops.integer_linear(x, w)
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max(), bits
print("same")
"""


def test_a_processor_without_the_instruction_gives_the_same(tmp_path):
    env = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=env, capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr
