"""The teacher's own answers as a data set: question by question, whole answers only, made once and nobody else's."""

from dataclasses import replace

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig, SamplingConfig
from minillm.datasets.conversations import Conversation, read_conversations
from minillm.inference.answers import answer
from minillm.inference.generate import Completion, generate_ids
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import CONTROL, ChatTemplate
from minillm.training import sequence_level
from minillm.training.sequence_level import answered_by, answers_on_disk, questions

T = 96
GREEDY = SamplingConfig(temperature=0, max_tokens=8, seed=0)
DRAWN = SamplingConfig(temperature=1, max_tokens=8, seed=0)


@pytest.fixture(scope="module")
def template():
    return ChatTemplate(Tokenizer.train(["user assistant a b c"], 300, special=CONTROL))


@pytest.fixture(scope="module")
def teacher(template):
    """Of random weights, but it says letters alone, and soon ends its turn."""
    tokenizer = template.tokenizer
    shape = ModelConfig(family="gpt2", vocab_size=tokenizer.vocab_size, context_len=T, num_layers=1, num_heads=2,
                        channels=16, init_std=0.5)  # fmt: skip
    weights = initialise(shape, 3)
    weights.tree.norm.weight[0], weights.tree.norm.bias[0] = 0, 1  # so that head[:, 0] are added to the logits
    weights.tree.head[:, 0] = -100
    weights.tree.head[[tokenizer.encode(c)[0] for c in "defghijk"], 0] = 0
    weights.tree.head[template.stop, 0] = 1
    return Model(shape, weights, ops)


def talk(*contents, system=""):
    messages = [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return Conversation([{"role": "system", "content": system}, *messages] if system else messages, "t")


TALKS = [talk("a b", "given"), talk("c", "given", "again", "given too"), talk("b a c", "x", system="be brief"),
         talk("c b", "given", "and then")]  # fmt: skip


def scripted(*said):
    """Stands in for `answer`: what is said at each turn; and a list of what was asked then."""
    turns, asked = iter(said), []

    def say(teacher, template, prompts, sampling, show):
        asked.append([template.tokenizer.decode(p) for p in prompts])
        return [Completion(text, [], finish) for text, finish in next(turns)]

    return say, asked


def test_each_answer_is_what_the_teacher_says_to_the_talk_so_far(template, teacher):
    done = answered_by(teacher, template, TALKS, T, DRAWN)
    assert len(done) >= 3 and any(len(c.messages) == 4 for c in done), "there is something to look at"
    done = answered_by(teacher, template, TALKS, T, GREEDY)
    for c in done:
        assert c.task == "t"
        for place, message in enumerate(c.messages):
            if message["role"] == "assistant":
                prompt = template.prompt(c.messages[:place])
                ids = [tokens[0] for tokens in generate_ids(teacher, [prompt], GREEDY, template.stop)]
                assert ids[-1] == template.stop
                assert template.tokenizer.decode(ids[:-1]) == message["content"]


def test_the_second_question_is_asked_after_the_teachers_own_first_answer(template, teacher, monkeypatch):
    say, asked = scripted([("one", "stop"), ("two", "stop")], [("three", "stop")])
    monkeypatch.setattr(sequence_level, "answer", say)
    done = answered_by(teacher, template, TALKS[:2], T, GREEDY)
    assert [m["content"] for m in done[1].messages] == ["c", "two", "again", "three"]
    assert [m["content"] for m in done[0].messages] == ["a b", "one"]
    assert len(asked) == 2 and len(asked[1]) == 1
    assert "two" in asked[1][0] and "given" not in str(asked)


def test_a_talk_ends_before_an_answer_that_is_empty_cut_or_too_long(template, teacher, monkeypatch):
    first = [("one", "stop"), ("cut off", "length"), (" \n", "stop"), ("x" * 200, "stop")]
    second = [("cut off", "length")]
    monkeypatch.setattr(sequence_level, "answer", scripted(first, second)[0])
    talks = [TALKS[1], *TALKS[:3]]
    assert answered_by(teacher, template, talks, T, GREEDY) == [talk("c", "one")]


def test_a_question_that_leaves_no_room_is_not_asked(template, teacher):
    assert answered_by(teacher, template, [talk("a " * T, "b")], T, GREEDY) == []


def test_questions_are_what_stands_between_answers():
    assert questions(TALKS[3]) == [[{"role": "user", "content": "c b"}]], "what nobody answers is left out"
    (first,) = questions(TALKS[2])
    assert [m["role"] for m in first] == ["system", "user"]


def test_answers_are_drawn_by_the_seed_and_each_turn_anew(template, teacher):
    done = [answered_by(teacher, template, TALKS * 4, T, replace(DRAWN, seed=seed)) for seed in (0, 0, 1)]
    assert done[0] == done[1] != done[2]
    same = [talk("a", "x", "a", "x")] * 8
    turns = [[m["content"] for c in answered_by(teacher, template, same, T, DRAWN) for m in c.messages[i : i + 1]]
             for i in (1, 3)]  # fmt: skip
    assert turns[0][: len(turns[1])] != turns[1]


def test_they_are_written_once_as_conversations_and_read_again(template, teacher, tmp_path, monkeypatch, capsys):
    first = answers_on_disk(teacher, template, TALKS, T, GREEDY, tmp_path, show=False)
    assert (
        read_conversations(tmp_path / "conversations.jsonl")
        == first
        == answered_by(teacher, template, TALKS, T, GREEDY)
    )
    num = sum(len(questions(c)) for c in first)
    assert f"finished {num} of 5 answers, in {len(first)} conversations" in capsys.readouterr().out
    monkeypatch.setattr(sequence_level, "answer", None)
    assert answers_on_disk(teacher, template, TALKS, T, GREEDY, tmp_path, show=False) == first


def test_answers_of_something_else_are_refused(template, teacher, tmp_path):
    answers_on_disk(teacher, template, TALKS, T, GREEDY, tmp_path, show=False)
    other = Model(teacher.config, initialise(teacher.config, 4), ops)
    for changed in ((other, template, TALKS, T, GREEDY), (teacher, template, TALKS[1:], T, GREEDY),
                    (teacher, template, TALKS, T - 1, GREEDY), (teacher, template, TALKS, T, DRAWN),
                    (teacher, template, TALKS, T, replace(GREEDY, max_tokens=7))):  # fmt: skip
        with pytest.raises(ValueError, match=r"another teacher, from other data or with other settings.*delete"):
            answers_on_disk(*changed, tmp_path, show=False)


def test_what_was_not_finished_is_made_anew(template, teacher, tmp_path, monkeypatch):
    whole = answers_on_disk(teacher, template, TALKS, T, GREEDY, tmp_path / "whole", show=False)

    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sequence_level, "answer", stop)
    with pytest.raises(KeyboardInterrupt):
        answers_on_disk(teacher, template, TALKS, T, GREEDY, tmp_path / "new", show=False)
    monkeypatch.setattr(sequence_level, "answer", answer)
    assert answers_on_disk(teacher, template, TALKS, T, GREEDY, tmp_path / "new", show=False) == whole


def test_a_teacher_that_never_finishes_is_said_to_be_one(template, teacher, tmp_path):
    mute = Model(teacher.config, initialise(teacher.config, 0), ops)
    mute.tree.head[template.stop] = -100 * np.abs(mute.tree.head).max()
    with pytest.raises(ValueError, match=r"finishes no answer within 1 tokens .* learned to answer"):
        answers_on_disk(mute, template, TALKS[:1], T, replace(GREEDY, max_tokens=1), tmp_path, show=False)
    assert not (tmp_path / "made.json").exists()
