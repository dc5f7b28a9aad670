"""AdamW against PyTorch and against its own formula."""

import sys

import numpy as np
import pytest

from minillm.ops import adamw
from minillm.ops.adamw import CHUNK

SETTINGS = {"lr": 3e-3, "decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_thirty_steps_equal_pytorch(rng, dtype, rtol):
    """float32: 30 steps of about four roundings (2^-24 each) in weights that are around 1 give 7e-6."""
    torch = pytest.importorskip("torch")
    weights = rng.standard_normal(CHUNK + 33).astype(dtype)
    parameter = torch.nn.Parameter(torch.tensor(weights))
    peer = torch.optim.AdamW([parameter], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, 31):
        grads = (rng.standard_normal(weights.size) * 10.0 ** rng.integers(-6, 2)).astype(dtype)
        lr = 3e-3 * step / 30
        peer.param_groups[0]["lr"] = lr
        parameter.grad = torch.tensor(grads)
        peer.step()
        adamw(weights, grads, mean, square, step, **SETTINGS | {"lr": lr})
    state = peer.state[parameter]
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=rtol, atol=rtol)
    np.testing.assert_allclose(mean, state["exp_avg"].numpy(), rtol=rtol, atol=rtol)
    np.testing.assert_allclose(square, state["exp_avg_sq"].numpy(), rtol=rtol, atol=rtol)
    assert weights.dtype == mean.dtype == square.dtype == dtype


def test_the_first_step_moves_every_weight_by_the_learning_rate_against_its_gradient(rng):
    """Bias correction makes m / sqrt(v) the sign of the gradient at step 1."""
    weights = rng.standard_normal(33)
    grads = rng.standard_normal(33)
    before = weights.copy()
    adamw(weights, grads, np.zeros(33), np.zeros(33), 1, **SETTINGS | {"decay": 0.0})
    np.testing.assert_allclose(weights, before - 3e-3 * np.sign(grads), atol=1e-8)


def test_zero_gradients_shrink_the_weights_by_the_decay_alone(rng):
    weights = rng.standard_normal(33)
    before = weights.copy()
    adamw(weights, np.zeros(33), np.zeros(33), np.zeros(33), 1, **SETTINGS)
    np.testing.assert_array_equal(weights, before * (1 - 3e-3 * 0.1))


def test_gradients_are_read_only_and_an_empty_slice_is_fine(rng):
    grads = rng.standard_normal(5)
    grads.flags.writeable = False
    adamw(np.ones(5), grads, np.zeros(5), np.zeros(5), 1, **SETTINGS)
    adamw(np.ones(0), np.ones(0), np.ones(0), np.ones(0), 1, **SETTINGS)


def test_chunks_do_not_change_the_answer(rng, monkeypatch):
    start, grads = rng.standard_normal(77), rng.standard_normal(77)
    answers = []
    module = sys.modules["minillm.ops.adamw"]  # `minillm.ops.adamw` itself is the function
    for chunk in (77, 10):
        monkeypatch.setattr(module, "CHUNK", chunk)
        weights = start.copy()
        adamw(weights, grads, np.zeros(77), np.zeros(77), 3, **SETTINGS)
        answers.append(weights)
    np.testing.assert_array_equal(*answers)


def test_steps_count_from_one():
    with pytest.raises(AssertionError, match="from 1: got 0"):
        adamw(np.ones(1), np.ones(1), np.ones(1), np.ones(1), 0, **SETTINGS)
