"""Multiple choice by log-likelihood: the model says nothing, it is asked which answer it finds likeliest."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from minillm.datasets.choices import ChoiceQuestion
from minillm.evaluation.log_likelihood import log_likelihoods
from minillm.model.model import Model
from minillm.tokenizer.chat import ChatTemplate, Message


class Choice(NamedTuple):
    """One question and how probable each choice is, log p in nats."""

    task: str
    messages: list[Message]
    choices: list[str]
    expected: int
    nats: list[float]

    @property
    def question(self) -> Any:
        """See Record."""
        return self.messages, self.choices, self.expected

    @property
    def value(self) -> float:
        """Whether the choice likeliest per byte is the right one: without that, the shortest would win too often.

        (Brown et al. 2020, arXiv 2005.14165, section 2.4.)
        """
        return float(_likeliest([n / len(c.encode()) for n, c in zip(self.nats, self.choices)]) == self.expected)

    @property
    def raw_value(self) -> float:
        """Whether the likeliest choice, whatever its length, is the right one."""
        return float(_likeliest(self.nats) == self.expected)

    @property
    def weight(self) -> float:
        """See Record."""
        return 1.0


def multiple_choice(model: Model, template: ChatTemplate, questions: Sequence[ChoiceQuestion],
                    batch_size: int = 16) -> list[Choice]:  # fmt: skip
    """Score each choice as the answer to its question, the end of the turn left out; in the order of the input."""
    pairs = []
    for q in questions:
        context = template.prompt(q.messages)
        pairs += [(context, template.tokenizer.encode(choice)) for choice in q.choices]
    scored = iter(log_likelihoods(model, pairs, batch_size))
    return [
        Choice(q.task, q.messages, q.choices, q.expected, [next(scored).nats for _ in q.choices]) for q in questions
    ]


def _likeliest(values: Sequence[float]) -> int:
    """The first of the largest."""
    return max(range(len(values)), key=values.__getitem__)
