"""The optimizer of a run: groups, skipped steps, ties, resuming."""

import json
import math

import numpy as np
import pytest

from minillm.checkpoint import copy_into, load, save
from minillm.config import OptimConfig
from minillm.ops import adamw, gradient_norm
from minillm.optim import Optimizer, learning_rate_factor, muon
from minillm.tree import Tree, pack

SHAPES = Tree(
    embed=(11, 6),
    positions=(7, 6),
    blocks=[
        Tree(norm1=Tree(weight=(6,), bias=(6,)), attention=Tree(query=Tree(weight=(10, 6), bias=(10,)))),
        Tree(norm1=Tree(weight=(6,), bias=None), attention=Tree(query=Tree(weight=(3, 6), bias=None))),
    ],
    norm=Tree(weight=(6,)),
    head=None,
)
DECAYING = {"embed", "positions", "blocks.0.attention.query.weight", "blocks.1.attention.query.weight"}
BY_MUON = {"blocks.0.attention.query.weight", "blocks.1.attention.query.weight"}
CONFIG = OptimConfig(warmup_steps=3, weight_decay=0.2)


def filled(rng, dtype=np.float32, scale=1.0):
    """Random values in every array, zero in the padding, and a tied head."""
    packed = pack(SHAPES, dtype)
    packed.tree.head = packed.tree.embed
    for array in packed.named().values():
        array[...] = scale * rng.standard_normal(array.shape)
    return packed


def padding(packed):
    """The elements that belong to no array."""
    free = np.ones(packed.vector.size, bool)
    for slot in packed.slots.values():
        free[slot] = False
    return packed.vector[free]


def test_exactly_the_matrices_decay(rng):
    weights = filled(rng, np.float64)
    before = {name: array.copy() for name, array in weights.named().items()}
    optimizer = Optimizer(weights, CONFIG, 10)
    report = optimizer.step(weights.zeros_like())
    assert report.lr == CONFIG.learning_rate / 4
    changed = {name for name, array in weights.named().items() if (array != before[name]).any()}
    assert changed == DECAYING
    for name in DECAYING:
        np.testing.assert_array_equal(weights.named()[name], before[name] * (1 - report.lr * 0.2))


def test_three_steps_equal_adamw_on_each_array_alone(rng):
    weights = filled(rng)
    expected = {
        name: [array.copy().ravel(), *np.zeros((2, array.size), np.float32)] for name, array in weights.named().items()
    }
    optimizer = Optimizer(weights, CONFIG, 10)
    for step in range(3):
        grads = filled(rng)
        given = {name: array.copy() for name, array in grads.named().items()}
        report = optimizer.step(grads)
        assert report.norm > 1
        assert not report.skipped
        assert report.lr == CONFIG.learning_rate * learning_rate_factor(step, 10, CONFIG)
        for name, (w, m, v) in expected.items():
            g = given[name].ravel() * np.float32(1 / report.norm)
            adamw(w, g, m, v, step + 1, report.lr, 0.2 if name in DECAYING else 0.0, 0.9, 0.95, 1e-8)
    for name, (w, _, _) in expected.items():
        np.testing.assert_allclose(weights.named()[name].ravel(), w, rtol=1e-5, atol=1e-6)


def test_muon_takes_the_matrices_in_blocks_and_adamw_all_the_rest():
    config = OptimConfig(optimizer="muon", warmup_steps=4, clip_norm=0, weight_decay=0.2)
    weights, plain = (filled(np.random.default_rng(1)) for _ in range(2))
    before = {name: array.copy() for name, array in weights.named().items()}
    grads, same_grads = (filled(np.random.default_rng(2)) for _ in range(2))
    optimizer = Optimizer(weights, config, 10)
    optimizer.step(grads)
    Optimizer(plain, OptimConfig(warmup_steps=4, clip_norm=0, weight_decay=0.2), 10).step(same_grads)
    for name, array in weights.named().items():
        if name in BY_MUON:
            muon(before[name], grads.named()[name], np.zeros_like(array), config.muon_learning_rate / 5, 0.2)
            np.testing.assert_array_equal(array, before[name])
        else:
            np.testing.assert_array_equal(array, plain.named()[name])
    arrays, _ = optimizer.state()
    assert {name for name in weights.named() if f"square.{name}" not in arrays} == BY_MUON
    assert {name for name in weights.named() if f"mean.{name}" not in arrays} == set()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_padding_stays_zero_and_tied_names_stay_one(rng, kind):
    weights = filled(rng)
    optimizer = Optimizer(weights, OptimConfig(optimizer=kind), 10)
    for _ in range(3):
        optimizer.step(filled(rng))
    for packed in (weights, optimizer.mean, optimizer.square):
        assert not padding(packed).any()
    assert weights.tree.head is weights.tree.embed


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(rng, bad, kind):
    weights = filled(rng)
    optimizer = Optimizer(weights, OptimConfig(optimizer=kind), 10)
    first = optimizer.step(filled(rng))
    arrays, counts = optimizer.state()
    before = {name: array.copy() for name, array in (arrays | weights.named()).items()}
    grads = filled(rng)
    grads.tree.norm.weight[2] = bad
    report = optimizer.step(grads)
    assert report.skipped
    assert not math.isfinite(report.norm)
    for name, array in (optimizer.state()[0] | weights.named()).items():
        np.testing.assert_array_equal(array, before[name])
    assert optimizer.state()[1] == {"taken": 1, "skipped": 1} == {**counts, "skipped": 1}
    assert optimizer.step(filled(rng)).lr == report.lr > first.lr


