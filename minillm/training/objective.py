"""Objectives: what a batch's logits should have been.  objective(ops, logits, batch, scale) -> loss, dlogits."""

import numpy as np


def next_token(ops, logits, batch, scale):
    """loss = scale * sum of -log p(target).  logits: (B, T, V)  ->  loss: float, dlogits: (B, T, V).

    scale is 1 / (all targets of the step), the one place where a loss is divided: over however many micro-batches
    the step is spread, their losses and gradients add up to the mean over its tokens.
    """
    losses, saved = ops.cross_entropy_forward(logits, batch.targets)
    dlogits, _ = ops.cross_entropy_backward(np.full_like(losses, scale), saved, logits)
    return scale * float(np.sum(losses, dtype=np.float64)), dlogits
