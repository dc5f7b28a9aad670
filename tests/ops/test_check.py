"""The checker itself: it accepts right ops and rejects each kind of wrong one."""

import numpy as np
import pytest

from minillm import ops
from minillm.ops.check import check_gradients

RNG = np.random.default_rng
X, W = RNG(0).standard_normal((3, 5)), RNG(1).standard_normal(5)
NORM = (ops.rms_norm_forward, ops.rms_norm_backward)


def wrong(change):
    """rms_norm with its gradients changed."""
    return lambda dy, saved: change(*ops.rms_norm_backward(dy, saved))


def test_the_right_pair_passes_and_is_counted():
    assert check_gradients(*NORM, (X, W), RNG(2)) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda dx, dw: (-dx, dw),
        lambda dx, dw: (dx, 1.0001 * dw),
        lambda dx, dw: (dx, np.zeros_like(dw)),
        lambda dx, dw: (dx + 1e-5, dw),
        lambda dx, dw: (np.roll(dx, 1, axis=0), dw),
        lambda dx, dw: (dx * np.array([1, 1, 1, 1, 0]), dw),
        lambda dx, dw: (dx.astype(np.float32), dw),
        lambda dx, dw: (dx, dw[None]),
        lambda dx, dw: (dx * np.nan, dw),
        lambda dx, dw: (dx, None),
        lambda dx, dw: dx,
    ],
)
def test_a_wrong_gradient_is_rejected(change):
    with pytest.raises((AssertionError, AttributeError)):
        check_gradients(ops.rms_norm_forward, wrong(change), (X, W), RNG(2))


def test_a_gradient_that_is_right_only_for_a_constant_upstream_gradient_is_rejected():
    def backward(dy, saved):
        return ops.rms_norm_backward(np.full_like(dy, dy.mean()), saved)

    with pytest.raises(AssertionError, match="finite differences"):
        check_gradients(ops.rms_norm_forward, backward, (X, W), RNG(2))


def test_a_dropped_mean_term_is_rejected():
    def backward(dy, saved):
        x, weight, rstd = saved
        return rstd * dy * weight, np.sum(dy * x * rstd, axis=0)

    with pytest.raises(AssertionError, match="input 0"):
        check_gradients(ops.rms_norm_forward, backward, (X, W), RNG(2))


def test_a_gradient_for_integers_is_rejected():
    with pytest.raises(AssertionError, match="no gradient"):
        check_gradients(
            ops.embedding_forward,
            lambda dy, saved: (np.zeros(3), ops.embedding_backward(dy, saved)[1]),
            (np.array([0, 2, 1]), X),
            RNG(2),
        )
