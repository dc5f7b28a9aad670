"""Exact match: the model answers, and an answer counts if it is the expected text, surrounding space apart."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from minillm.config import SamplingConfig, check_at_least
from minillm.datasets.conversations import Conversation
from minillm.inference.generate import Completion, stream_ids
from minillm.model.model import Model
from minillm.tokenizer.chat import ChatTemplate, Message

ANSWER_TOKENS = 64


class Answer(NamedTuple):
    """One question and the model's answer."""

    task: str
    messages: list[Message]
    expected: str
    answer: str

    @property
    def question(self) -> Any:
        """See Record."""
        return self.messages, self.expected

    @property
    def correct(self) -> bool:
        """Whether the answer is the expected one."""
        return is_right(self.answer, self.expected)

    @property
    def value(self) -> float:
        """See Record."""
        return float(self.correct)

    @property
    def weight(self) -> float:
        """See Record."""
        return 1.0


def is_right(answer: str, expected: str) -> bool:
    """Whether both are the same, surrounding space apart."""
    return answer.strip() == expected.strip()


def exact_match(model: Model, template: ChatTemplate, conversations: Sequence[Conversation], batch_size: int = 16,
                max_tokens: int = ANSWER_TOKENS) -> list[Answer]:  # fmt: skip
    """Answer the last question of each conversation, what was said before given; greedy, in the order of the input.

    ValueError if a conversation does not end with an answer.
    """
    check_at_least("batch_size", batch_size, 1)
    check_answered(conversations)
    prompts = [template.prompt(c.messages[:-1]) for c in conversations]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # rows of a batch of about the same length
    answers = [""] * len(prompts)
    sampling = SamplingConfig(temperature=0, max_tokens=max_tokens)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        for i, answer in zip(rows, write(model, template, [prompts[i] for i in rows], sampling)):
            answers[i] = answer
    return [Answer(c.task, c.messages[:-1], c.messages[-1]["content"], a) for c, a in zip(conversations, answers)]


def write(model: Model, template: ChatTemplate, prompts: list[list[int]], sampling: SamplingConfig) -> list[str]:
    """What the model answers to each prompt, together in one batch."""
    done = [Completion() for _ in prompts]
    for _ in stream_ids(model, template.tokenizer, prompts, sampling, template.stop, done):
        pass
    return [completion.text for completion in done]


def check_answered(conversations: Sequence[Conversation]) -> None:
    """ValueError if a conversation does not end with an answer."""
    for number, c in enumerate(conversations):
        if c.messages[-1]["role"] != "assistant":
            raise ValueError(f"conversation {number} must end with an answer, the expected one, to be scored")
