"""Sampling: what each setting keeps, and that draws follow the distribution."""

import numpy as np
import pytest

from minillm.config import SamplingConfig
from minillm.inference.sampler import distribution, draw, sample

LOGITS = np.array([1.0, 3.0, 2.0, 0.0])
P = np.exp(LOGITS) / np.exp(LOGITS).sum()


class NoDraws:
    """A generator nobody may use."""

    def random(self):
        raise AssertionError("greedy sampling must not draw")


def kept(**settings):
    return np.flatnonzero(distribution(LOGITS, [], SamplingConfig(**settings))).tolist()


def test_temperature_one_is_the_softmax_and_others_sharpen_or_flatten_it():
    np.testing.assert_allclose(distribution(LOGITS, [], SamplingConfig(temperature=1.0)), P, rtol=1e-14)
    half = distribution(LOGITS, [], SamplingConfig(temperature=0.5))
    np.testing.assert_allclose(half, P**2 / np.sum(P**2), rtol=1e-13)


def test_temperature_zero_takes_the_best_token_and_the_lowest_id_of_a_tie_without_a_draw():
    greedy = SamplingConfig(temperature=0.0)
    assert sample(LOGITS, [], greedy, NoDraws()) == 1
    assert sample(np.array([0.0, 5.0, 5.0, 1.0]), [], greedy, NoDraws()) == 1


@pytest.mark.parametrize("temperature", [1e-40, 5e-324])
def test_a_tiny_temperature_equals_greedy(temperature):
    np.testing.assert_array_equal(distribution(LOGITS, [], SamplingConfig(temperature=temperature)), [0, 1, 0, 0])


def test_top_k_keeps_that_many_and_more_than_there_are_keeps_all():
    assert kept(top_k=1) == [1]
    assert kept(top_k=2) == [1, 2]
    assert kept(top_k=0) == kept(top_k=4) == kept(top_k=99) == [0, 1, 2, 3]


def test_top_p_keeps_the_token_that_reaches_p():
    # sorted probabilities at temperature 1: 0.644, 0.237, 0.087, 0.032
    expected = {
        1e-9: [1],
        0.64: [1],
        0.65: [1, 2],
        0.88: [1, 2],
        0.89: [0, 1, 2],
        0.97: [0, 1, 2, 3],
        1.0: [0, 1, 2, 3],
    }
    assert {p: kept(temperature=1.0, top_p=p) for p in expected} == expected


def test_min_p_keeps_tokens_near_enough_to_the_best():
    assert kept(temperature=1.0, min_p=0.3) == [1, 2]
    assert kept(temperature=1.0, min_p=1.0) == [1]
    assert kept(temperature=1.0, min_p=0.0) == [0, 1, 2, 3]


def test_truncations_combine_and_what_is_left_is_renormalised():
    p = distribution(LOGITS, [], SamplingConfig(temperature=1.0, top_k=3, top_p=0.9))
    # of the three kept by top-k, the first two hold 0.91 of their mass
    np.testing.assert_allclose(p, [0, P[1], P[2], 0] / (P[1] + P[2]), rtol=1e-13)


def test_equally_likely_tokens_stay_in_order_of_id():
    p = distribution(np.zeros(5), [], SamplingConfig(top_k=2))
    np.testing.assert_array_equal(p, [0.5, 0.5, 0, 0, 0])


def test_repetition_penalty_makes_seen_tokens_less_likely_once_each_whatever_their_sign():
    p = distribution(np.array([2.0, -2.0, 0.0]), [0, 1, 1, 1], SamplingConfig(temperature=1.0, repetition_penalty=1.5))
    expected = np.exp([2 / 1.5, -3.0, 0.0])
    np.testing.assert_allclose(p, expected / expected.sum(), rtol=1e-13)


@pytest.mark.parametrize("u", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_a_draw_never_lands_on_a_token_without_probability(u):
    for p in ([0, 0.3, 0, 0.7, 0], [0, 0, 1.0], np.float64([0.1] * 9 + [0])):
        assert np.asarray(p)[draw(np.asarray(p), u)] > 0


def test_draws_follow_the_distribution():
    p, n = np.array([0.5, 0.0, 0.2, 0.3]), 20_000
    generator = np.random.default_rng(0)
    counts = np.bincount([draw(p, generator.random()) for _ in range(n)], minlength=4)
    chi_square = np.sum((counts - n * p)[p > 0] ** 2 / (n * p)[p > 0])
    assert counts[1] == 0
    assert chi_square < 13.8  # 0.1% point for two degrees of freedom


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0 .* got -0.1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0.4}, "top_k must be an integer"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": ("",)}, "non-empty"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**settings)


@pytest.mark.parametrize("bad", [[0.0, np.nan], [np.nan, 0.0], [0.0, np.inf], [-np.inf, -np.inf]])
def test_damaged_logits_are_reported_instead_of_sampled(bad):
    with pytest.raises(ValueError, match="NaN or infinity"):
        sample(np.array(bad), [], SamplingConfig(), np.random.default_rng(0))


def test_a_logit_of_minus_infinity_is_a_token_that_is_never_drawn():
    p = distribution(np.array([0.0, -np.inf, 0.0]), [], SamplingConfig(temperature=1.0))
    np.testing.assert_array_equal(p, [0.5, 0, 0.5])


def test_a_single_stop_string_is_not_a_list_of_letters():
    assert SamplingConfig(stop="abc").stop == ("abc",)
