"""Likelihoods of continuations: against one forward pass each, whatever the batches; choices and texts made of them."""

import math

import numpy as np
import pytest

from minillm.datasets.choices import ChoiceQuestion, read_questions
from minillm.datasets.tasks import choice_question
from minillm.evaluation.log_likelihood import log_likelihoods
from minillm.evaluation.multiple_choice import Choice, multiple_choice
from minillm.evaluation.perplexity import bits_per_byte, perplexity, windows
from minillm.ops.softmax import log_softmax_forward
from minillm.tokenizer.chat import ChatTemplate


def by_hand(model, context, continuation):
    """One pair in a pass of its own: nats, and whether greedy decoding would have said the same."""
    logp, _ = log_softmax_forward(model.logits(np.array([context + continuation])[:, :-1])[0])
    rows = logp[len(context) - 1 :]
    return sum(row[token] for row, token in zip(rows, continuation)), all(
        np.argmax(row) == token for row, token in zip(rows, continuation)
    )


@pytest.fixture(scope="module")
def pairs(model):
    generator = np.random.default_rng(0)
    made = [
        (generator.integers(0, 270, a).tolist(), generator.integers(0, 270, b).tolist())
        for a, b in [(1, 1), (5, 3), (40, 9), (3, 5), (7, 1), (1, 48), (4, 4)]
    ]
    context = made[0][0]
    likeliest = int(np.argmax(model.logits(np.array([context]))[0, -1]))
    return [*made, (context, [likeliest])]


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_each_pair_is_as_likely_as_in_a_pass_of_its_own(model, pairs, batch_size):
    found = log_likelihoods(model, pairs, batch_size)
    for (nats, is_greedy), pair in zip(found, pairs, strict=True):
        expected = by_hand(model, *pair)
        assert nats == pytest.approx(expected[0], rel=1e-5)
        assert is_greedy == expected[1]
    assert found[-1].is_greedy and not found[0].is_greedy


@pytest.mark.parametrize(
    ("pair", "message"), [(([], [1]), "at least one"), (([1], []), "at least one"), (([1] * 40, [1] * 10), "49")]
)
def test_a_pair_that_cannot_be_scored_is_named(model, pair, message):
    with pytest.raises(ValueError, match=f"pair 1 .*{message}"):
        log_likelihoods(model, [([1], [2]), pair])


def test_choices_are_judged_per_byte():
    record = Choice("t", [], ["no", "certainly not"], 1, [-2.0, -6.0])  # -1 and -0.46 a byte
    assert (record.value, record.raw_value) == (1, 0)


def test_multiple_choice_scores_each_choice_as_the_answer(model, tokenizer):
    template = ChatTemplate(tokenizer)
    asked = [{"role": "user", "content": "cat?"}]
    records = multiple_choice(model, template, [ChoiceQuestion(asked, ["red", "a dog"], 0, "t")] * 2, batch_size=3)
    expected = [by_hand(model, template.prompt(asked), tokenizer.encode(c))[0] for c in ("red", "a dog")]
    assert records[0].nats == pytest.approx(expected, rel=1e-5)
    assert records[0] == records[1]


def test_generated_choices_hold_the_answer_once_and_others_of_the_same_story():
    places = set()
    for i in range(60):
        q = choice_question("test", 0, i)
        story = q.messages[0]["content"]
        assert len(set(q.choices)) == len(q.choices) >= 2
        last_words = [c.rstrip(".").split()[-1] for c in q.choices]
        assert all(word in story for word in last_words)
        if q.task != "story: who":
            assert [c in story for c in q.choices].count(True) == 1 and q.choices[q.expected] in story
        places.add(q.expected)
    assert places == {0, 1, 2}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": []}', "choices"),
        ('{"messages": [{"role": "user", "content": "a"}], "choices": ["b"], "expected": 0}', "at least two"),
        ('{"messages": [{"role": "user", "content": "a"}], "choices": ["b", "c"], "expected": 2}', "0 to 1"),
        ('{"messages": [{"role": "assistant", "content": "a"}], "choices": ["b", "c"], "expected": 1}', "the user's"),
    ],
)
def test_bad_questions_are_named_by_file_and_line(tmp_path, line, message):
    good = '{"messages": [{"role": "user", "content": "a"}], "choices": ["b", "c"], "expected": 1}'
    (tmp_path / "q.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=rf"q\.jsonl:2: .*{message}"):
        read_questions(tmp_path / "q.jsonl")
    (tmp_path / "q.jsonl").write_text(good)
    assert read_questions(tmp_path / "q.jsonl")[0].choices == ["b", "c"]


@pytest.mark.parametrize("num", [2, 3, 7, 8, 9, 30])
@pytest.mark.parametrize(("T", "stride"), [(8, 8), (8, 3), (8, 1), (1, 1)])
def test_windows_score_every_token_once_with_as_much_context_as_fits(num, T, stride):
    ids = list(range(num))
    parts = list(windows(ids, T, stride))
    assert [i for _, scored in parts for i in scored] == ids[1:]
    for context, scored in parts:
        assert context + scored == ids[context[0] : scored[-1] + 1]
        assert len(context) + len(scored) == min(T + 1, scored[-1] + 1)


def test_a_long_text_costs_the_sum_of_its_tokens(model, tokenizer):
    texts = ["the red cat saw " * 15, "ü", "dog"]
    records = bits_per_byte(model, tokenizer, texts, stride=1, batch_size=5)
    for text, record in zip(texts, records):
        ids = [tokenizer.eot, *tokenizer.encode(text), tokenizer.eot]
        nats = -sum(by_hand(model, ids[max(0, i - 48) : i], [ids[i]])[0] for i in range(1, len(ids)))
        assert record.nats == pytest.approx(nats, rel=1e-5)
        assert record.value == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)
        assert record.num_tokens == len(ids) - 1
    assert perplexity(records) == pytest.approx(
        math.exp(sum(r.nats for r in records) / sum(r.num_tokens for r in records))
    )


def test_a_text_that_fits_does_not_depend_on_the_stride(model, tokenizer):
    assert bits_per_byte(model, tokenizer, ["the cat"], 1) == bits_per_byte(model, tokenizer, ["the cat"], 48)


def test_what_cannot_be_measured_is_refused(model, tokenizer):
    with pytest.raises(ValueError, match="text 1 is empty"):
        bits_per_byte(model, tokenizer, ["a", ""])
    with pytest.raises(ValueError, match="stride must be at most 48"):
        bits_per_byte(model, tokenizer, ["a"], 49)
