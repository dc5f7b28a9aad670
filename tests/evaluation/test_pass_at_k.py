"""pass@k: without bias, the same answers whichever questions stand beside."""

from itertools import combinations

import numpy as np
import pytest

from minillm.datasets.conversations import Conversation
from minillm.evaluation.pass_at_k import Samples, estimate_pass, pass_at_k
from minillm.tokenizer.chat import ChatTemplate


def asked(*questions):
    return [Conversation([{"role": "user", "content": q}, {"role": "assistant", "content": "red"}]) for q in questions]


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (5, 0, 2), (5, 5, 5), (5, 3, 3), (1, 1, 1)])
def test_the_estimate_is_the_share_of_draws_that_hold_a_right_one(n, c, k):
    draws = list(combinations(range(n), k))
    assert estimate_pass(n, c, k) == pytest.approx(sum(min(draw) < c for draw in draws) / len(draws))


def test_the_estimate_is_without_bias():
    p, n, k = 0.3, 6, 3
    right = np.random.default_rng(0).binomial(n, p, 20_000)
    assert np.mean([estimate_pass(n, int(c), k) for c in right]) == pytest.approx(1 - (1 - p) ** k, abs=0.005)


def test_a_record_counts_its_right_answers():
    assert Samples("", [], "4", ["4 ", "5", "6"], 2).value == pytest.approx(2 / 3)


def test_the_same_seed_gives_the_same_answers_whatever_is_asked_besides(model, tokenizer):
    template = ChatTemplate(tokenizer)
    one = pass_at_k(model, template, asked("cat"), 1, 4, 1.0, seed=3, max_tokens=6)
    two = pass_at_k(model, template, asked("cat", "dog"), 1, 4, 1.0, seed=3, max_tokens=6)
    other = pass_at_k(model, template, asked("cat"), 1, 4, 1.0, seed=4, max_tokens=6)
    assert one[0] == two[0] != other[0]
    assert len(set(one[0].answers)) > 1


def test_too_few_samples_are_refused(model, tokenizer):
    with pytest.raises(ValueError, match="pass@5 needs at least 5 samples"):
        pass_at_k(model, ChatTemplate(tokenizer), asked("cat"), 5, 4)