def test_a_huge_finite_gradient_is_clipped_and_without_clipping_skipped(rng):
    clipped, unclipped = (Optimizer(filled(rng), OptimConfig(clip_norm=norm), 10) for norm in (1.0, 0.0))
    grads = filled(rng, scale=1e20)
    assert not clipped.step(grads).skipped
    assert gradient_norm(grads.vector) == pytest.approx(1, rel=1e-6)
    report = unclipped.step(filled(rng, scale=1e20))
    assert report.skipped
    assert math.isfinite(report.norm)
    assert not unclipped.step(filled(rng, scale=1e10)).skipped


def test_without_clipping_the_gradient_is_used_as_it_is(rng):
    grads = filled(rng, scale=100)
    before = grads.vector.copy()
    Optimizer(filled(rng), OptimConfig(clip_norm=0), 10).step(grads)
    np.testing.assert_array_equal(grads.vector, before)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("stop", [0, 1, 4, 8])
def test_a_resumed_run_equals_a_straight_one_bit_for_bit(tmp_path, kind, stop):
    """Eight steps, one of them skipped, stopped and continued in new objects through a file."""
    config = OptimConfig(optimizer=kind, warmup_steps=2, schedule="wsd")

    def run(optimizer, steps):
        reports = []
        for step in steps:
            grads = filled(np.random.default_rng(step))
            if step == 3:
                grads.vector[0] = np.inf
            reports.append(optimizer.step(grads))
        return reports

    straight = Optimizer(filled(np.random.default_rng(99)), config, 8)
    expected = run(straight, range(8))
    first = Optimizer(filled(np.random.default_rng(99)), config, 8)
    reports = run(first, range(stop))
    arrays, counts = first.state()
    model = {f"weights.{name}": array for name, array in first.weights.named().items()}
    save(tmp_path / "run.safetensors", model | arrays, {"optimizer": counts})

    arrays, meta = load(tmp_path / "run.safetensors")
    second = Optimizer(filled(np.random.default_rng(5)), config, 8)
    copy_into(second.weights, arrays, "weights.")
    second.restore(arrays, meta["optimizer"])
    assert reports + run(second, range(stop, 8)) == expected
    np.testing.assert_array_equal(second.weights.vector, straight.weights.vector)
    np.testing.assert_array_equal(second.mean.vector, straight.mean.vector)
    np.testing.assert_array_equal(second.square.vector, straight.square.vector)
    assert second.state()[1] == straight.state()[1] == {"taken": 7, "skipped": 1}


def test_restore_names_every_fault_and_then_changes_nothing(rng):
    optimizer = Optimizer(filled(rng), CONFIG, 10)
    optimizer.step(filled(rng))
    arrays, counts = optimizer.state()
    arrays = {name: 2 * array for name, array in arrays.items()}
    moments = optimizer.mean.vector.copy(), optimizer.square.vector.copy()
    for wrong, message in [
        ({"square.embed": np.zeros((6, 11), np.float32)}, r"embed must be float32 \(11, 6\): got float32 \(6, 11\)"),
        ({"square.embed": np.zeros((11, 6))}, r"embed must be float32 \(11, 6\): got float64 \(11, 6\)"),
        ({"square.extra": np.zeros(1)}, "square.extra is unexpected"),
    ]:
        with pytest.raises(ValueError, match=message):
            optimizer.restore(arrays | wrong, counts)
    with pytest.raises(ValueError, match=r"square.embed is missing"):
        optimizer.restore({name: array for name, array in arrays.items() if name != "square.embed"}, counts)
    for wrong_counts in ({"taken": 1}, {"taken": -1, "skipped": 0}, {"taken": 1.5, "skipped": 0}):
        with pytest.raises(ValueError, match="optimizer count"):
            optimizer.restore(arrays, wrong_counts)
    np.testing.assert_array_equal(optimizer.mean.vector, moments[0])
    np.testing.assert_array_equal(optimizer.square.vector, moments[1])
    assert optimizer.state()[1] == {"taken": 1, "skipped": 0}


def test_moments_of_adamw_do_not_restore_into_muon(rng):
    arrays, counts = Optimizer(filled(rng), CONFIG, 10).state()
    with pytest.raises(ValueError, match=r"another config\?.*\n *square.blocks.0.attention.query.weight is unexpected"):
        Optimizer(filled(rng), OptimConfig(optimizer="muon"), 10).restore(arrays, counts)


def test_counts_are_plain_integers_that_json_can_hold(rng):
    optimizer = Optimizer(filled(rng), CONFIG, 10)
    optimizer.step(filled(rng))
    counts = optimizer.state()[1]
    assert json.loads(json.dumps(counts)) == counts == {"taken": 1, "skipped": 0}


def test_gradients_of_another_layout_or_dtype_are_refused(rng):
    optimizer = Optimizer(filled(rng), CONFIG, 10)
    for grads in (filled(rng, np.float64), pack(Tree(SHAPES, embed=(6, 11), extra=(2,)))):
        with pytest.raises(ValueError, match="layout and dtype of the weights"):
            optimizer.step(grads)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_is_kept(rng, dtype):
    optimizer = Optimizer(filled(rng, dtype), CONFIG, 10)
    optimizer.step(filled(rng, dtype))
    assert {array.dtype for array in optimizer.state()[0].values()} == {np.dtype(dtype)}
