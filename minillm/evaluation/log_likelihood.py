"""How probable a model finds one piece of text after another: what multiple choice and perplexity are made of."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from minillm import threads
from minillm.config import check_at_least
from minillm.datasets.sampler import Batch
from minillm.model.model import Model
from minillm.ops.cross_entropy import IGNORE


class LogLikelihood(NamedTuple):
    """log p(continuation | context) in nats, and whether each of its tokens is the likeliest."""

    nats: float
    is_greedy: bool


def log_likelihoods(
    model: Model, pairs: Sequence[tuple[list[int], list[int]]], batch_size: int = 16
) -> list[LogLikelihood]:
    """Of each pair (context, continuation) of ids, in the order of the input.

    Pairs of one length share a batch, so nothing is padded.  ValueError for a pair without a context, without a
    continuation, or longer than the model's context and the one token that it predicts.
    """
    check_at_least("batch_size", batch_size, 1)
    for number, (context, continuation) in enumerate(pairs):
        _check(number, len(context), len(continuation), model.config.context_len)
    by_length: dict[int, list[int]] = {}
    for i, (context, continuation) in enumerate(pairs):
        by_length.setdefault(len(context) + len(continuation), []).append(i)
    groups: list[list[int]] = []
    for length in sorted(by_length, reverse=True):
        rest = iter(by_length[length])
        groups += iter(lambda rest=rest: list(islice(rest, batch_size)), [])  # type: ignore[misc]
    found: dict[int, LogLikelihood] = {}

    def read(group: list[int]) -> None:
        found.update(zip(group, _read(model, [pairs[i] for i in group])))

    threads.run_all(read, groups)
    return [found[i] for i in range(len(pairs))]


def _read(model: Model, pairs: list[tuple[list[int], list[int]]]) -> list[LogLikelihood]:
    """Of pairs that are equally long together."""
    tokens = np.array([context + continuation for context, continuation in pairs])
    batch = Batch(tokens[:, :-1], tokens[:, 1:].copy())
    for row, (context, _) in zip(batch.targets, pairs):
        row[: len(context) - 1] = IGNORE
    logits = model.logits(batch.ids)
    losses, _ = model.ops.cross_entropy_forward(logits, batch.targets)
    nats = -np.asarray(losses, np.float64).sum(axis=-1)
    greedy = np.all((np.argmax(logits, axis=-1) == batch.targets) | (batch.targets == IGNORE), axis=-1)
    return [LogLikelihood(n, g) for n, g in zip(nats.tolist(), greedy.tolist())]


def _check(number: int, context: int, continuation: int, context_len: int) -> None:
    if context < 1 or continuation < 1:
        raise ValueError(f"pair {number} has {context} tokens and then {continuation}; both must be at least one")
    if context + continuation > context_len + 1:
        raise ValueError(
            f"pair {number} has {context} + {continuation} tokens, and a model of {context_len} can score "
            f"{context_len + 1}; shorten its context, or use a model with a longer context_len"
        )
