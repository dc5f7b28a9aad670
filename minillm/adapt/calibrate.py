"""What the matrices of a model read: the statistics by which rounding can be kept from mattering."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from minillm.model.model import Model

SITES = {
    "attention": ("query", "key", "value"),
    "output": ("output",),
    "mlp": ("gate", "up"),
    "down": ("down",),
}  # matrices of one site read the same input
PARTS = {"attention": "attention", "output": "attention", "mlp": "mlp", "down": "mlp"}  # of a block


@dataclass
class Inputs:
    """Of one site: the most that each channel reached, (I,), and the sum of x^T x over all rows x, (I, I)."""

    largest: np.ndarray
    moments: np.ndarray
    num_rows: int = 0

    def add(self, x: np.ndarray) -> None:
        """Take some rows in.  x: (..., I)."""
        rows = x.reshape(-1, x.shape[-1])
        np.maximum(self.largest, np.abs(rows).max(axis=0, initial=0), out=self.largest)
        self.moments += rows.T @ rows
        self.num_rows += len(rows)

    @property
    def mean_square(self) -> np.ndarray:
        """Of each channel: (I,)."""
        return np.diag(self.moments) / max(self.num_rows, 1)


def calibrate(model: Model, batches: Iterable[np.ndarray]) -> list[dict[str, Inputs]]:
    """What each site of each block reads, by layer and site, over batches of ids: (B, T).

    ValueError if there is nothing to read.
    """
    layers: list[dict[str, Inputs]] = []
    by_weight = {}
    for block in model.tree.blocks:
        layers.append({})
        for site, names in SITES.items():
            weight = block[PARTS[site]][names[-1]].weight
            I = weight.shape[1]
            inputs = Inputs(np.zeros(I, np.float32), np.zeros((I, I), np.float32))
            layers[-1][site] = by_weight[id(weight)] = inputs

    def linear_forward(x, weight, bias=None):
        if id(weight) in by_weight:
            by_weight[id(weight)].add(x)
        return model.ops.linear_forward(x, weight, bias)

    own = {name: getattr(model.ops, name) for name in model.ops.__all__} | {"linear_forward": linear_forward}
    watched = replace(model, ops=SimpleNamespace(**own))
    for ids in batches:
        watched.logits(ids)
    if not layers[0]["attention"].num_rows:
        raise ValueError("there is no text to calibrate with; give at least one batch of tokens")
    return layers
