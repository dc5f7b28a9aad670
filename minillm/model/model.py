"""A model: its config, its weights and the backend that runs it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minillm.config import ModelConfig
from minillm.model.run import Attend, positions_of, run_of
from minillm.model.transformer import transformer_forward
from minillm.tree import Packed, Tree


@dataclass(frozen=True)
class Model:
    """What every use of a trained model starts from."""

    config: ModelConfig
    weights: Packed
    ops: Any

    @property
    def tree(self) -> Tree:
        """What the forward pass reads."""
        return self.weights.tree

    def training_tree(self, seed: int, step: int) -> Tree:
        """What the forward pass of training reads.  seed, step: choose what is dropped, where weights do that."""
        del seed, step
        return self.tree

    def logits(self, ids: np.ndarray, positions: np.ndarray | None = None, attend: Attend | None = None) -> Any:
        """The plain forward: ids (B, T) -> logits (B, T, V).  Positions 0, 1, ... and causal attention by default."""
        return self.logits_and_hidden(ids, positions, attend)[0]

    def logits_and_hidden(self, ids: np.ndarray, positions: np.ndarray | None = None,
                          attend: Attend | None = None) -> tuple[Any, Any]:  # fmt: skip
        """As `logits`, and what the last block leaves, before the final norm: (B, T, C)."""
        positions = positions_of(*ids.shape) if positions is None else positions
        run = run_of(self.config, self.ops, positions, attend, self.weights.vector.dtype, keep_hidden=True)
        logits, saved = transformer_forward(ids, self.tree, run)
        return logits, saved.hidden
