"""A model whose matrices are small integers: to hold less, and to read less for each token.

The model's code does not know of it: a `Quantized` stands in the tree where the matrix did, and an overlay of the
backend's ops knows how to multiply by it.  Norms, biases and positions stay as they are.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from minillm import tree
from minillm.adapt.calibrate import PARTS, SITES, Inputs
from minillm.adapt.gptq import gptq_matrix
from minillm.adapt.rescale import awq_scales, rescale, smooth_scales
from minillm.adapt.rounding import quantize_matrix
from minillm.config import ModelConfig, QuantizeConfig
from minillm.model.model import Model
from minillm.ops.quantized import Quantized, dequantize
from minillm.tree import Tree, pack

ENDS = ("embed", "head")


@dataclass(frozen=True)
class QuantizedModel(Model):
    """A model of integers (`quantized`, None where there are none) and of other arrays (`weights`)."""

    quantized: Tree
    scheme: QuantizeConfig

    @property
    def tree(self) -> Tree:
        """What the forward pass reads."""
        return _join(self.weights.tree, self.quantized)

    @property
    def num_bytes(self) -> int:
        """Memory of all weights, a tied head counted once."""
        arrays = {id(part): part.nbytes for _, part in tree.walk(self.tree)}
        return sum(arrays.values())


def quantize(model: Model, config: QuantizeConfig, inputs: list[dict[str, Inputs]] | None = None) -> QuantizedModel:
    """The model in integers.  inputs: what its layers read of a text (`calibrate`), for the methods that ask for it.

    ValueError where a method asks for inputs and there are none.
    """
    blocks = model.tree.blocks
    if config.method == "plain":
        return _assemble(model, config, [_round(block, config) for block in blocks])
    if inputs is None:
        raise ValueError(f"{config.method} looks at what the layers read: give it `calibrate(model, batches)`")
    if config.method == "gptq":
        return _assemble(model, config, [_round_gptq(b, seen, config) for b, seen in zip(blocks, inputs, strict=True)])
    choose = smooth_scales if config.method == "smoothquant" else awq_scales
    rescaled = [rescale(b, model.config, seen, choose, config) for b, seen in zip(blocks, inputs, strict=True)]
    return _assemble(model, config, [_round(block, config) for block in rescaled])


def _assemble(model: Model, config: QuantizeConfig, blocks: list[Tree]) -> QuantizedModel:
    """Put rounded blocks together; the embedding and the head are rounded here, to 8 bits."""
    ends = replace(config, bits=8, method="plain")
    w = model.tree
    embed = quantize_matrix(w.embed, ends)
    head = embed if w.head is w.embed else quantize_matrix(w.head, ends)
    whole = Tree(w, embed=embed, head=head, blocks=blocks)
    rest = tree.map(lambda part: None if isinstance(part, Quantized) else part.shape, whole)
    packed = pack(rest, model.weights.vector.dtype)
    for name, part in tree.walk(whole):
        if not isinstance(part, Quantized):
            packed.named()[name][...] = part
    quantized = tree.map(lambda part: part if isinstance(part, Quantized) else None, whole)
    ops = quantized_ops(model.ops, config, _join(packed.tree, quantized))
    return QuantizedModel(model.config, packed, ops, quantized, config)


def dequantized(model: QuantizedModel, ops: Any) -> Model:
    """A plain model with the very weights that the integers stand for."""
    shapes = tree.map(lambda part: part.shape, model.tree)
    if model.config.tied:
        shapes.head = None
    packed = pack(shapes, model.weights.vector.dtype)
    if model.config.tied:
        packed.tree.head = packed.tree.embed
    for (_, into), (_, part) in zip(tree.walk(packed.tree), tree.walk(model.tree), strict=True):
        into[...] = dequantize(part) if isinstance(part, Quantized) else part
    return Model(model.config, packed, ops)


def quantized_ops(ops: Any, config: QuantizeConfig, w: Tree) -> Any:
    """The backend `ops` with matrices that may be Quantized, for the tree w.  Gradients flow through alone."""
    multiply = {
        "float": ops.quantized_linear,
        "int8": ops.integer_linear,
        "int8-token": partial(ops.integer_linear, whole=True),
    }[config.activations]

    def linear_forward(x, weight, bias=None):
        if not isinstance(weight, Quantized):
            return ops.linear_forward(x, weight, bias)
        return multiply(x, weight, bias), weight

    def linear_backward_input(dy, weight):
        return ops.linear_backward_input(dy, dequantize(weight) if isinstance(weight, Quantized) else weight)

    def embedding_forward(ids, table):
        if not isinstance(table, Quantized):
            return ops.embedding_forward(ids, table)
        distinct, places = np.unique(ids, return_inverse=True)
        rows = dequantize(table._replace(q=table.q[distinct], scale=table.scale[distinct], zero=table.zero[distinct]))
        return rows[places.reshape(ids.shape)], None

    own = {name: getattr(ops, name) for name in ops.__all__}
    own |= {"linear_forward": linear_forward, "linear_backward_input": linear_backward_input}
    own["embedding_forward"] = embedding_forward
    if hasattr(ops, "QuantizedDecoder") and config.activations != "float":
        own["Decoder"] = _Decoders(ops, w, config.activations == "int8-token")
    return SimpleNamespace(**own, __all__=ops.__all__)


class _Decoders:
    """Makes decoders of one model for its caches; stands where the backend's Decoder does."""

    def __init__(self, ops: Any, w: Tree, whole: bool) -> None:
        self.ops, self.tree, self.whole = ops, w, whole

    @cached_property
    def weights(self) -> Any:
        """Where everything is, found once."""
        return self.ops.QuantizedWeights(self.tree)

    def fits(self, weights: Any) -> bool:
        """Whether one compiled call can read the model."""
        del weights
        return self.ops.QuantizedWeights.fits(self.tree)

    def __call__(self, config: ModelConfig, weights: Any, B: int, capacity: int) -> Any:
        """A decoder for B rows."""
        del weights
        return self.ops.QuantizedDecoder(config, self.weights, self.whole, B, capacity)


def _round(block: Tree, config: QuantizeConfig) -> Tree:
    return tree.map(lambda part: quantize_matrix(part, config) if part.ndim == 2 else part, block)


def _round_gptq(block: Tree, sites: dict[str, Inputs], config: QuantizeConfig) -> Tree:
    block = tree.map(lambda part: part, block)  # a copy of the nodes
    for site, names in SITES.items():
        for name in names:
            if layer := block[PARTS[site]].get(name):
                layer.weight = gptq_matrix(layer.weight, sites[site], config)
    return block


def _join(weights: Any, quantized: Any) -> Any:
    if isinstance(weights, dict):
        return Tree({key: _join(child, quantized[key]) for key, child in weights.items()})
    if isinstance(weights, list):
        return [_join(child, other) for child, other in zip(weights, quantized)]
    return weights if quantized is None else quantized
