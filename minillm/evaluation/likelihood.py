"""Validation loss: how probable the model finds text it was not trained on."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minillm.datasets.corpus import Split
from minillm.datasets.sampler import Batch, validation_batches, validation_set
from minillm.model.model import Model


@dataclass(frozen=True)
class Likelihood:
    """The loss over whole documents, each read from its start and alone."""

    loss: float
    """Nats per token, the end of each document included."""
    bits_per_byte: float
    """Bits per byte of text: comparable between tokenizers."""
    floor: float | None
    """The best possible loss, nats per token; None where the text's entropy is not known."""
    num_targets: int
    """Tokens scored."""


def likelihood(
    model: Model, split: Split, batch_size: int, max_tokens: int | None = None, run_all: Callable = map
) -> Likelihood:
    """Score the documents of `split` in order until about `max_tokens` tokens, or all of them.

    run_all: `map`, or that of an executor to score batches on several threads.
    """

    def score(batch: Batch) -> float:
        losses, _ = model.ops.cross_entropy_forward(model.logits(batch.ids), batch.targets)
        return float(np.sum(losses, dtype=np.float64))

    scored = validation_set(split, max_tokens)
    total = sum(run_all(score, validation_batches(split, model.config.context_len, batch_size, max_tokens)))
    floor = None if scored.nats is None else scored.nats / scored.num_targets
    loss = total / scored.num_targets
    return Likelihood(loss, total / math.log(2) / scored.num_bytes, floor, scored.num_targets)
