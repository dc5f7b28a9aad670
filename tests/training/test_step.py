"""A step's gradient does not depend on how its rows are cut into micro-batches or spread over threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig
from minillm.datasets.sampler import Batch
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.ops.cross_entropy import IGNORE
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient, split_rows

CONFIG = ModelConfig(vocab_size=31, context_len=8, num_layers=2, num_heads=2, channels=16)


def model_of(config=CONFIG):
    return Model(config, initialise(config, 0, np.float64), ops)


def batch_of(lengths, T=8):
    """Rows whose targets beyond their length are ignored."""
    generator = np.random.default_rng(0)
    ids, targets = generator.integers(0, 31, (2, len(lengths), T))
    for row, length in zip(targets, lengths, strict=True):
        row[length:] = IGNORE
    return Batch(ids, targets)


def gradient(model, batches, **options):
    grads = model.weights.zeros_like()
    grads.vector.fill(np.nan)  # whatever was there before must not matter
    loss, count = mean_gradient(model, batches, grads, next_token, **options)
    return loss, count, grads.vector


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_micro_batches_of_any_size_weigh_every_token_the_same(size):
    model, batch = model_of(), batch_of([5, 1, 8, 0, 2])
    loss, count, grads = gradient(model, split_rows(batch, size))
    whole = gradient(model, [batch])
    assert count == whole[1] == 16
    assert loss == pytest.approx(whole[0], rel=1e-12)
    np.testing.assert_allclose(grads, whole[2], rtol=1e-9, atol=1e-14)


def test_rows_are_cut_in_order_and_none_is_lost():
    parts = split_rows(batch_of([8] * 5), 2)
    assert [len(part.ids) for part in parts] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), batch_of([8] * 5).ids)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_threads_give_the_same_bytes_as_one_after_another(dropout):
    model = model_of(replace(CONFIG, dropout=dropout))
    batches = split_rows(batch_of([8, 3, 5, 1]), 1)
    plain = gradient(model, batches, seed=1, step=2)
    for num_threads in (1, 2, 4):
        with ThreadPoolExecutor(num_threads) as pool:
            threaded = gradient(model, batches, seed=1, step=2, run_all=pool.map)
        assert plain[0] == threaded[0]
        np.testing.assert_array_equal(plain[2], threaded[2])


def test_recomputation_changes_nothing():
    model = model_of(replace(CONFIG, dropout=0.3))
    plain = gradient(model, [batch_of([8, 4])], seed=1)
    np.testing.assert_array_equal(plain[2], gradient(model, [batch_of([8, 4])], seed=1, recompute=True)[2])


def test_every_micro_batch_of_every_step_draws_dropout_masks_of_its_own():
    model = model_of(replace(CONFIG, dropout=0.5))
    batch = batch_of([8])
    losses = [gradient(model, [batch], step=step)[0] for step in range(4)]
    losses.append(gradient(model, [batch], seed=1)[0])
    assert len(set(losses)) == 5
    twice = gradient(model, [batch, batch])[0]
    assert twice == pytest.approx((losses[0] + losses[1]) / 2), "micro-batch 1 of 2 draws as step 1 of 1"


def test_without_any_target_the_gradient_is_zero_and_the_loss_too():
    loss, count, grads = gradient(model_of(), [batch_of([0, 0])])
    assert (loss, count) == (0.0, 0)
    assert not grads.any()


def test_rows_do_not_leak_into_each_other():
    model, batch = model_of(), batch_of([8, 8])
    other = Batch(batch.ids.copy(), batch.targets)
    other.ids[1] = (other.ids[1] + 1) % 31
    np.testing.assert_array_equal(model.logits(batch.ids)[0], model.logits(other.ids)[0])
