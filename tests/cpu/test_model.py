"""The whole model on the cpu backend: the reference's losses and gradients, the same bytes on any number of threads."""

from dataclasses import replace

import numpy as np
import pytest

from minillm import backend, store, threads
from minillm.config import ModelConfig, OptimConfig
from minillm.datasets.sampler import Batch
from minillm.model.model import Model
from minillm.model.run import Segmented, positions_of, run_of
from minillm.model.transformer import transformer_backward, transformer_forward
from minillm.model.weights import initialise
from minillm.ops.cross_entropy import IGNORE
from minillm.optim import Optimizer
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient, split_rows

SHAPE = {"vocab_size": 97, "context_len": 70, "num_layers": 3, "channels": 48}
CONFIGS = {
    "gpt2": ModelConfig(family="gpt2", num_heads=4, **SHAPE),
    "llama": ModelConfig(num_heads=6, num_kv_heads=2, **SHAPE),
    "llama, untied, with dropout": ModelConfig(num_heads=4, tied=False, dropout=0.2, **SHAPE),
}
BOUND = 2e-5  # of the largest element of a gradient: float32 through three layers and back, sums of up to 400 terms


@pytest.fixture(autouse=True)
def as_before():
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)


def batch_of(B=5, T=67):
    generator = np.random.default_rng(0)
    ids, targets = generator.integers(0, 97, (2, B, T))
    targets[generator.random((B, T)) < 0.1] = IGNORE
    return Batch(ids, targets)


def gradient(config, name, size=2, **options):
    """Loss, and each array's gradient."""
    model = Model(config, initialise(config, 0), backend.load(name))
    grads = model.weights.zeros_like()
    loss, _ = mean_gradient(model, split_rows(batch_of(), size), grads, next_token, **options)
    return loss, grads.named()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_are_the_references(name, recompute):
    want_loss, want = gradient(CONFIGS[name], "numpy")
    loss, grads = gradient(CONFIGS[name], "cpu", recompute=recompute, run_all=threads.run_all)
    assert loss == pytest.approx(want_loss, rel=1e-6)
    for array, expected in want.items():
        if name == "gpt2" and array.endswith("key.bias"):
            continue  # exactly 0 in exact arithmetic: softmax does not see it
        assert np.abs(grads[array] - expected).max() <= BOUND * np.abs(expected).max(), array


@pytest.mark.parametrize("size", [1, 2, 5])  # 5: one micro-batch, whose ops are spread themselves
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_have_the_same_bytes_on_any_number_of_threads(name, size):
    answers = []
    for num in (1, 2, 3):
        threads.set_num_threads(num)
        answers.append(gradient(CONFIGS[name], "cpu", size, run_all=threads.run_all))
    for loss, grads in answers[1:]:
        assert loss == answers[0][0]
        for array, expected in answers[0][1].items():
            np.testing.assert_array_equal(grads[array], expected, err_msg=array)


def test_twenty_steps_follow_the_reference():
    config, curves = CONFIGS["llama"], []
    for name in ("numpy", "cpu"):
        model = Model(config, initialise(config, 0), backend.load(name))
        optimizer = Optimizer(model.weights, OptimConfig(warmup_steps=0), 20, model.ops)
        grads, losses = model.weights.zeros_like(), []
        for _ in range(20):
            losses.append(mean_gradient(model, split_rows(batch_of(), 3), grads, next_token)[0])
            optimizer.step(grads)
        curves.append(losses)
    assert curves[0][-1] < curves[0][0] - 1
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-4)


def test_packed_documents_are_attended_as_in_the_reference():
    config, batch = CONFIGS["llama"], batch_of(2)
    segments = np.repeat([[0, 1, 2, -1], [0, 0, 1, 1]], [20, 17, 20, 10], axis=1)
    found = []
    for name in ("numpy", "cpu"):
        weights, ops = initialise(config, 0), backend.load(name)
        run = run_of(config, ops, positions_of(2, 67), Segmented(ops, segments))
        grads = weights.zeros_like()
        logits, saved = transformer_forward(batch.ids, weights.tree, run)
        kept = logits.copy()
        transformer_backward(logits, saved, grads.tree, run)
        found.append((kept, grads.vector))
    for got, want in zip(found[1], found[0], strict=True):
        assert np.abs(got - want).max() <= BOUND * np.abs(want).max()


def test_a_second_step_takes_no_new_memory():
    config = replace(CONFIGS["llama"], context_len=256)
    model = Model(config, initialise(config, 0), backend.load("cpu"))
    grads, batch = model.weights.zeros_like(), batch_of(4, 256)
    for step in range(4):
        mean_gradient(model, split_rows(batch, 2), grads, next_token)
        if step == 0:
            kept = sum(store.kept_bytes())
        assert sum(store.kept_bytes()) == kept
