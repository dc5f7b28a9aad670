"""pass@k: how probable it is that one of k sampled answers is right (Chen et al. 2021, arXiv 2107.03374)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minillm.config import SamplingConfig, check_at_least
from minillm.datasets.conversations import Conversation
from minillm.evaluation.exact_match import ANSWER_TOKENS, check_answered, is_right, write
from minillm.model.model import Model
from minillm.tokenizer.chat import ChatTemplate, Message


class Samples(NamedTuple):
    """One question and several answers, each sampled by itself."""

    task: str
    messages: list[Message]
    expected: str
    answers: list[str]
    k: int

    @property
    def question(self) -> Any:
        """See Record."""
        return self.messages, self.expected, self.k

    @property
    def value(self) -> float:
        """The probability that k of the answers, drawn without replacement, hold a right one."""
        return estimate_pass(len(self.answers), sum(is_right(a, self.expected) for a in self.answers), self.k)

    @property
    def weight(self) -> float:
        """See Record."""
        return 1.0


def estimate_pass(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), without bias, unlike 1 - (1 - c/n)^k.  n: samples, c: right ones, 1 <= k <= n."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_at_k(model: Model, template: ChatTemplate, conversations: Sequence[Conversation], k: int = 1,
              num_samples: int = 8, temperature: float = 0.8, seed: int = 0,
              max_tokens: int = ANSWER_TOKENS) -> list[Samples]:  # fmt: skip
    """Answer the last question of each conversation num_samples times; in the order of the input.

    The same seed gives the same answers to a question at the same place, whichever others are asked.
    """
    check_at_least("k", k, 1)
    if num_samples < k:
        raise ValueError(f"pass@{k} needs at least {k} samples of each question: got num_samples={num_samples}")
    check_answered(conversations)
    records = []
    for number, c in enumerate(conversations):
        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        sampling = SamplingConfig(temperature=temperature, seed=own, max_tokens=max_tokens)
        answers = write(model, template, [template.prompt(c.messages[:-1])] * num_samples, sampling)
        records.append(Samples(c.task, c.messages[:-1], c.messages[-1]["content"], answers, k))
    return records
