"""Bits per byte of whole texts, however long: a window slides over each and scores what it has not scored yet."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from minillm.config import check_at_least
from minillm.evaluation.log_likelihood import log_likelihoods
from minillm.model.model import Model
from minillm.tokenizer import Tokenizer


class Text(NamedTuple):
    """A text, and how improbable a model finds it, its end included: -log p in nats."""

    text: str
    nats: float
    num_tokens: int
    task: str = ""

    @property
    def question(self) -> Any:
        """See Record."""
        return self.text

    @property
    def value(self) -> float:
        """Bits per byte; comparable between tokenizers, which nats per token are not."""
        return self.nats / math.log(2) / self.weight

    @property
    def weight(self) -> float:
        """Bytes: the mean is that of the bytes, not of the texts."""
        return float(len(self.text.encode()))


def bits_per_byte(model: Model, tokenizer: Tokenizer, texts: Sequence[str], stride: int = 0,
                  batch_size: int = 16) -> list[Text]:  # fmt: skip
    """Score every token of every text once, in the order of the input; empty texts are refused.

    stride: how far the window moves.  Each token but the first few sees at least context_len - stride tokens: a small
    stride is exact and slow; 0 stands for half the context.
    """
    T = model.config.context_len
    stride = stride or max(1, T // 2)
    check_at_least("stride", stride, 1)
    if stride > T:
        raise ValueError(f"stride must be at most {T}, the context, or tokens would be left out: got {stride}")
    pairs, owners = [], []
    for number, text in enumerate(texts):
        if not text:
            raise ValueError(f"text {number} is empty: it has no bytes to share its bits among; leave it out")
        ids = [tokenizer.eot, *tokenizer.encode(text), tokenizer.eot]
        for pair in windows(ids, T, stride):
            pairs.append(pair)
            owners.append(number)
    nats, counts = [0.0] * len(texts), [0] * len(texts)
    for owner, (_, scored), found in zip(owners, pairs, log_likelihoods(model, pairs, batch_size)):
        nats[owner] -= found.nats
        counts[owner] += len(scored)
    return [Text(text, n, count) for text, n, count in zip(texts, nats, counts)]


def windows(ids: list[int], T: int, stride: int) -> Iterator[tuple[list[int], list[int]]]:
    """(context, what is scored after it), at most T + 1 together; every id but the first is scored once."""
    end = 1
    while end < len(ids):
        start, end = end, min(len(ids), end + (T if end == 1 else stride))
        yield ids[max(0, end - T - 1) : start], ids[start:end]


def perplexity(records: Sequence[Text]) -> float:
    """exp(nats per token), of all texts together."""
    return math.exp(sum(r.nats for r in records) / sum(r.num_tokens for r in records))
