"""Linear layers of small integers: what is packed comes back, sums are exact, and awkward widths change nothing."""

import numpy as np
import pytest

from minillm.ops.quantized import (
    BLOCK,
    dequantize,
    integer_linear,
    quantized_linear,
    quantized_pack,
    quantized_unpack,
    round_activations,
)

SHAPES = [
    (1, 1, 1),
    (3, 7, 7),
    (2, 10, 4),
    (5, 33, 33),
    (4, 64, 32),
    (3, 100, 32),
    (6, 130, 64),
    (2, 192, 192),
    (0, 5, 5),
]


def drawn(O, I, group, bits, seed=0):
    """Integers, scales and zeros, and the matrix they stand for."""
    r, G = np.random.default_rng(seed), -(-I // group)
    q, zero = r.integers(0, 1 << bits, (O, I)), r.integers(0, 1 << bits, (O, G))
    scale = r.random((O, G)) + 0.5
    of = np.arange(I) // group
    return quantized_pack(q, scale, zero, bits, group), q, scale[:, of] * (q - zero[:, of])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("O", "I", "group"), SHAPES)
def test_what_is_packed_comes_back(O, I, group, bits):
    w, q, matrix = drawn(O, I, group, bits)
    assert w.shape == (O, I)
    assert np.array_equal(quantized_unpack(w), q)
    assert np.allclose(dequantize(w), matrix, rtol=1e-15)
    assert w.q.nbytes == O * -(-I // BLOCK) * BLOCK * bits // 8


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("O", "I", "group"), SHAPES)
def test_products_are_those_of_the_matrix_it_stands_for(O, I, group, bits):
    w, _, matrix = drawn(O, I, group, bits)
    r = np.random.default_rng(1)
    x, bias = r.standard_normal((2, 3, I)), r.standard_normal(O)
    assert np.allclose(quantized_linear(x, w, bias), x @ matrix.T + bias, atol=1e-9)
    assert np.array_equal(quantized_linear(x, w), quantized_linear(x, w, np.zeros(O)))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("O", "I", "group"), SHAPES)
def test_integer_products_are_those_of_the_rounded_activations(O, I, group, bits, whole):
    w, _, matrix = drawn(O, I, group, bits)
    r = np.random.default_rng(1)
    x, bias = r.standard_normal((2, 3, I)), r.standard_normal(O)
    ints, step = round_activations(x, whole)
    rounded = (ints * np.repeat(step, BLOCK, axis=-1))[..., :I]
    assert np.abs(rounded - x).max(initial=0) <= step.max(initial=0) / 2 * (1 + 1e-12)
    assert np.allclose(integer_linear(x, w, bias, whole), rounded @ matrix.T + bias, atol=1e-9)


def test_activations_that_are_integers_already_give_exact_results():
    w, _, matrix = drawn(5, 100, 100, 8)
    x = np.random.default_rng(2).integers(-127, 128, (4, 100)).astype(float)
    x[:, ::BLOCK] = 127
    assert np.allclose(integer_linear(x, w), x @ matrix.T, rtol=1e-14)


def test_one_row_of_zeros_changes_no_other_and_gives_no_nan():
    x = np.random.default_rng(0).standard_normal((3, 70))
    expected, _ = round_activations(x)
    x[1] = 0
    ints, step = round_activations(x)
    assert np.array_equal(ints[[0, 2]], expected[[0, 2]])
    assert not ints[1].any()
    assert not step[1].any()


def test_halves_round_to_even_on_both_sides():
    x = np.zeros((1, BLOCK))
    x[0, :5] = [127, 0.5, 1.5, -0.5, -2.5]
    assert round_activations(x)[0][0, :5].tolist() == [127, 0, 2, 0, -2]


def test_a_whole_row_has_one_step():
    _, step = round_activations(np.random.default_rng(0).standard_normal((2, 3 * BLOCK)), whole=True)
    assert (step == step[:, :1]).all()


def test_what_does_not_fit_together_is_refused():
    q = np.full((2, 6), 3)
    ones = np.ones((2, 2))
    with pytest.raises(ValueError, match="4 or 8 bits can be packed: got 3"):
        quantized_pack(q, ones, ones, 3, 3)
    with pytest.raises(ValueError, match=r"in groups of 4 have scales and zeros of \(2, 2\): got \(2, 1\)"):
        quantized_pack(q, ones[:, :1], ones, 4, 4)
    with pytest.raises(ValueError, match="lie from 0 to 15: got 3 to 16"):
        quantized_pack(np.array([[3, 16]]), np.ones((1, 1)), np.ones((1, 1)), 4, 2)
    w = quantized_pack(q, ones, ones, 4, 3)
    for op in (quantized_linear, integer_linear):
        with pytest.raises(ValueError, match="linear"):
            op(np.zeros((1, 5)), w)
