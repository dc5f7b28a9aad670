"""Matching hidden states: the gradient of the whole objective, and what it must not depend on."""

from dataclasses import replace

import numpy as np
import pytest

from minillm import backend, ops
from minillm.config import ModelConfig
from minillm.datasets.packing import pack
from minillm.datasets.sampler import stack
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.ops.cross_entropy import IGNORE
from minillm.tokenizer.chat import Rendered
from minillm.training.distil import matched_to, taught_by
from minillm.training.divergence import Distil
from minillm.training.hidden import match, with_projection
from minillm.training.step import mean_gradient, split_rows

V, T = 19, 10


def model_of(family, channels, seed, **settings):
    shape = ModelConfig(family=family, vocab_size=V, context_len=T, num_layers=2, num_heads=2, channels=channels,
                        init_std=0.3, **settings)  # fmt: skip
    return Model(shape, initialise(shape, seed, np.float64), ops)


def batch_of():
    """Three rows of one to three texts, some padding, about half of the targets taught."""
    r = np.random.default_rng(0)
    lengths = ((6, 4), (8,), (3, 3, 3))
    return stack([pack([Rendered(r.integers(0, V, n).tolist(), [*(r.random(n - 1) < 0.5), True]) for n in row], T)
                  for row in lengths])  # fmt: skip


def gradient(student, objective, size=2, **options):
    grads = student.weights.zeros_like()
    loss, _ = mean_gradient(student, split_rows(batch_of(), size), grads, objective, **options)
    return loss, grads


def objective_of(teacher, alpha=0.6, weight=0.7):
    return matched_to(teacher, Distil("forward", 1.5, alpha), weight)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_gradient_of_the_whole_objective_agrees_with_finite_differences(family, recompute):
    """Central differences along random directions of all that is trained, and of the projection and the rest alone.

    With a step of 1e-5 in float64 truncation and rounding are each about 1e-10 of the loss.
    """
    teacher = model_of(family, 12, 1)
    student = with_projection(model_of(family, 8, 0, tied=True), 12, 0)
    objective = objective_of(teacher)
    _, grads = gradient(student, objective, recompute=recompute)
    vector, start = student.weights.vector, student.weights.slots["projection"].start
    everywhere = np.random.default_rng(2).standard_normal(vector.size)
    behind = np.arange(vector.size) >= start
    before = vector.copy()
    for direction in (everywhere, everywhere * behind, everywhere * ~behind):
        losses = []
        for sign in (1, -1):
            vector[...] = before + sign * 1e-5 * direction
            losses.append(gradient(student, objective)[0])
        vector[...] = before
        slope = (losses[0] - losses[1]) / 2e-5
        assert abs(slope) > 1e-3
        assert np.sum(grads.vector * direction) == pytest.approx(slope, rel=1e-6)


def test_a_copy_of_its_teacher_has_nothing_to_learn():
    teacher = model_of("llama", 8, 0)
    loss, grads = gradient(with_projection(teacher, 8, 5), objective_of(teacher, alpha=1.0))
    assert loss == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(grads.vector) == pytest.approx(0, abs=1e-12)


def test_the_loss_is_that_of_the_words_and_the_weighted_distance_of_the_hidden_states():
    teacher, plain = model_of("llama", 12, 1), model_of("llama", 8, 0)
    student, distil = with_projection(plain, 12, 0), Distil("forward", 1.5, 0.6)
    words, _ = gradient(plain, taught_by(teacher, distil))
    one, two = (gradient(student, matched_to(teacher, distil, weight))[0] - words for weight in (1.0, 3.0))
    assert two == pytest.approx(3 * one, rel=1e-9)
    distances = []
    for row in split_rows(batch_of(), 1):
        for number in range(row.segments.max() + 1):  # each text alone
            here = row.segments[0] == number
            ids, scored = row.ids[:, here], row.targets[0, here] != IGNORE
            h, h_teacher = (model.logits_and_hidden(ids)[1][0][scored] for model in (student, teacher))
            distances += np.mean((h @ student.weights.tree.projection.T - h_teacher) ** 2, axis=1).tolist()
    assert one == pytest.approx(np.mean(distances), rel=1e-9)


def test_the_gradient_does_not_depend_on_the_micro_batches():
    teacher, student = model_of("llama", 12, 1), with_projection(model_of("llama", 8, 0), 12, 0)
    results = [gradient(student, objective_of(teacher), size) for size in (1, 3)]
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-12)
    np.testing.assert_allclose(results[0][1].vector, results[1][1].vector, rtol=1e-9, atol=1e-13)


def test_what_stands_where_nothing_is_taught_does_not_matter():
    r = np.random.default_rng(0)
    student = with_projection(model_of("llama", 8, 0), 12, 0)
    h, t, targets = r.standard_normal((2, T, 8)), r.standard_normal((2, T, 12)), r.integers(0, V, (2, T))
    targets[0, 4:] = IGNORE
    results = []
    for filler in (0.0, np.nan):
        h[0, 4:], t[0, 4:] = filler, filler
        grads = student.weights.zeros_like()
        results.append((*match(h, t, targets, 0.1, student.weights.tree, grads.tree), grads.tree.projection))
    assert results[0][0] == results[1][0] > 0
    for a, b in zip(results[0][1:], results[1][1:]):
        np.testing.assert_array_equal(a, b)
    assert not results[1][1][0, 4:].any() and results[1][1][0, :4].all()


def test_the_projection_keeps_the_size_of_what_it_maps():
    student = model_of("llama", 64, 0)
    projections = [with_projection(student, 96, seed).weights.tree.projection for seed in (1, 1, 2)]
    h = np.random.default_rng(0).standard_normal((500, 64))
    assert np.std(h @ projections[0].T) == pytest.approx(1, abs=0.05)
    assert np.array_equal(projections[0], projections[1]) and not np.array_equal(projections[0], projections[2])
    np.testing.assert_array_equal(with_projection(student, 64, 1).weights.tree.projection, np.eye(64))


def test_the_student_answers_as_without_a_projection():
    student, ids = model_of("llama", 8, 0, tied=True), np.arange(5)[None]
    np.testing.assert_array_equal(student.logits(ids), with_projection(student, 12, 1).logits(ids))


def test_the_fast_backend_gives_the_same_loss_and_gradient():
    shape = model_of("llama", 8, 0).config
    results = []
    for name in ("numpy", "cpu"):
        models = [Model(c, initialise(c, 0), backend.load(name)) for c in (shape, replace(shape, channels=12))]
        results.append(gradient(with_projection(models[0], 12, 0), objective_of(models[1])))
    (loss, grads), (fast_loss, fast) = results
    assert fast_loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(fast.vector, grads.vector, atol=1e-5 * np.abs(grads.vector).max())
