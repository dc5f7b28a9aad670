"""On-policy distillation: the student speaks, only what it said is judged, and a stopped run says the same again."""

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig, SamplingConfig
from minillm.datasets.packing import PackedRows
from minillm.datasets.sampler import Sampler
from minillm.inference.answers import answer
from minillm.inference.generate import generate_ids
from minillm.model.model import Model
from minillm.model.run import attend_of
from minillm.model.weights import initialise
from minillm.ops.cross_entropy import IGNORE
from minillm.ops.softmax import log_softmax_forward
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import CONTROL, ChatTemplate, Rendered
from minillm.training import distil
from minillm.training.divergence import Distil
from minillm.training.on_policy import OnPolicySampler
from minillm.training.step import mean_gradient, split_rows

T, B, MAX_TOKENS = 48, 4, 6


@pytest.fixture(scope="module")
def template():
    return ChatTemplate(Tokenizer.train(["user assistant a b c"], 300, special=CONTROL))


@pytest.fixture(scope="module")
def rows(template):
    """Conversations of one and of two answers, some of which share a row."""
    talks = [[("user", f"{c} a"), ("assistant", "b c")] * (1 + i % 2) for i, c in enumerate("abcdefghij")]
    messages = [[{"role": role, "content": said} for role, said in talk] for talk in talks]
    return PackedRows([template.render(m) for m in messages], T)


def model_of(template, seed=0, dtype=np.float32, channels=16):
    shape = ModelConfig(vocab_size=template.tokenizer.vocab_size, context_len=T, num_layers=1, num_heads=2,
                        channels=channels)  # fmt: skip
    return Model(shape, initialise(shape, seed, dtype), ops)


@pytest.fixture
def student(template):
    return model_of(template)


def sampler_of(rows, student, template, share, seed=0, max_tokens=MAX_TOKENS):
    return OnPolicySampler(rows, B, seed, student, template, share, max_tokens)


def texts(batch):
    """Each text of a batch: its ids, and which of its targets are judged and which are given."""
    for ids, targets, _, segments, answers in zip(*batch):
        for number in range(segments.max() + 1):
            here = segments == number
            yield ids[here], targets[here], answers[here]


def test_with_no_share_it_is_the_plain_sampler_and_every_answer_is_given(rows, student, template):
    plain, ours = Sampler(rows, B, 3), sampler_of(rows, student, template, 0.0, seed=3)
    for _ in range(5):
        a, b = plain.next(), ours.next()
        assert all(np.array_equal(x, y) for x, y in zip(a, b))
        assert np.array_equal(b.answers, b.targets)


def test_what_the_student_says_follows_a_prompt_of_the_data_and_is_all_that_is_judged(rows, student, template):
    prompts = [e.ids[:t] for e in rows.examples for t in range(1, len(e.ids)) if e.mask[t] and not e.mask[t - 1]]
    told = []
    for ids, targets, answers in texts(sampler_of(rows, student, template, 1.0).next()):
        assert np.all(answers == IGNORE)
        judged = np.flatnonzero(targets != IGNORE)
        start = judged[0] + 1
        assert ids[:start].tolist() in prompts
        assert np.array_equal(judged, np.arange(start - 1, len(ids))), "all of the answer, up to the last token"
        assert np.array_equal(ids[start:], targets[judged[:-1]])
        said = targets[judged].tolist()
        assert len(said) == MAX_TOKENS or said[-1] == template.stop
        told.append(said)
    assert len({str(said) for said in told}) > 1


def test_padding_is_not_judged_and_the_rest_keeps_its_row(rows, student, template):
    batch = sampler_of(rows, student, template, 0.5).next()
    assert np.all(batch.targets[batch.segments < 0] == IGNORE)
    own = np.all(batch.answers == IGNORE, axis=1)
    assert 0 < np.count_nonzero(own) < len(own)
    assert np.array_equal(batch.answers[~own], batch.targets[~own])


