"""LoRA: a frozen model learns through low-rank additions to its matrices (Hu et al. 2021, arXiv 2106.09685).

    y = x W^T + s (d A^T) B^T,   s = alpha / R,   W: (O, I) frozen,   A: (R, I),   B: (O, R)
    dA = s (dy B)^T d,   dB = s dy^T (d A^T),   dx = dy W + s (dy B) A * m

d is x, or while training  x * m,  where the dropout mask m holds 0 or 1 / (1 - rate): W sees all of x.
A begins random and B zero, so that nothing has changed before the first step.  The model's code does not know of it: a
`LoraWeight` stands in the tree where the matrix did, and an overlay of the backend's ops knows how to multiply by it.
The overlay drops what belongs to frozen weights, so there are no gradients and no moments of them.
"""

import hashlib
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minillm import tree
from minillm.config import LoraConfig
from minillm.model.dropout import EMBEDDING
from minillm.model.model import Model
from minillm.model.run import Dropout
from minillm.tree import Tree, pack

ADAPTER = EMBEDDING + 1  # a place that draws masks of its own, as those of model/dropout.py do


class LoraWeight(NamedTuple):
    """A frozen matrix (O, I) and what is added to it: scale * b a.

    In a training pass with dropout, `number` tells this one's mask from those of other adapters.
    """

    weight: Any
    a: Any
    b: Any
    scale: float
    dropout: Dropout | None = None
    number: int = 0


@dataclass(frozen=True)
class LoraModel(Model):
    """A model whose trained weights are the adapters (`weights`) of a `base` that is shared and never written."""

    base: Model
    scale: float
    dropout: float

    @property
    def tree(self) -> Tree:
        """The base's weights, a LoraWeight wherever there is an adapter."""
        return _join(self.base.weights.tree, self.weights.tree, self.scale)

    def training_tree(self, seed: int, step: int) -> Tree:
        """As `tree`, but adapters drop inputs, each by a mask of its own that seed and step alone decide."""
        numbers, dropout = count(), Dropout(self.dropout, seed, step)

        def dropping(part: Any) -> Any:
            return part._replace(dropout=dropout, number=next(numbers)) if isinstance(part, LoraWeight) else part

        return tree.map(dropping, self.tree) if self.dropout else self.tree

    @property
    def base_digest(self) -> str:
        """16 hex digits that tell bases apart; adapters make sense with their own only."""
        return hashlib.sha256(self.base.weights.vector.tobytes()).hexdigest()[:16]


def attach(base: Model, config: LoraConfig, seed: int) -> LoraModel:
    """A model that answers as `base` does, and learns through new adapters.  Several may share one base.

    ValueError if the rank is 0 or larger than a matrix it is added to.
    """
    if config.rank < 1:
        raise ValueError(f"lora.rank must be at least 1 for adapters: got {config.rank}")
    shapes = _adapter_shapes(base.weights.tree, config)
    weights = pack(shapes, base.weights.vector.dtype)
    generator = np.random.default_rng(seed)
    for name, array in weights.named().items():
        if name.endswith(".a"):  # x A^T then has the size of x's elements
            array[...] = generator.standard_normal(array.shape) / array.shape[1] ** 0.5
    return LoraModel(base.config, weights, lora_ops(base.ops), base, config.alpha / config.rank, config.dropout)


def merge(model: LoraModel) -> Model:
    """A plain model with W + s B A in place of each adapted W: as fast as the base, which stays as it was.

    To unmerge is to take the base again, exactly.
    """
    base = model.base
    weights = base.weights.zeros_like()
    weights.vector[...] = base.weights.vector
    targets = dict(tree.walk(weights.tree))
    for name, part in tree.walk(model.tree):
        if isinstance(part, LoraWeight):
            targets[name] += part.scale * (part.b @ part.a)
    return Model(base.config, weights, base.ops)


def adapter_forward(x, w, ops):
    """z = s (d A^T) B^T.  x: (..., I), w: a LoraWeight  ->  z: (..., O)."""
    d, mask = x, None
    if w.dropout is not None:
        d, mask = ops.dropout_forward(x, w.dropout.rate, w.dropout.generator(w.number, ADAPTER))
    h, by_a = ops.linear_forward(d, w.a)
    z, by_b = ops.linear_forward(h, w.scale * w.b)
    return z, (mask, by_a, by_b, w.scale)


def adapter_backward(dz, saved, ops):
    """dx and the gradients of A and B."""
    mask, by_a, by_b, scale = saved
    dh, db, _ = ops.linear_backward(dz, by_b)
    dx, da, _ = ops.linear_backward(dh, by_a)
    if mask is not None:
        dx = ops.dropout_backward(dx, mask)
    return dx, Tree(a=da, b=scale * db)


def lora_ops(ops: Any) -> Any:
    """The backend `ops` with frozen weights, and with matrices that may be a LoraWeight."""

    def linear_forward(x, weight, bias=None):
        if not isinstance(weight, LoraWeight):
            return ops.linear_forward(x, weight, bias)[0], (weight, None)
        y, _ = ops.linear_forward(x, weight.weight, bias)
        z, adapter = adapter_forward(x, weight, ops)
        ops.add_into(y, z)
        return y, (weight.weight, adapter)

    def linear_backward(dy, saved):
        weight, adapter = saved
        if adapter is None:
            return ops.linear_backward_input(dy, weight), None, None
        dx, dadapter = adapter_backward(dy, adapter, ops)
        ops.add_into(dx, ops.linear_backward_input(dy, weight))
        return dx, dadapter, None

    def add_into(total, part):
        if part is not None:
            ops.add_into(total, part)

    def frozen(backward):
        def dx_alone(dy, saved):
            dx, *rest = backward(dy, saved)
            return dx, *(None for _ in rest)

        return dx_alone

    own = {name: getattr(ops, name) for name in ops.__all__}
    own |= {"linear_forward": linear_forward, "linear_backward": linear_backward, "add_into": add_into}
    own |= {name: frozen(own[name]) for name in ("layer_norm_backward", "rms_norm_backward")}
    own["embedding_backward"] = lambda dy, saved: (None, None)
    return SimpleNamespace(**own)


def _adapter_shapes(weights: Tree, config: LoraConfig) -> Tree:
    """The tree of the adapters' shapes: as the weights', with None for all that is frozen."""
    shapes = tree.map(lambda leaf: None, weights)
    for block, into in zip(weights.blocks, shapes.blocks):
        for part in ("attention", "mlp"):
            for name in config.matrices:
                if name in block[part]:
                    outputs, inputs = block[part][name].weight.shape
                    if config.rank > min(outputs, inputs):
                        raise ValueError(
                            f"lora.rank must be at most {min(outputs, inputs)}, the smaller side of {name} "
                            f"({outputs}, {inputs}): got {config.rank}"
                        )
                    into[part][name].weight = Tree(a=(config.rank, inputs), b=(outputs, config.rank))
    return shapes


def _join(weights: Any, adapters: Any, scale: float) -> Any:
    if isinstance(weights, dict):
        return Tree({key: _join(child, adapters[key], scale) for key, child in weights.items()})
    if isinstance(weights, list):
        return [_join(child, other, scale) for child, other in zip(weights, adapters)]
    return weights if adapters is None else LoraWeight(weights, adapters.a, adapters.b, scale)
