"""What finite differences cannot tell: conventions at the edges, exact values, and errors that teach."""

from types import SimpleNamespace

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig
from minillm.ops.attention import visible
from minillm.ops.cross_entropy import IGNORE
from minillm.ops.rope import half_split_from_interleaved, interleaved_from_half_split, rope_tables

RNG = np.random.default_rng


def test_causal_mask_is_aligned_at_the_end():
    assert visible(2, 5)[0, 0, 0].astype(int).tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert visible(5, 2)[0, 0, 0].astype(int).tolist() == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]


def test_segments_hide_other_documents_and_padding():
    mask = visible(4, 4, np.array([[-1, 0, 0, 1]]))[0, 0, 0].astype(int).tolist()
    assert mask == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]


def test_a_query_that_sees_nothing_gives_zero_and_disturbs_no_other():
    q, k, v = (RNG(i).standard_normal((1, 3, 2, 4)) for i in range(3))
    y, saved = ops.attention_forward(q, k, v, np.array([[-1, 0, 0]]))
    assert not y[0, 0].any()
    alone, _ = ops.attention_forward(q[:, 1:], k[:, 1:], v[:, 1:])
    np.testing.assert_allclose(y[:, 1:], alone, rtol=1e-13)
    dq, dk, dv = ops.attention_backward(RNG(4).standard_normal(y.shape), saved)
    assert not dq[0, 0].any()
    assert not dk[0, 0].any()
    assert not dv[0, 0].any()
    assert all(np.isfinite(d).all() for d in (dq, dk, dv))


def test_grouped_heads_share_neighbouring_queries():
    q, k = RNG(0).standard_normal((1, 5, 6, 4)), RNG(1).standard_normal((1, 5, 2, 4))
    grouped, _ = ops.attention_forward(q, k, k)
    spread, _ = ops.attention_forward(q, np.repeat(k, 3, axis=2), np.repeat(k, 3, axis=2))
    np.testing.assert_allclose(grouped, spread, rtol=1e-13)


def test_attention_to_one_key_returns_its_value_whatever_the_score():
    v = RNG(1).standard_normal((1, 1, 1, 3))
    y, _ = ops.attention_forward(np.full((1, 1, 1, 3), 1e30), np.full((1, 1, 1, 3), 1e30), v)
    np.testing.assert_array_equal(y, v)


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3)])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_row_without_choices_is_all_zero_and_has_no_gradient(name, shape):
    x = np.array([[-np.inf, -np.inf, -np.inf], [0.0, -np.inf, 0.0]]).reshape(shape)
    y, saved = getattr(ops, f"{name}_forward")(x)
    expected = np.array([[0, 0, 0], [0.5, 0, 0.5]]).reshape(shape)
    np.testing.assert_array_equal(y if name == "softmax" else np.exp(y), expected)
    dx = getattr(ops, f"{name}_backward")(RNG(0).standard_normal(shape), saved).reshape(2, 3)
    assert not dx[0].any()
    assert np.isfinite(dx[1, [0, 2]]).all()


def test_nan_in_a_softmax_row_spoils_that_row_alone():
    x = np.array([[0.0, np.nan, 1.0], [0.0, 0.0, 0.0]])
    for forward in (ops.softmax_forward, ops.log_softmax_forward):
        y, _ = forward(x)
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1]).all()


def test_softmax_is_unmoved_by_a_shift_and_does_not_overflow():
    x = RNG(0).standard_normal((3, 5))
    np.testing.assert_allclose(ops.softmax_forward(x + 1e4)[0], ops.softmax_forward(x)[0], rtol=1e-10)
    assert np.isfinite(ops.log_softmax_forward(np.array([[1e300, -1e300]]))[0]).all()


def test_cross_entropy_of_equal_logits_is_log_v_and_ignored_targets_count_for_nothing():
    logits = np.zeros((2, 3, 7))
    targets = np.array([[0, IGNORE, 6], [IGNORE, 1, 2]])  # more scored than ignored
    losses, saved = ops.cross_entropy_forward(logits, targets)
    np.testing.assert_allclose(losses, np.log(7) * np.array([[1, 0, 1], [0, 1, 1]]), rtol=1e-14)
    assert ops.num_targets(targets) == 4
    dlogits, none = ops.cross_entropy_backward(np.ones_like(losses), saved)
    assert none is None
    assert not dlogits[targets == IGNORE].any()


