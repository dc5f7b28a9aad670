"""Distillation runs: the teacher is heard, is not changed, and must speak the student's language."""

import json
from dataclasses import replace

import numpy as np
import pytest

from minillm import checkpoint
from minillm.config import (
    DataConfig,
    DistilConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    SamplingConfig,
    SFTConfig,
    TrainConfig,
)
from minillm.datasets.conversations import read_conversations
from minillm.datasets.packing import pack
from minillm.datasets.sampler import stack
from minillm.inference.answers import answer
from minillm.tokenizer.chat import ChatTemplate, Rendered
from minillm.training import distil, pretrain, sft
from minillm.training.distil import taught_by
from minillm.training.divergence import Distil
from minillm.training.folder import RunFolder
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient

COLOURS = ("red", "blue", "green", "pink")
TEXT = "".join(f"The {c} cat saw a {d} dog. user assistant\n\n" for c in COLOURS for d in COLOURS for _ in range(4))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two pretrained models, a larger and a smaller one, the larger one also fine-tuned, and conversations."""
    place = tmp_path_factory.mktemp("runs")
    (place / "text.txt").write_text(TEXT)
    pairs = [(c, d) for c in COLOURS for d in COLOURS if c != d]
    said = [[{"role": "user", "content": f"{c} {d}"}, {"role": "assistant", "content": f"{c}."}] for c, d in pairs]
    (place / "data.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in said))
    pace = {"steps": 2, "batch_size": 4, "eval_every": 0, "sample_every": 0}
    for name, channels, vocab_size in (("large", 32, 290), ("small", 16, 290), ("foreign", 32, 280)):
        shape = ModelConfig(context_len=64, num_layers=1, num_heads=2, channels=channels)
        data = DataConfig(source=str(place / "text.txt"), vocab_size=vocab_size)
        assert pretrain.start(TrainConfig(run=place / name, model=shape, data=data, **pace), False).run(
            [""], show=False
        )
    where = {"run": place / "teacher", "base": place / "large"}
    taught = SFTConfig(**where, data=str(place / "data.jsonl"), **(pace | {"steps": 80}),
                       optim=OptimConfig(learning_rate=1e-2, warmup_steps=2))  # fmt: skip
    assert sft.start(taught).run([""], show=False)
    return place


@pytest.fixture
def config(place, tmp_path):
    return DistilConfig(
        run=tmp_path / "run",
        base=place / "small",
        teacher=place / "teacher",
        data=str(place / "data.jsonl"),
        steps=6,
        batch_size=4,
        eval_every=0,
        sample_every=0,
        alpha=1.0,
        optim=OptimConfig(learning_rate=1e-2, warmup_steps=2),
    )


def divergence(trainer, teacher):
    """Of student and teacher over the training rows, at temperature 1."""
    rows = trainer.sampler.rows
    batches = [stack([rows[i]]) for i in range(len(rows))]
    grads = trainer.model.weights.zeros_like()
    return mean_gradient(trainer.model, batches, grads, taught_by(teacher, Distil(tau=1, alpha=1)))[0]


KINDS = [{"divergence": kind} for kind in ("forward", "reverse", "jensen-shannon")]


@pytest.mark.parametrize("kind", [*KINDS, {"top_k": 5}, {"hidden_weight": 0.1}], ids=str)
def test_the_student_comes_closer_to_its_teacher_which_stays_as_it_is(config, kind):
    before = RunFolder(config.teacher).checkpoint_file.read_bytes()
    teacher, _ = RunFolder(config.teacher).load_model()
    trainer = distil.start(replace(config, **kind, steps=40))
    first = divergence(trainer, teacher)
    assert trainer.run([""], show=False)
    assert divergence(trainer, teacher) < 0.5 * first
    assert RunFolder(config.teacher).checkpoint_file.read_bytes() == before


def test_a_student_that_speaks_by_itself_comes_closer_too(config):
    teacher, _ = RunFolder(config.teacher).load_model()
    trainer = distil.start(replace(config, on_policy=1.0, answer_tokens=8, divergence="reverse", tau=1.0, steps=60))
    first = divergence(trainer, teacher)
    assert trainer.run([""], show=False)
    assert divergence(trainer, teacher) < 0.6 * first


def test_the_projection_is_trained_and_saved_but_is_no_part_of_the_model(config):
    trainer = distil.start(replace(config, hidden_weight=0.1, steps=40))
    projection = trainer.model.weights.tree.projection
    assert projection.shape == (32, 16)
    first = projection.copy()
    assert trainer.run([""], show=False)
    assert np.abs(projection - first).max() > 0.01
    rows = RunFolder(config.run).read_metrics()
    assert rows[39]["loss"] < 0.5 * rows[0]["loss"]
    arrays, _ = checkpoint.load(RunFolder(config.run).checkpoint_file)
    np.testing.assert_array_equal(arrays["weights.projection"], projection)
    assert {"mean.projection", "square.projection"} < arrays.keys()
    model, _ = RunFolder(config.run).load_model()
    assert "projection" not in model.weights.slots
    ids = np.arange(20)[None]
    np.testing.assert_array_equal(model.logits(ids), trainer.model.logits(ids))


def test_a_student_of_its_teachers_answers_says_what_the_teacher_would(config):
    """Of colours alone, without any other word from the teacher."""
    trainer = distil.start(replace(config, sequence_level=True, alpha=0.0, answer_tokens=12, steps=120))
    teacher, tokenizer = RunFolder(config.teacher).load_model()
    talks = read_conversations(config.run / "answers" / "conversations.jsonl")
    assert len(talks) > 5 and trainer.run([""], show=False)
    template, sampling = ChatTemplate(tokenizer), SamplingConfig(temperature=0, max_tokens=12)
    prompts = [template.prompt(talk.messages[:-1]) for talk in talks]
    said, learned = ([c.text for c in answer(model, template, prompts, sampling)] for model in (teacher, trainer.model))
    assert said == [talk.messages[-1]["content"] for talk in talks]
    assert sum(a == b for a, b in zip(said, learned)) > 0.8 * len(talks)


def test_without_weight_for_the_teacher_it_is_fine_tuning(config, tmp_path):
    distil.start(replace(config, alpha=0.0)).run([""], show=False)
    plain = {k: v for k, v in vars(config).items() if k in SFTConfig.__dataclass_fields__}
    sft.start(SFTConfig(**plain | {"run": tmp_path / "sft"})).run([""], show=False)
    one, two = (checkpoint.load(run / "checkpoint.safetensors")[0] for run in (config.run, tmp_path / "sft"))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


MODES = [{}, {"on_policy": 0.5, "answer_tokens": 4}, {"top_k": 5}, {"sequence_level": True}]
MODES += [{"hidden_weight": 0.5}, {"hidden_weight": 0.5, "on_policy": 0.5, "lora": LoraConfig(rank=2)}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_stopped_run_goes_on_with_its_teacher_to_the_same_bytes(config, resumes_exactly, mode):
    resumes_exactly(distil, replace(config, **mode), 1)


def test_the_teacher_sees_no_other_text_of_a_packed_row(place):
    teacher, _ = RunFolder(place / "teacher").load_model()
    student, _ = RunFolder(place / "small").load_model()
    r = np.random.default_rng(0)
    texts = [Rendered(r.integers(0, 256, n).tolist(), [False] + [True] * (n - 1)) for n in (9, 5, 12)]
    objective = taught_by(teacher, Distil("jensen-shannon", 1.5, 0.7, 0.3))
    results = []
    for batches in ([stack([pack(texts, 30)])], [stack([pack([t], len(t.ids) - 1)]) for t in texts]):
        grads = student.weights.zeros_like()
        results.append((mean_gradient(student, batches, grads, objective), grads.vector))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-5 * np.abs(results[1][1]).max())
    assert objective is not next_token


def test_a_teacher_with_other_words_is_refused_before_anything_is_written(config, place):
    with pytest.raises(
        ValueError, match=r"must share a vocabulary.*pretrain the student on the teacher's data settings"
    ):
        distil.start(replace(config, teacher=place / "foreign"))
    with pytest.raises(FileNotFoundError, match="holds no run"):
        distil.start(replace(config, teacher=place / "nobody"))
    assert not config.run.exists()
    with pytest.raises(ValueError, match="no distillation run"):
        distil.resume(RunFolder(place / "teacher"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_policy": 1.5}, "on_policy, a share of the rows, must be 0 to 1: got 1.5"),
        ({"on_policy": float("nan")}, "must be 0 to 1: got nan"),
        ({"on_policy": 0.5, "alpha": 0}, "which alpha = 0 ignores; raise alpha"),
        ({"top_k": 4, "alpha": 0}, "which alpha = 0 ignores; raise alpha"),
        ({"top_k": -1}, "top_k must be an integer of at least 0: got -1"),
        ({"top_k": 4, "divergence": "reverse"}, "too little of the teacher for the reverse divergence.* or top_k = 0"),
        ({"top_k": 4, "divergence": "jensen-shannon"}, "use the forward one"),
        ({"top_k": 4, "on_policy": 0.1}, "not of the student's own; use on_policy = 0, or top_k = 0"),
        ({"top_k": 4, "hidden_weight": 1.0}, "not its hidden states; use hidden_weight = 0, or top_k = 0"),
        ({"hidden_weight": -1.0}, "hidden_weight must be 0 or positive: got -1.0"),
        ({"answer_temperature": -1.0}, "answer_temperature must be 0 or positive: got -1.0"),
        ({"answer_tokens": 0}, "answer_tokens must be an integer of at least 1: got 0"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DistilConfig(**settings)
