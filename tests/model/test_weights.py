"""Names, shapes and initial values."""

from dataclasses import replace

import numpy as np
import pytest

from minillm.config import ModelConfig
from minillm.model.weights import allocate, initialise
from minillm.tree import walk

LLAMA = ModelConfig(vocab_size=500, context_len=32, num_layers=8, num_heads=4, num_kv_heads=2, channels=64)
GPT2 = ModelConfig(family="gpt2", vocab_size=500, context_len=32, num_layers=8, num_heads=4, channels=64)

LLAMA_BLOCK = [
    "norm1.weight", "attention.query.weight", "attention.key.weight", "attention.value.weight",
    "attention.output.weight", "norm2.weight", "mlp.gate.weight", "mlp.up.weight", "mlp.down.weight",
]  # fmt: skip
QWEN_BLOCK = [name for name in LLAMA_BLOCK if name != "attention.output.weight"]
for place, part in enumerate(("query", "key", "value")):
    QWEN_BLOCK.insert(2 + 2 * place, f"attention.{part}.bias")
QWEN_BLOCK[7:7] = ["attention.output.weight", "attention.query_norm.weight", "attention.key_norm.weight"]
GPT2_PARTS = [
    "norm1", "attention.query", "attention.key", "attention.value", "attention.output", "norm2", "mlp.up", "mlp.down",
]  # fmt: skip
GPT2_BLOCK = [f"{part}.{kind}" for part in GPT2_PARTS for kind in ("weight", "bias")]


@pytest.mark.parametrize(
    ("config", "before", "block", "after"),
    [
        (LLAMA, ["embed"], LLAMA_BLOCK, ["norm.weight"]),
        (replace(LLAMA, tied=False), ["embed"], LLAMA_BLOCK, ["norm.weight", "head"]),
        (replace(LLAMA, qkv_bias=True, qk_norm=True), ["embed"], QWEN_BLOCK, ["norm.weight"]),
        (GPT2, ["embed", "positions"], GPT2_BLOCK, ["norm.weight", "norm.bias"]),
    ],
)
def test_the_names_of_each_family(config, before, block, after):
    names = list(allocate(config).named())
    blocks = [f"blocks.{layer}.{name}" for layer in range(8) for name in block]
    assert names == [*before, *blocks, *after]


def test_every_array_is_a_view_of_the_one_vector_and_a_tied_head_is_the_embedding():
    packed = allocate(LLAMA)
    for number, (_, array) in enumerate(walk(packed.tree)):
        array[...] = number + 1
    assert packed.tree.head is packed.tree.embed
    last = len(list(walk(packed.tree)))
    assert packed.vector[packed.slots["embed"]].tolist() == [last] * (500 * 64)
    grads = packed.zeros_like()
    assert np.shares_memory(grads.tree.head, grads.tree.embed)
    assert np.count_nonzero(packed.vector) == packed.num_parameters


@pytest.mark.parametrize("config", [LLAMA, GPT2, replace(LLAMA, tied=False)])
def test_initial_values_are_as_the_papers_give_them(config):
    named = initialise(config, seed=3).named()
    for name, array in named.items():
        if name.endswith("bias"):
            assert not array.any(), name
        elif array.ndim == 1:
            assert (array == 1).all(), name
        else:
            residual = name.endswith(("output.weight", "down.weight"))
            std = 0.02 / 4 if residual else 0.01 if name == "positions" else 0.02  # 4 = sqrt(2 * 8 layers)
            assert abs(array.std() / std - 1) < 5 / (2 * array.size) ** 0.5, name
            assert abs(array.mean()) < 5 * std / array.size**0.5, name


def test_the_seed_decides_and_the_dtype_does_not():
    first, other = initialise(GPT2, 1).vector, initialise(GPT2, 2).vector
    np.testing.assert_array_equal(first, initialise(GPT2, 1).vector)
    np.testing.assert_array_equal(first, initialise(GPT2, 1, np.float64).vector.astype(np.float32))
    assert np.count_nonzero(first != other) > first.size / 2
