"""Objectives: what a batch's logits should have been.  objective(ops, logits, batch, scale) -> loss, dlogits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Deep:
    """An objective that looks inside: of(ops, logits, hidden, batch, scale, weights, grads) -> loss, dlogits, dhidden.

    hidden: (B, T, C), what the last block leaves, before the final norm.  weights: the tree of all that is trained, in
    which the objective may have arrays of its own, whose gradients it adds into `grads`.
    """

    of: Callable


def next_token(ops, logits, batch, scale):
    """loss = scale * sum of -log p(target).  logits: (B, T, V)  ->  loss: float, dlogits: (B, T, V).

    scale is 1 / (all targets of the step), the one place where a loss is divided: over however many micro-batches
    the step is spread, their losses and gradients add up to the mean over its tokens.
    """
    losses, saved = ops.cross_entropy_forward(logits, batch.targets)
    dlogits, _ = ops.cross_entropy_backward(np.full_like(losses, scale), saved, logits)
    return scale * float(np.sum(losses, dtype=np.float64)), dlogits
