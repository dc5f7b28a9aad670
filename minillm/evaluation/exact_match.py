"""Exact match: the model answers, and an answer counts if it is the expected text, surrounding space apart."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from minillm.config import SamplingConfig, check_at_least
from minillm.datasets.conversations import Conversation
from minillm.inference.generate import Completion, stream_ids
from minillm.model.model import Model
from minillm.tokenizer.chat import ChatTemplate, Message

ANSWER_TOKENS = 64


class Record(NamedTuple):
    """One question: enough to count it again without the model."""

    task: str
    messages: list[Message]
    expected: str
    answer: str

    @property
    def correct(self) -> bool:
        """Whether the answer is the expected one."""
        return self.answer.strip() == self.expected.strip()


class Score(NamedTuple):
    """The share of right answers, how far chance alone may have moved it, and of how many."""

    accuracy: float
    standard_error: float
    num: int


def exact_match(model: Model, template: ChatTemplate, conversations: Sequence[Conversation], batch_size: int = 16,
                max_tokens: int = ANSWER_TOKENS) -> list[Record]:  # fmt: skip
    """Answer the last question of each conversation, what was said before given; greedy, in the order of the input.

    ValueError if a conversation does not end with an answer.
    """
    check_at_least("batch_size", batch_size, 1)
    for number, c in enumerate(conversations):
        if c.messages[-1]["role"] != "assistant":
            raise ValueError(f"conversation {number} must end with an answer, the expected one, to be scored")
    prompts = [template.prompt(c.messages[:-1]) for c in conversations]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # rows of a batch of about the same length
    answers = [""] * len(prompts)
    sampling = SamplingConfig(temperature=0, max_tokens=max_tokens)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        done = [Completion() for _ in rows]
        for _ in stream_ids(model, template.tokenizer, [prompts[i] for i in rows], sampling, template.stop, done):
            pass
        for i, completion in zip(rows, done):
            answers[i] = completion.text
    return [Record(c.task, c.messages[:-1], c.messages[-1]["content"], a) for c, a in zip(conversations, answers)]


def scores(records: Sequence[Record]) -> dict[str, Score]:
    """By task, in alphabetical order, and at last of `all`."""
    tasks = sorted({record.task for record in records})
    groups = {task or "(no task)": [r.correct for r in records if r.task == task] for task in tasks}
    return {task: score(correct) for task, correct in (groups | {"all": [r.correct for r in records]}).items()}


def score(correct: Sequence[bool]) -> Score:
    """accuracy = mean,  standard error = sqrt(accuracy (1 - accuracy) / n)."""
    if not correct:
        raise ValueError("nothing was scored: expected at least one question")
    accuracy = sum(correct) / len(correct)
    return Score(accuracy, math.sqrt(accuracy * (1 - accuracy) / len(correct)), len(correct))