def test_about_the_share_of_the_rows_is_the_students(rows, student, template):
    sampler = sampler_of(rows, student, template, 0.3, max_tokens=1)
    num_given = [np.count_nonzero(np.any(sampler.next().answers != IGNORE, axis=1)) for _ in range(50)]
    assert sum(num_given) / 200 == pytest.approx(0.7, abs=3 * (0.3 * 0.7 / 200) ** 0.5)
    assert len(set(num_given)) > 2, "every step draws anew"


def test_draws_depend_on_seed_place_and_student_alone(rows, student, template):
    def drawn(seed=0, skip=0, who=student):
        sampler = sampler_of(rows, who, template, 1.0, seed)
        state = sampler.state() | {"epoch": skip}
        sampler.restore(state)
        return [x.tobytes() for x in sampler.next()]

    assert drawn() == drawn()
    assert len({str(drawn(**other)) for other in ({}, {"seed": 1}, {"skip": 1}, {"who": model_of(template, 1)})}) == 4


def test_the_student_speaks_with_the_weights_it_has_now(rows, student, template):
    first, second = (sampler_of(rows, student, template, 1.0) for _ in range(2))
    before = first.next().targets.tobytes()
    student.weights.vector[...] = model_of(template, 1).weights.vector
    assert second.next().targets.tobytes() != before


def test_answers_are_drawn_at_temperature_one(rows, template):
    """On average a token surprises its own distribution by the entropy: at 0.8 it would by less, at 1.25 by more."""
    student = model_of(template, dtype=np.float64)
    student.weights.vector[...] *= 8  # far from uniform
    sampler = sampler_of(rows, student, template, 1.0)
    excess = np.zeros(0)
    for _ in range(10):
        batch = sampler.next()
        judged = batch.targets != IGNORE
        logits = student.logits(batch.ids, batch.positions, attend_of(ops, batch.segments))[judged]
        logq, _ = log_softmax_forward(logits)
        entropy = -np.sum(np.exp(logq) * logq, axis=-1)
        excess = np.append(excess, -np.take_along_axis(logq, batch.targets[judged][:, None], 1)[:, 0] - entropy)
    error = np.std(excess) / len(excess) ** 0.5
    assert error < 0.1 and abs(np.mean(excess)) < 4 * error


def test_where_a_prompt_fills_the_context_the_given_answer_is_learned(template, student):
    full = Rendered(list(range(T + 1)), [False] * T + [True])
    batch = sampler_of(PackedRows([full], T), student, template, 1.0).next()
    assert np.array_equal(batch.answers, batch.targets)
    assert np.count_nonzero(batch.targets != IGNORE) == B


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_what_it_says(rows, template):
    """And one that is not has; the gradient of the first is mere rounding of the second's."""
    results = {}
    for seed in (0, 1):
        student, teacher = model_of(template, 0, np.float64), model_of(template, seed, np.float64)
        batch = sampler_of(rows, student, template, 1.0).next()
        grads = student.weights.zeros_like()
        objective = distil.taught_by(teacher, Distil("reverse", 1.0, 0.5), lambda batch: batch.answers)
        loss, count = mean_gradient(student, split_rows(batch, 2), grads, objective)
        assert count == np.count_nonzero(batch.targets != IGNORE)
        results[seed] = loss, np.linalg.norm(grads.vector)
    assert results[0] == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-10))
    assert results[1][0] > 1e-4 and results[1][1] > 1e-4


def test_answers_come_in_the_order_of_the_prompts_and_as_from_plain_generation(template, student):
    prompts = [template.prompt([{"role": "user", "content": "a " * n}]) for n in (5, 1, 3, 2, 4)]
    sampling = SamplingConfig(temperature=0, max_tokens=5)
    done = answer(student, template, prompts, sampling, batch_size=2)
    for prompt, completion in zip(prompts, done):
        alone = [tokens[0] for tokens in generate_ids(student, [prompt], sampling, template.stop)]
        assert completion.ids == alone
    drawn = [answer(student, template, [prompts[0]] * 4, SamplingConfig(seed=seed), batch_size=2) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({c.text for c in drawn[0]}) == 4, "rows of different batches draw differently"
