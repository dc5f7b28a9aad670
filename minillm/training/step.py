"""The gradient of one optimizer step, over one or several micro-batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minillm.model.model import Model
from minillm.model.run import Dropout, attend_of, positions_of, run_of
from minillm.model.transformer import transformer_backward, transformer_forward
from minillm.ops.cross_entropy import num_targets
from minillm.training.objective import Deep
from minillm.tree import Packed, Tree


def mean_gradient(model: Model, batches: Sequence[Any], grads: Packed, objective: Callable | Deep, seed: int = 0,
                  step: int = 0, recompute: bool = False, run_all: Callable = map) -> tuple[float, int]:  # fmt: skip
    """grads = gradient of the mean loss over the targets of all `batches`.  Returns that loss and their number.

    Every token weighs the same, in whichever micro-batch it stands.  Without any target the gradient is 0.
    seed, step: choose the dropout masks.  run_all: `map`, or that of an executor to run micro-batches on several
    threads; the first writes into `grads`, the others are added in order, so the sum has the same bytes either way.
    """
    count = sum(num_targets(batch.targets) for batch in batches)
    config = model.config

    def work(number: int) -> tuple[float, Packed]:
        into = model.weights.zeros_like() if number else grads
        draw = step * len(batches) + number
        weights = model.training_tree(seed, draw)
        dropout = Dropout(config.dropout, seed, draw) if config.dropout else None
        options = {"dropout": dropout, "recompute": recompute}
        return _gradient(model, weights, batches[number], objective, 1 / count, into, **options), into

    grads.vector.fill(0)
    loss = 0.0
    for part, gradient in run_all(work, range(len(batches) if count else 0)):
        loss += part
        if gradient is not grads:
            model.ops.add_into(grads.vector, gradient.vector)
    return loss, count


def split_rows(batch: Any, B: int) -> list[Any]:
    """A batch (a NamedTuple of arrays of rows) as micro-batches of at most B rows."""
    starts = range(0, len(batch[0]), B)
    return [type(batch)(*(None if a is None else a[b : b + B] for a in batch)) for b in starts]


def _gradient(model: Model, weights: Tree, batch: Any, objective: Callable | Deep, scale: float, grads: Packed,
              **options: Any) -> float:  # fmt: skip
    """The loss of one micro-batch, whose gradient is added into `grads`."""
    positions = positions_of(*batch.ids.shape) if batch.positions is None else batch.positions
    attend = attend_of(model.ops, batch.segments)
    options["keep_hidden"] = isinstance(objective, Deep)
    run = run_of(model.config, model.ops, positions, attend, grads.vector.dtype, **options)
    with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows shows in its gradient's norm
        logits, saved = transformer_forward(batch.ids, weights, run)
        if isinstance(objective, Deep):
            trees = model.weights.tree, grads.tree
            loss, dlogits, dhidden = objective.of(model.ops, logits, saved.hidden, batch, scale, *trees)
        else:
            (loss, dlogits), dhidden = objective(model.ops, logits, batch, scale), None
        del logits  # (B, T, V) is often the largest array of all
        transformer_backward(dlogits, saved, grads.tree, run, dhidden=dhidden)
    return loss
