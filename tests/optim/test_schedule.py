"""The learning rate over a run."""

import itertools
import math

import pytest

from minillm.config import OptimConfig
from minillm.optim import learning_rate_factor

GRID = list(itertools.product(["cosine", "wsd"], [0, 1, 5, 50], [1, 2, 5, 6, 7, 100], [0.0, 0.1, 1.0], [0.0, 0.2, 1.0]))


def factors(steps, until=None, **settings):
    config = OptimConfig(**settings)
    return [learning_rate_factor(step, steps, config) for step in range(until or steps)]


@pytest.mark.parametrize(("schedule", "warmup", "steps", "final", "decay"), GRID)
def test_what_the_docstring_says_holds(schedule, warmup, steps, final, decay):
    settings = {"schedule": schedule, "warmup_steps": warmup, "final_fraction": final, "decay_fraction": decay}
    lr = factors(steps, 2 * steps + 3, **settings)
    peak = min(warmup, steps - 1)
    assert all(math.isfinite(f) and 0 < f <= 1 for f in lr[:steps])
    assert lr[peak] == 1
    assert all(a < b for a, b in itertools.pairwise(lr[: peak + 1]))
    assert all(a >= b for a, b in itertools.pairwise(lr[peak:]))
    assert all(f >= final for f in lr[peak:])
    assert all(f == final for f in lr[steps:])


def test_warm_up_is_a_straight_line_that_does_not_start_at_zero():
    assert factors(100, 5, warmup_steps=4) == [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1]


def test_cosine_is_half_way_down_half_way_through():
    lr = factors(110, warmup_steps=10, final_fraction=0.2)
    assert lr[60] == pytest.approx(0.6)
    assert lr[35] == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert lr[109] == pytest.approx(0.2 + 0.8 * (1 - math.cos(math.pi / 100)) / 2)


def test_wsd_is_level_and_then_a_straight_line():
    lr = factors(50, schedule="wsd", warmup_steps=3, decay_fraction=0.2, final_fraction=0.5)
    assert lr[3:41] == [1] * 38
    assert lr[40:] == pytest.approx([1 - 0.05 * i for i in range(10)])


def test_wsd_decay_does_not_start_before_the_warm_up_ends():
    lr = factors(10, schedule="wsd", warmup_steps=6, decay_fraction=1.0, final_fraction=0.0)
    assert lr == pytest.approx([1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7, 1, 0.75, 0.5, 0.25])


def test_a_negative_step_or_an_empty_run_is_an_error():
    with pytest.raises(ValueError, match="step must be an integer of at least 0"):
        learning_rate_factor(-1, 5, OptimConfig())
    with pytest.raises(ValueError, match="steps must be an integer of at least 1"):
        learning_rate_factor(0, 0, OptimConfig())
