"""A teacher's predictions on disk: the same losses as from the teacher itself, read once, and nobody else's."""

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig
from minillm.datasets.packing import PackedRows
from minillm.datasets.sampler import Sampler, stack
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.ops.cross_entropy import IGNORE, num_targets
from minillm.tokenizer.chat import Rendered
from minillm.training.distil import taught_by
from minillm.training.divergence import Distil
from minillm.training.predictions import from_predictions, num_bytes, with_predictions
from minillm.training.step import mean_gradient, split_rows

V, T, TAU = 29, 12, 1.5


def model_of(seed, channels=16):
    shape = ModelConfig(vocab_size=V, context_len=T, num_layers=1, num_heads=2, channels=channels, init_std=0.5)
    return Model(shape, initialise(shape, seed), ops)


@pytest.fixture(scope="module")
def rows():
    """Seven texts, about half of each taught, of which some share a row."""
    r = np.random.default_rng(0)
    lengths = (12, 7, 5, 9, 3, 4, 11)
    return PackedRows([Rendered(r.integers(0, V, n).tolist(), [*(r.random(n - 1) < 0.5), True]) for n in lengths], T)


class Teacher(Model):
    """Counts how often it reads."""

    heard: ClassVar[list] = []  # appended to by several threads

    def logits(self, *args):
        self.heard.append(1)
        return super().logits(*args)


@pytest.fixture
def teacher():
    Teacher.heard.clear()
    return Teacher(**vars(model_of(1, channels=32)))


def gradient(student, batch, objective, size=2):
    grads = student.weights.zeros_like()
    loss, _ = mean_gradient(student, split_rows(batch, size), grads, objective)
    return loss, grads.vector


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_all_tokens_on_disk_are_the_teacher_itself(rows, teacher, tmp_path, batch_size):
    ours = Sampler(with_predictions(rows, teacher, V, TAU, tmp_path, batch_size, show=False), 3, 0)
    plain, student = Sampler(rows, 3, 0), model_of(0)
    for _ in range(4):  # more than an epoch, in an order of its own
        one = gradient(student, plain.next(), taught_by(teacher, Distil("forward", TAU, 0.7)))
        two = gradient(student, ours.next(), from_predictions(TAU, 0.7))
        assert two[0] == pytest.approx(one[0], rel=1e-6)
        np.testing.assert_allclose(two[1], one[1], atol=1e-6 * np.abs(one[1]).max())


def test_a_row_brings_its_own_predictions_wherever_it_comes(rows, teacher, tmp_path):
    ours = with_predictions(rows, teacher, 3, TAU, tmp_path, show=False)
    whole = stack([ours[number] for number in range(len(rows))])
    for number in (2, 0, 1):
        row = ours[number]
        assert all(np.array_equal(a, b[number]) for a, b in zip(row, whole))
        scored = row.targets != IGNORE
        assert not row.top_ids[~scored].any() and not row.top_log_probs[~scored].any()
        assert np.all(np.diff(row.top_log_probs[scored], axis=1) <= 0) and np.all(row.top_log_probs[scored] < 0)
        logits = teacher.logits(rows[number].ids[None], rows[number].positions[None], None)[0]
        if rows[number].segments.max() == 0:  # alone in its row: plain causal attention
            assert np.array_equal(row.top_ids[scored][:, 0], np.argmax(logits, axis=-1)[scored])


def test_the_teacher_reads_once_and_not_at_all_when_its_predictions_are_there(rows, teacher, tmp_path):
    sampler = Sampler(with_predictions(rows, teacher, 4, TAU, tmp_path, batch_size=1, show=False), 2, 0)
    assert len(teacher.heard) == len(rows)
    for _ in range(10):
        gradient(model_of(0), sampler.next(), from_predictions(TAU, 1.0))
    again = with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)
    assert len(teacher.heard) == len(rows)
    assert np.array_equal(again.ids, sampler.rows.ids)


@pytest.mark.parametrize("k", [1, 5, V])
def test_the_size_on_disk_is_the_predicted_one(rows, teacher, tmp_path, k, capsys):
    with_predictions(rows, teacher, k, TAU, tmp_path, show=False)
    N = sum(num_targets(rows[number].targets) for number in range(len(rows)))
    sizes = [(tmp_path / name).stat().st_size for name in ("ids.npy", "log_probs.npy")]
    assert sum(sizes) == num_bytes(N, k, V) == N * k * 6 + 256
    assert f"{k} likeliest tokens at {N} positions" in capsys.readouterr().out
    assert num_bytes(10, k, 1 << 16) + 20 * k == num_bytes(10, k, (1 << 16) + 1), "wider ids for more tokens"


def test_what_was_not_finished_is_made_anew(rows, teacher, tmp_path, monkeypatch):
    def stop(self, *args):
        self.heard.append(1)
        if len(self.heard) == 3:
            raise KeyboardInterrupt
        return Model.logits(self, *args)

    monkeypatch.setattr(Teacher, "logits", stop)
    with pytest.raises(KeyboardInterrupt):
        with_predictions(rows, teacher, 4, TAU, tmp_path, batch_size=1, show=False)
    assert (tmp_path / "ids.npy").exists() and not (tmp_path / "made.json").exists()
    monkeypatch.undo()
    first = with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)
    other = with_predictions(rows, teacher, 4, TAU, tmp_path / "other", show=False)
    assert np.array_equal(first.log_probs, other.log_probs) and np.array_equal(first.ids, other.ids)


def test_predictions_of_something_else_are_refused(rows, teacher, tmp_path):
    with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)
    fewer = PackedRows(rows.examples[:-1], T)
    taught = PackedRows([Rendered(e.ids, [True] * len(e.ids)) for e in rows.examples], T)
    for other in ((rows, model_of(2, 32), 4, TAU), (rows, teacher, 5, TAU), (rows, teacher, 4, 2.0),
                  (fewer, teacher, 4, TAU), (taught, teacher, 4, TAU),
                  (rows, replace(teacher, config=replace(teacher.config, rope_theta=5e3)), 4, TAU)):  # fmt: skip
        with pytest.raises(ValueError, match=r"another teacher, from other data or with other settings.*delete"):
            with_predictions(*other, tmp_path, show=False)
    with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)


def test_damage_is_said_to_be_damage(rows, teacher, tmp_path):
    with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)
    note = (tmp_path / "made.json").read_text()
    assert json.loads(note)["top_k"] == 4
    whole = (tmp_path / "log_probs.npy").read_bytes()
    (tmp_path / "log_probs.npy").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"log_probs\.npy is damaged.*delete"):
        with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)
    np.save(tmp_path / "ids.npy", np.zeros((3, 4), np.uint16))
    with pytest.raises(ValueError, match=r"ids\.npy is damaged: its shape is \(3, 4\)"):
        with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)
    (tmp_path / "made.json").write_text("{")
    with pytest.raises(ValueError, match=r"made\.json is damaged; delete"):
        with_predictions(rows, teacher, 4, TAU, tmp_path, show=False)


@pytest.mark.parametrize("k", [0, V + 1])
def test_more_tokens_than_there_are_cannot_be_kept(rows, teacher, tmp_path, k):
    with pytest.raises(ValueError, match=f"top_k must be 1 to {V}, the size of the vocabulary: got {k}"):
        with_predictions(rows, teacher, k, TAU, tmp_path / "new", show=False)
    assert not (tmp_path / "new").exists()