@pytest.mark.parametrize("V", [1, 97, 128])
def test_ignore_does_not_wrap_around_to_a_real_column(V):
    logits = RNG(0).standard_normal((3, V))
    losses, saved = ops.cross_entropy_forward(logits, np.array([IGNORE, V // 2, IGNORE]))
    assert losses[0] == losses[2] == 0
    dlogits, _ = ops.cross_entropy_backward(np.ones(3), saved)
    assert not dlogits[[0, 2]].any()


def test_ignored_rows_stay_harmless_even_when_their_logits_are_not_finite():
    logits = np.array([[np.nan, 1.0, 2.0], [0.0, 1.0, 2.0]])
    losses, saved = ops.cross_entropy_forward(logits, np.array([IGNORE, 1]))
    dlogits, _ = ops.cross_entropy_backward(np.ones(2), saved)
    assert losses[0] == 0
    assert not dlogits[0].any()
    assert np.isfinite(dlogits).all()


def test_embedding_gradient_sums_over_repeats_like_a_plain_loop():
    ids, dy = np.array([[2, 2, 0], [2, 4, 2]]), RNG(0).standard_normal((2, 3, 5))
    expected = np.zeros((6, 5))
    np.add.at(expected, ids, dy)
    _, saved = ops.embedding_forward(ids, np.zeros((6, 5)))
    np.testing.assert_allclose(ops.embedding_backward(dy, saved)[1], expected, rtol=1e-13)


def test_the_norms_add_by_default_what_the_model_adds():
    x, weight, eps = 1e-3 * RNG(0).standard_normal((3, 5)), np.ones(5), ModelConfig().norm_eps
    np.testing.assert_array_equal(ops.rms_norm_forward(x, weight)[0], ops.rms_norm_forward(x, weight, eps)[0])
    layer_norm = ops.layer_norm_forward(x, weight, weight)[0]
    np.testing.assert_array_equal(layer_norm, ops.layer_norm_forward(x, weight, weight, eps)[0])


def test_rope_scores_depend_on_distance_alone():
    q, k = RNG(0).standard_normal((2, 1, 1, 1, 8))
    cos, sin = rope_tables(50, 8, dtype=np.float64)

    def score(i, j):
        a, _ = ops.rope_forward(q, np.array([[i]]), cos, sin)
        b, _ = ops.rope_forward(k, np.array([[j]]), cos, sin)
        return float(np.sum(a * b))

    assert score(9, 4) == pytest.approx(score(41, 36), rel=1e-12)
    assert score(9, 4) != pytest.approx(score(9, 5), rel=1e-3)


def test_rope_turns_the_first_pair_by_the_position_and_later_pairs_more_slowly():
    cos, sin = rope_tables(3, 4, theta=100.0, dtype=np.float64)
    x = np.array([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    y, _ = ops.rope_forward(x, np.array([[2]]), cos, sin)
    np.testing.assert_allclose(y.ravel(), [np.cos(2), np.cos(0.2), np.sin(2), np.sin(0.2)], rtol=1e-12)


def test_interleaved_weights_give_the_same_scores_once_reordered():
    D, cos_sin = 8, rope_tables(40, 8, dtype=np.float64)
    wq, wk, x = RNG(0).standard_normal((3, D, D))

    def interleaved(h, position):
        z = (h[..., 0::2] + 1j * h[..., 1::2]) * np.exp(1j * position * 10_000.0 ** (-np.arange(0, D, 2) / D))
        return np.stack([z.real, z.imag], -1).reshape(h.shape)

    def half_split(h, position):
        return ops.rope_forward(h.reshape(1, 1, 1, D), np.array([[position]]), *cos_sin)[0].ravel()

    expected = interleaved(wq @ x[0], 31) @ interleaved(wk @ x[1], 7)
    got = half_split(half_split_from_interleaved(wq) @ x[0], 31) @ half_split(half_split_from_interleaved(wk) @ x[1], 7)
    assert got == pytest.approx(expected, rel=1e-11)
    np.testing.assert_array_equal(interleaved_from_half_split(half_split_from_interleaved(wq)), wq)


def test_the_two_gelus_differ_by_less_than_a_thousandth():
    x = np.linspace(-6, 6, 1001)
    difference = np.abs(ops.gelu_tanh_forward(x)[0] - ops.gelu_erf_forward(x)[0]).max()
    assert 1e-5 < difference < 1e-3


def test_dropout_keeps_the_mean_and_draws_only_from_its_generator():
    x = np.ones((200, 300))
    y, (keep, _) = ops.dropout_forward(x, 0.25, RNG(5))
    assert np.count_nonzero(y) == np.count_nonzero(keep)
    assert abs(np.mean(keep) - 0.75) < 4 * (0.25 * 0.75 / x.size) ** 0.5
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.75])
    np.testing.assert_array_equal(y, ops.dropout_forward(x, 0.25, RNG(5))[0])


def test_dropout_at_rate_zero_keeps_even_what_draws_the_smallest_number():
    smallest = SimpleNamespace(random=np.zeros)  # a real generator returns exactly 0 once in 2^24 draws
    np.testing.assert_array_equal(ops.dropout_forward(np.ones(5), 0.0, smallest)[0], np.ones(5))


def attention(q, k, v=None, segments=None):
    """attention_forward of ones in these shapes."""
    return ops.attention_forward(
        np.ones(q), np.ones(k), np.ones(v or k), None if segments is None else np.zeros(segments, int)
    )


FAULTS = {
    "width of x": (lambda: ops.linear_forward(np.ones((2, 3)), np.ones((4, 5))), "last axis of x must be 5"),
    "width of bias": (lambda: ops.linear_forward(np.ones((2, 5)), np.ones((4, 5)), np.ones(3)), "bias must be 4"),
    "sum of shapes": (lambda: ops.add(np.ones((2, 3)), np.ones(3)), r"x \(2, 3\), y \(3,\)"),
    "sum in place": (lambda: ops.add_into(np.ones((2, 3)), np.ones(3)), r"total \(2, 3\), part \(3,\)"),
    "gate and up": (lambda: ops.swiglu_forward(np.ones(3), np.ones(4)), "shapes must be equal"),
    "id too large": (lambda: ops.embedding_forward(np.array([1, 7]), np.ones((7, 2))), r"in \[0, 7\): got 7"),
    "id negative": (lambda: ops.embedding_forward(np.array([-1]), np.ones((7, 2))), "got -1"),
    "ids of floats": (lambda: ops.embedding_forward(np.ones(2), np.ones((7, 2))), "must be integers: got float64"),
    "width of the norm": (lambda: ops.rms_norm_forward(np.ones((2, 3)), np.ones(4)), "must be 4"),
    "width of layer norm": (
        lambda: ops.layer_norm_forward(np.ones((2, 1)), np.ones(4), np.ones(4)),  # NumPy alone would stretch x
        "last axis of x must be 4",
    ),
    "norm bias": (lambda: ops.layer_norm_forward(np.ones((2, 3)), np.ones(3), np.ones(2)), "bias must be 3"),
    "target too large": (lambda: ops.cross_entropy_forward(np.ones((1, 4)), np.array([4])), r"or -100 \(ignored\)"),
    "target minus one": (lambda: ops.cross_entropy_forward(np.ones((1, 4)), np.array([-1])), "got -1"),
    "target shape": (lambda: ops.cross_entropy_forward(np.ones((2, 4)), np.array([[1]])), "one target per row"),
    "heads": (lambda: ops.attention_forward(*(np.ones((1, 2, h, 4)) for h in (3, 2, 2))), "3 query heads"),
    "head sizes": (lambda: ops.attention_forward(*(np.ones((1, 2, 2, d)) for d in (4, 5, 5))), "must be"),
    "queries without heads": (lambda: attention((1, 2, 4), (1, 2, 2, 4)), r"q must be \(B, T, H, D\)"),
    "keys without heads": (lambda: attention((1, 2, 2, 4), (1, 2, 4)), r"q must be \(B, T, H, D\)"),
    "fewer values": (lambda: attention((1, 2, 2, 4), (1, 2, 2, 4), (1, 2, 1, 4)), "k and v both"),
    "other batch": (lambda: attention((1, 2, 2, 4), (3, 2, 2, 4)), "k and v both"),
    "segments of fewer keys": (lambda: attention((1, 3, 2, 4), (1, 2, 2, 4), segments=(1, 2)), "no more queries"),
    "segments": (
        lambda: ops.attention_forward(*[np.ones((1, 2, 2, 4))] * 3, np.zeros((1, 3), int)),
        r"must be \(B, S\) = \(1, 2\)",
    ),
    "odd head": (lambda: rope_tables(4, 5), "even"),
    "position": (lambda: ops.rope_forward(np.ones((1, 1, 1, 4)), np.array([[9]]), *rope_tables(9, 4)), "got 9"),
    "rope width": (lambda: ops.rope_forward(np.ones((1, 1, 1, 6)), np.array([[0]]), *rope_tables(9, 4)), "must be 4"),
    "drop all": (lambda: ops.dropout_forward(np.ones(3), 1.0, RNG(0)), r"in \[0, 1\): got 1.0"),
    "drop negative": (lambda: ops.dropout_forward(np.ones(3), -0.1, RNG(0)), "got -0.1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_told_what_came_and_what_is_allowed(fault):
    action, message = FAULTS[fault]
    with pytest.raises((ValueError, TypeError), match=message):
        action()
