"""The weights: their names and shapes, told by the config, and their initial values, as the papers give them."""

import numpy as np

from minillm.config import ModelConfig
from minillm.tree import Packed, Tree, pack


def weight_shapes(config: ModelConfig) -> Tree:
    """The tree of shapes.  A tied head has no shape of its own."""
    V, C = config.vocab_size, config.channels
    gpt2 = config.family == "gpt2"
    return Tree(
        embed=(V, C),
        positions=(config.context_len, C) if gpt2 else None,
        blocks=[_block_shapes(config) for _ in range(config.num_layers)],
        norm=Tree(weight=(C,), bias=(C,) if gpt2 else None),
        head=None if config.tied else (V, C),
    )


def _block_shapes(config: ModelConfig) -> Tree:
    C, F, D = config.channels, config.ffn, config.head_size
    H, G = config.num_heads, config.kv_heads
    gpt2 = config.family == "gpt2"

    def linear(outputs: int, inputs: int, bias: bool = gpt2) -> Tree:
        return Tree(weight=(outputs, inputs), bias=(outputs,) if bias else None)

    def norm() -> Tree:
        return Tree(weight=(C,), bias=(C,) if gpt2 else None)

    gate = {} if gpt2 else {"gate": linear(F, C)}
    mlp = Tree(**gate, up=linear(F, C), down=linear(C, F))
    bias = gpt2 or config.qkv_bias
    qkv = {"query": linear(H * D, C, bias), "key": linear(G * D, C, bias), "value": linear(G * D, C, bias)}
    norms = {f"{name}_norm": Tree(weight=(D,), bias=None) for name in ("query", "key")} if config.qk_norm else {}
    attention = Tree(**qkv, output=linear(C, H * D), **norms)
    return Tree(norm1=norm(), attention=attention, norm2=norm(), mlp=mlp)


def allocate(config: ModelConfig, dtype=np.float32) -> Packed:
    """Zeros in the shape of the weights; a tied head is the embedding under a second name."""
    packed = pack(weight_shapes(config), dtype)
    if config.tied:
        packed.tree.head = packed.tree.embed
    return packed


def initialise(config: ModelConfig, seed: int, dtype=np.float32) -> Packed:
    """Matrices ~ N(0, init_std^2), those that write to the residual stream divided by sqrt(2 L); norms 1, biases 0.

    init_std is 0.02 in the papers.  The division keeps the variance of the stream from growing with depth (Radford et
    al. 2019, section 2.3).  Positions have half of it, as in GPT-2's released code.  The same seed gives the same
    values in every dtype.
    """
    packed = allocate(config, dtype)
    generator = np.random.default_rng(seed)
    for name, array in packed.named().items():
        if array.ndim == 1:
            array[...] = 1 if name.endswith("weight") else 0
            continue
        std = config.init_std / 2 if name == "positions" else config.init_std
        if name == "embed" and config.embed_std is not None:
            std = config.embed_std
        if name.endswith(("attention.output.weight", "mlp.down.weight")):
            std /= (2 * config.num_layers) ** 0.5
        array[...] = generator.standard_normal(array.shape) * std
    return packed
