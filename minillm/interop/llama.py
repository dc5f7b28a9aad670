"""Llama-family models in GGUF files: their names for our arrays, and the order in which they keep rotated channels.

RoPE turns pairs of channels.  We pair channel d with d + D/2, as Hugging Face does; llama.cpp pairs 2d with 2d + 1, so
files made for it hold the rows of the query and key matrices in that order.
"""

import numpy as np

from minillm.config import ModelConfig
from minillm.interop.gguf import GGUF, Tensor
from minillm.interop.vocabulary import PATTERN_OF, tokenizer_of
from minillm.model.weights import allocate
from minillm.tokenizer import Tokenizer
from minillm.tree import Packed

ENDS = {"embed": "token_embd.weight", "norm.weight": "output_norm.weight", "head": "output.weight"}
BLOCK = {
    "norm1.weight": "attn_norm.weight",
    "attention.query.weight": "attn_q.weight",
    "attention.key.weight": "attn_k.weight",
    "attention.value.weight": "attn_v.weight",
    "attention.output.weight": "attn_output.weight",
    "norm2.weight": "ffn_norm.weight",
    "mlp.gate.weight": "ffn_gate.weight",
    "mlp.up.weight": "ffn_up.weight",
    "mlp.down.weight": "ffn_down.weight",
}
CONTROL, USER_DEFINED = 3, 4  # types of tokens that are not made by merges
EXPECTED = {"rope.scaling.type": "none", "expert_count": 0}  # what else is not built


def gguf_name(name: str) -> str:
    """Our name of an array in the names of GGUF files."""
    if name in ENDS:
        return ENDS[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{BLOCK[rest]}"


def config_of(file: GGUF) -> ModelConfig:
    """The shape of the model.  ValueError if it is of another family, or has what ours has not."""
    family = file.get("general.architecture", str)
    if family != "llama":
        raise ValueError(f"models of the architecture llama are understood: the file says {family!r}")
    for key, usual in EXPECTED.items():
        if file.metadata.get(f"llama.{key}", usual) != usual:
            raise ValueError(f"llama.{key} = {file.metadata[f'llama.{key}']!r} is not supported; only {usual!r} is")

    def number(key: str, default: int | None = None) -> int:
        return file.get(f"llama.{key}", int, default)

    heads = number("attention.head_count")
    config = ModelConfig(
        family="llama",
        vocab_size=_tensor(file, "token_embd.weight").shape[0],
        context_len=number("context_length"),
        num_layers=number("block_count"),
        num_heads=heads,
        num_kv_heads=number("attention.head_count_kv", heads),
        channels=number("embedding_length"),
        ffn_channels=number("feed_forward_length"),
        norm_eps=float(file.get("llama.attention.layer_norm_rms_epsilon", float)),
        rope_theta=float(file.get("llama.rope.freq_base", float, 10_000.0)),
        tied="output.weight" not in file.tensors,
    )
    if number("rope.dimension_count", config.head_size) != config.head_size:
        raise ValueError("llama.rope.dimension_count must be the head size: heads that turn in part are not supported")
    return config


def weights_of(file: GGUF, config: ModelConfig) -> Packed:
    """The weights as float32.  ValueError if a tensor is missing or has another shape, or if one is left over."""
    needed = {name: gguf_name(name) for name in _names(config)}
    known = {*needed.values(), "rope_freqs.weight"}
    if left := sorted(file.tensors.keys() - known):
        raise ValueError(f"the file holds tensors that a model of this shape has not: {', '.join(left[:5])}")
    tensors = {name: _tensor(file, theirs) for name, theirs in needed.items()}
    packed = allocate(config)
    for name, array in packed.named().items():
        if tensors[name].shape != array.shape:
            raise ValueError(f"tensor {needed[name]!r} should be {array.shape}: it is {tensors[name].shape}")
        array[...] = restore(name, tensors[name].array(), config)
    return packed


def restore(name: str, array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Rows of the query and key matrices in our order; all others as they are."""
    heads = _turned(name, config)
    return array.reshape(heads, -1, 2, array.shape[-1]).swapaxes(1, 2).reshape(array.shape) if heads else array


def permute(name: str, array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """The other way: our rows in the order of the file."""
    heads = _turned(name, config)
    return array.reshape(heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape) if heads else array


def _turned(name: str, config: ModelConfig) -> int:
    """How many heads the rows of this array belong to, if RoPE turns them; else 0."""
    heads = {"attention.query.weight": config.num_heads, "attention.key.weight": config.kv_heads}
    return heads.get(name.split(".", 2)[-1], 0)


def vocabulary_of(file: GGUF) -> Tokenizer:
    """The tokenizer.  ValueError if it is no byte-level BPE, or splits text in a way that is not known."""
    kind, pre = file.get("tokenizer.ggml.model", str), file.get("tokenizer.ggml.pre", str, "gpt-2")
    if kind != "gpt2" or pre not in PATTERN_OF:
        raise ValueError(
            f"byte-level BPE that splits text as {', '.join(PATTERN_OF)} is understood: the file has {kind!r}, {pre!r}"
        )
    tokens, merges = file.get("tokenizer.ggml.tokens", list), file.get("tokenizer.ggml.merges", list)
    types = file.get("tokenizer.ggml.token_type", np.ndarray, np.ones(len(tokens)))
    if len(types) != len(tokens) or not all(isinstance(text, str) for text in (*tokens, *merges)):
        raise ValueError("tokens and merges must be texts, and every token have a type")
    special = np.flatnonzero(np.isin(types, (CONTROL, USER_DEFINED))).tolist()
    return tokenizer_of(tokens, merges, special, PATTERN_OF[pre], _id(file, "unknown_token_id"))


def template_of(file: GGUF) -> str | None:
    """The chat template, if there is one."""
    template = file.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def _id(file: GGUF, key: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    return value if isinstance(value, int) else None


def _tensor(file: GGUF, name: str) -> Tensor:
    if name not in file.tensors:
        raise ValueError(f"the file has no tensor {name!r}")
    return file.tensors[name]


def _names(config: ModelConfig) -> list[str]:
    ends = ["embed", "norm.weight"] + ([] if config.tied else ["head"])
    return [*ends, *(f"blocks.{layer}.{rest}" for layer in range(config.num_layers) for rest in BLOCK)]
