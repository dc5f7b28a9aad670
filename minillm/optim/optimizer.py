"""The optimizer of a run: which array gets which rule, and the state that must survive a restart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minillm import ops as reference
from minillm import threads
from minillm.checkpoint import check_matches, copy_into
from minillm.config import OptimConfig, check_at_least
from minillm.optim.muon import muon
from minillm.optim.schedule import learning_rate_factor
from minillm.tree import Packed, Tree, pack


@dataclass(frozen=True)
class StepReport:
    """What one step did."""

    norm: float
    """Length of the gradient before clipping."""
    lr: float
    """AdamW's learning rate at this step."""
    skipped: bool
    """The gradient was not usable and nothing changed."""


class Optimizer:
    """Moments for `weights`, and the step that changes weights and moments in place.

    Arrays with two or more axes (linear weights, embeddings, position tables) decay; biases and norm weights never do.
    With "muon" the matrices inside blocks follow Muon and all the rest AdamW.  A tied array has one slot: one step.

    `taken` counts the steps that were applied.  It alone drives the schedule and the bias correction, so a skipped
    step is one that never happened, and a resumed run continues with the very next learning rate.
    """

    def __init__(self, weights: Packed, config: OptimConfig, steps: int, ops: Any = reference) -> None:
        """`steps` is the planned length of the run, for the schedule.  ops: the backend of AdamW and of clipping."""
        check_at_least("steps", steps, 1)
        self.weights, self.config, self.steps, self.ops = weights, config, steps, ops
        self.taken = self.skipped = 0
        self.shapes = {name: w.shape for name, w in weights.named().items()}
        self.decaying = {name for name, shape in self.shapes.items() if len(shape) >= 2}
        self.by_muon = {name for name in self.shapes if config.optimizer == "muon" and self._is_hidden(name)}
        self.mean = weights.zeros_like()
        squares = Tree({name: shape for name, shape in self.shapes.items() if name not in self.by_muon})
        self.square = pack(squares, weights.vector.dtype)  # Muon needs none

    def step(self, grads: Packed) -> StepReport:
        """Clip `grads` (in place), then take one step; or skip it and say so if their length is not usable.

        Not usable: Inf, NaN, or, unclipped, so long that a square overflows and would stop its weight forever.
        """
        if grads.slots != self.weights.slots or grads.vector.dtype != self.weights.vector.dtype:
            raise ValueError("gradients must have the layout and dtype of the weights: make them with zeros_like()")
        config = self.config
        factor = learning_rate_factor(self.taken, self.steps, config)
        lr = config.learning_rate * factor
        norm = self.ops.clip(grads.vector, config.clip_norm)
        length = min(norm, config.clip_norm or math.inf)
        if not math.isfinite(norm) or length > math.sqrt(np.finfo(grads.vector.dtype).max):
            self.skipped += 1
            return StepReport(norm, lr, skipped=True)
        self.taken += 1
        muon_lr = config.muon_learning_rate * factor
        threads.run_all(lambda name: self._step_one(name, grads, lr, muon_lr), self.weights.slots)
        return StepReport(norm, lr, skipped=False)

    def _step_one(self, name: str, grads: Packed, lr: float, muon_lr: float) -> None:
        """The array `name` by its own rule."""
        config, slot = self.config, self.weights.slots[name]
        decay = config.weight_decay if name in self.decaying else 0.0
        w, g, m = (packed.vector[slot] for packed in (self.weights, grads, self.mean))
        if name in self.by_muon:
            shape = self.shapes[name]
            muon(w.reshape(shape), g.reshape(shape), m.reshape(shape), muon_lr, decay)
        else:
            v = self.square.vector[self.square.slots[name]]
            self.ops.adamw(w, g, m, v, self.taken, lr, decay, config.beta1, config.beta2, config.eps)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """The moments as "mean.<name>" and "square.<name>" (views, not copies), and the two counts."""
        moments = {"mean": self.mean, "square": self.square}
        arrays = {f"{kind}.{name}": a for kind, moment in moments.items() for name, a in moment.named().items()}
        return arrays, {"taken": self.taken, "skipped": self.skipped}

    def restore(self, arrays: Mapping[str, np.ndarray], counts: Mapping[str, int]) -> None:
        """Continue from what `state` gave.  `arrays` may hold other names too, as a whole checkpoint does.

        ValueError, and nothing changed, unless every moment and count is there with the right shape and dtype.
        """
        if set(counts) != {"taken", "skipped"}:
            raise ValueError(f"optimizer counts must be 'taken' and 'skipped': got {sorted(counts)}")
        for name, count in counts.items():
            check_at_least(f"optimizer count {name!r}", count, 0)
        moments = {"mean.": self.mean, "square.": self.square}
        for prefix, moment in moments.items():
            check_matches(moment, arrays, prefix)
        for prefix, moment in moments.items():
            copy_into(moment, arrays, prefix)
        self.taken, self.skipped = counts["taken"], counts["skipped"]

    def _is_hidden(self, name: str) -> bool:
        """Whether this is a matrix inside a block: channels to channels, which is what Muon is made for."""
        return name.startswith("blocks.") and len(self.shapes[name]) == 2
