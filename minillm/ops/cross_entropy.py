"""Cross-entropy of token predictions: the loss of language modelling."""

import numpy as np

from minillm.ops.check_inputs import ids_in_range
from minillm.ops.softmax import log_softmax_forward

IGNORE = -100  # a target that is not scored; the value PyTorch and the Hugging Face libraries use


def cross_entropy_forward(logits, targets):
    """losses = -log softmax(logits)[target] in nats, one per target; 0 where the target is IGNORE.

    logits: (..., V), targets: (...) integers in [0, V) or IGNORE  ->  losses: (...).
    Per token rather than averaged: whoever sums also counts (`num_targets`), and nothing is divided twice.
    """
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"cross_entropy: one target per row of logits: logits {logits.shape}, targets {targets.shape}")
    ids_in_range("cross_entropy", "targets", targets, logits.shape[-1], ignore=IGNORE)
    logp, _ = log_softmax_forward(logits)
    scored = targets != IGNORE
    chosen = np.where(scored, targets, 0)[..., None]
    losses = np.where(scored, -np.take_along_axis(logp, chosen, axis=-1)[..., 0], 0)
    return losses, (logp, chosen, scored)


def cross_entropy_backward(dlosses, saved, out=None):
    """dlogits = (softmax(logits) - onehot(target)) * dloss, and exactly 0 where the target is IGNORE.

    out: where to write dlogits, of the logits' shape; may be the logits themselves, if nobody needs them any more.
    """
    logp, chosen, scored = saved
    dlogits = np.exp(logp, out=out)
    at_target = np.take_along_axis(dlogits, chosen, axis=-1)
    np.put_along_axis(dlogits, chosen, at_target - 1, axis=-1)
    dlogits *= dlosses[..., None]
    dlogits[~scored] = 0  # also where ignored logits hold inf or NaN
    return dlogits, None


def num_targets(targets):
    """How many targets are scored: the exact divisor of a mean loss."""
    return int(np.count_nonzero(targets != IGNORE))
