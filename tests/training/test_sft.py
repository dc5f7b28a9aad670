"""Fine-tuning: it teaches answers and nothing else, resumes to the same bytes, and says what is wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest

from minillm.chat import Talk
from minillm.config import DataConfig, ModelConfig, OptimConfig, SamplingConfig, SFTConfig, TrainConfig
from minillm.datasets.conversations import Conversation, read_conversations
from minillm.evaluation.exact_match import exact_match
from minillm.evaluation.score import score
from minillm.settings import from_mapping, to_mapping
from minillm.tokenizer.chat import ChatTemplate
from minillm.training import pretrain, sft
from minillm.training.folder import RunFolder

COLOURS = ("red", "blue", "green", "pink")
TEXT = "".join(f"The {c} cat saw a {d} dog. user assistant\n\n" for c in COLOURS for d in COLOURS for _ in range(4))


def talk(*contents):
    return [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A pretrained model of seconds."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "text.txt").write_text(TEXT)
    config = TrainConfig(
        run=folder / "run",
        steps=5,
        batch_size=4,
        eval_every=0,
        sample_every=0,
        save_every=0,
        model=ModelConfig(vocab_size=290, context_len=96, num_layers=2, num_heads=2, channels=32),
        data=DataConfig(source=str(folder / "text.txt"), vocab_size=290),
    )
    assert pretrain.start(config, progress=False).run([""], show=False)
    return config.run


@pytest.fixture
def config(base, tmp_path):
    """Repeat a colour: 12 conversations, of which one validates."""
    rows = [{"messages": talk(f"{c} {d}", f"{c}.", "again", f"{c}.")} for c in COLOURS for d in COLOURS if c != d]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SFTConfig(
        run=tmp_path / "sft",
        base=base,
        data=str(tmp_path / "data.jsonl"),
        steps=60,
        batch_size=4,
        eval_every=30,
        sample_every=30,
        save_every=20,
        optim=OptimConfig(learning_rate=1e-2, warmup_steps=2),
    )


def test_it_learns_to_answer_and_leaves_a_run_that_can_be_loaded(config, capsys):
    assert sft.start(replace(config, steps=150)).run([""], show=False)
    rows = RunFolder(config.run).read_metrics()
    losses = [r["loss"] for r in rows if "loss" in r]
    assert losses[-1] < 0.2 * losses[0]
    assert (rows[-1]["step"], rows[-1]["num_asked"]) == (150, 1)
    assert "answers right" in capsys.readouterr().out
    model, tokenizer = RunFolder(config.run).load_model()
    train, _ = sft.split(config)
    assert score(exact_match(model, ChatTemplate(tokenizer), train)).mean > 0.8
    assert (config.run / "samples.txt").read_text().startswith("--- step 30\n")


def test_the_base_is_not_changed(config):
    before = RunFolder(config.base).checkpoint_file.read_bytes()
    sft.start(replace(config, steps=2)).run([""], show=False)
    assert RunFolder(config.base).checkpoint_file.read_bytes() == before


def test_a_run_stopped_and_resumed_ends_with_the_same_bytes(config, resumes_exactly):
    resumes_exactly(sft, replace(config, steps=6, eval_every=0, sample_every=0), 3)


def test_packing_and_padding_learn_the_same(config, tmp_path):
    """One step over all conversations, packed and padded, from the same weights."""
    ends = []
    for packing in (True, False):
        c = replace(config, run=tmp_path / f"packing {packing}", packing=packing, steps=1, num_val=1)
        trainer = sft.start(c)
        trainer.sampler.B = len(trainer.sampler.rows)
        row = trainer.take_step()
        ends.append((row["loss"], row["tokens"], trainer.grads.vector.copy()))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)
    assert ends[0][1] == ends[1][1]
    np.testing.assert_allclose(ends[0][2], ends[1][2], atol=1e-5 * np.abs(ends[0][2]).max())


def test_last_only_counts_the_last_answers_alone(config, tmp_path):
    both = sft.start(config).sampler.rows
    last = sft.start(replace(config, run=tmp_path / "last", last_only=True)).sampler.rows
    assert sum(sum(e.mask) for e in last.examples) * 2 == sum(sum(e.mask) for e in both.examples)


def test_no_question_is_learned_from_and_validated_on(config, tmp_path):
    lines = (tmp_path / "data.jsonl").read_text()
    (tmp_path / "data.jsonl").write_text(lines + lines)
    train, val = sft.split(replace(config, val_fraction=0.3))
    asked = [{c.messages[0]["content"] for c in part} for part in (train, val)]
    assert len(train) + len(val) == 24 and len(val) == 8
    assert not asked[0] & asked[1]
    tasks = [sft.split(replace(config, data="tasks", num_conversations=50, num_val=50))[i] for i in (0, 1)]
    assert not {str(c.messages) for c in tasks[0]} & {str(c.messages) for c in tasks[1]}


def test_a_file_with_one_question_cannot_be_validated(config, tmp_path):
    (tmp_path / "data.jsonl").write_text(2 * (json.dumps({"messages": talk("a", "b")}) + "\n"))
    with pytest.raises(ValueError, match="has one question only"):
        sft.start(config)


def test_mistakes_leave_no_folder(config, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        sft.start(replace(config, base=tmp_path / "nothing"))
    (tmp_path / "data.jsonl").write_text('{"messages": [{"role": "robot", "content": "x"}]}\n')
    with pytest.raises(ValueError, match=r"data\.jsonl:1: message 0 has the role 'robot'"):
        sft.start(config)
    (tmp_path / "data.jsonl").write_text(json.dumps({"messages": talk("a " * 99, "b")}) + "\n")
    with pytest.raises(ValueError):
        sft.start(config)
    assert not config.run.exists()


def test_a_second_start_is_refused_and_each_stage_resumes_its_own(config):
    trainer = sft.start(config)
    with pytest.raises(FileNotFoundError, match="before its first checkpoint"):
        sft.resume(RunFolder(config.run))
    trainer.save()
    with pytest.raises(FileExistsError, match="minillm resume"):
        sft.start(config)
    with pytest.raises(ValueError, match="no pretraining run"):
        pretrain.resume(RunFolder(config.run))
    with pytest.raises(ValueError, match="no fine-tuning run"):
        sft.resume(RunFolder(config.base))


def test_settings_come_back_from_their_folder(config):
    folder = RunFolder(config.run)
    config.run.mkdir()
    folder.write_config(config)
    assert folder.read_config() == config == from_mapping(SFTConfig, to_mapping(config))
    folder.config_file.write_text('{"stage": "dream"}')
    with pytest.raises(ValueError, match="unknown stage 'dream'; there is pretrain, sft, distil"):
        folder.read_config()


@pytest.fixture
def answering(base):
    model, tokenizer = RunFolder(base).load_model()
    return model, ChatTemplate(tokenizer)


def test_the_batch_size_does_not_change_an_answer(answering):
    asked = [Conversation(talk(" ".join(COLOURS[: i % 4]) + "?", "red."), "t") for i in range(7)]
    answers = [[r.answer for r in exact_match(*answering, asked, batch_size, 8)] for batch_size in (1, 3, 7)]
    assert answers[0] == answers[1] == answers[2]


def test_a_talk_goes_on_is_saved_and_loaded_and_forgotten(answering, tmp_path):
    model, template = answering
    t = Talk(model, template, "be brief", SamplingConfig(temperature=1, max_tokens=8, seed=1))
    assert "".join(t.ask("red")) == t.messages[-1]["content"]
    assert [m["role"] for m in t.messages] == ["system", "user", "assistant"]
    file = tmp_path / "talk.jsonl"
    assert t.command(f"/save {file}") == f"Saved 3 messages to {file}."
    assert read_conversations(file)[0].messages == t.messages
    other = Talk(model, template, "", SamplingConfig())
    assert other.command(f"/load {file}") == "Loaded 3 messages."
    assert other.messages == t.messages
    t.command("/reset")
    assert t.messages == [{"role": "system", "content": "be brief"}]
    t.command("/system ")
    assert t.messages == []
    for line, said in (("/save", "needs a file"), (f"/save {file}", "nothing was said")):
        with pytest.raises(ValueError, match=said):
            t.command(line)
    with pytest.raises(ValueError, match="context of 96: /reset"):
        list(t.ask("red " * 99))
    assert t.messages == []
    assert "/reset" in t.command("/help")


def test_a_run_keeps_its_template_and_passes_it_on(config, tmp_path):
    (tmp_path / "own.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
                                        "{% if add_generation_prompt %}assistant: {% endif %}")  # fmt: skip
    first = replace(config, steps=2, chat_template=str(tmp_path / "own.jinja"))
    assert sft.start(first).run([""], show=False)
    (tmp_path / "own.jinja").unlink()
    sft.resume(RunFolder(first.run))
    second = replace(config, run=tmp_path / "second", base=first.run, steps=2)
    assert sft.start(second).run([""], show=False)
    for run in (first.run, second.run):
        _, tokenizer = RunFolder(run).load_model()
        assert RunFolder(run).load_template(tokenizer).source.endswith("assistant: {% endif %}")


def test_a_run_without_a_template_speaks_chatml(base):
    _, tokenizer = RunFolder(base).load_model()
    assert RunFolder(base).load_template(tokenizer).source == ChatTemplate(tokenizer).source
