"""The pieces of work that are measured, and what each must compute and move at the least.

Each class is a frozen dataclass that travels to the workers as JSON.  `flops` counts matrix products alone, and of
attention only the causal half, which is all that is needed; `bytes` counts each number once where it must be read or
written, as if everything in between stayed in a cache.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from minillm.config import LoraConfig, ModelConfig
from minillm.estimate import (
    TuningEstimate,
    activation_numbers,
    forward_flops,
    num_parameters,
    tuning_estimate,
    tuning_flops,
)
from minillm.ops.cases import OPS, cast

ITEM = 4  # bytes of a float32
EAGER, COMPILED = "torch eager", "torch compile"  # the sides that are not backends
FULL, RANK = "full", "rank "  # the ways to fine-tune: every weight, or adapters of the rank that follows


class Unavailable(Exception):
    """A side cannot do this work here, and that is no fault."""


@dataclass(frozen=True)
class Training:
    """One optimizer step on random tokens: forward, backward, clip, AdamW."""

    name: str
    model: ModelConfig
    batch: int
    """B: rows of a full context."""
    micro: int
    """Rows that our side runs through the model together; a peer takes the batch whole."""

    @property
    def flops(self) -> int:
        """Forward and backward."""
        return 3 * self.batch * causal_flops(self.model, self.model.context_len)

    @property
    def bytes(self) -> int:
        """Weights read twice, gradients written, AdamW's 4 reads and 3 writes; activations written and read."""
        return ITEM * (10 * num_parameters(self.model) + 2 * self._activations)

    @property
    def memory(self) -> int:
        """Bytes that must be held: weights, gradients, two moments and the activations of the whole batch."""
        return ITEM * (4 * num_parameters(self.model) + self._activations)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch * self.model.context_len

    @property
    def _activations(self) -> int:
        return activation_numbers(self.model, self.batch, self.model.context_len, backend="cpu")


@dataclass(frozen=True)
class FineTuning:
    """The same step as a training's, but a side is a way to learn: FULL, or by adapters, as "rank 8" is."""

    training: Training
    lora: LoraConfig = field(default_factory=LoraConfig)
    """All but the rank."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    backend: str = "cpu"

    @property
    def name(self) -> str:
        """What a reader calls it."""
        return f"{self.training.name}, {self.backend}"

    @property
    def flops(self) -> int:
        """Of the costliest way."""
        return self.flops_of(FULL)

    @property
    def bytes(self) -> int:
        """Of the costliest way."""
        return self.training.bytes

    def lora_of(self, side: str) -> LoraConfig:
        """The adapters of a side; of rank 0, which are none, for FULL."""
        return replace(self.lora, rank=0 if side == FULL else int(side.removeprefix(RANK)))

    def estimate(self, side: str) -> TuningEstimate:
        """What is trained and held."""
        return tuning_estimate(self.training.model, self.lora_of(side), self.optimizer, ITEM)

    def flops_of(self, side: str) -> int:
        """Forward and backward of a step."""
        model, T = self.training.model, self.training.model.context_len
        unneeded = 3 * (forward_flops(model, T) - causal_flops(model, T))
        return self.training.batch * (tuning_flops(model, self.lora_of(side), T) - unneeded)

    def memory_of(self, side: str) -> int:
        """Bytes that must be held: the state, a gradient for every further micro-batch, activations of them all."""
        held, work = self.estimate(side), self.training
        more = -(-work.batch // work.micro) - 1
        kept = activation_numbers(
            work.model, work.batch, work.model.context_len, backend=self.backend, lora=self.lora_of(side)
        )
        return held.state_bytes + more * held.gradient_bytes + ITEM * kept

    def checkpoint_of(self, side: str) -> int:
        """Bytes on disk: what is trained, and the optimizer's moments."""
        held = self.estimate(side)
        return ITEM * held.trained + held.moment_bytes


@dataclass(frozen=True)
class Decoding:
    """Greedy tokens one by one, after a prompt whose own pass is not counted; `flops` and `bytes` are for all rows."""

    name: str
    model: ModelConfig
    batch: int
    prompt: int
    """Tokens in the prompt of each row."""
    new: int
    """Tokens written per row, the first of which comes from the prompt's pass."""

    @property
    def flops(self) -> int:
        """Every token passes through every matrix and attends to all before it."""
        C, L = self.model.channels, self.model.num_layers
        return self.tokens * forward_flops(self.model, 1) + self.batch * 4 * L * C * (sum(self._lengths) - self.steps)

    @property
    def bytes(self) -> int:
        """Per step all weights, once for the whole batch, but for table rows not looked up; and each row's cache."""
        config, B = self.model, self.batch
        V, C, K = config.vocab_size, config.channels, config.kv_heads * config.head_size
        weights = num_parameters(config) + (0 if config.tied else (B - V) * C)
        if config.family == "gpt2":
            weights -= (config.context_len - 1) * C
        return ITEM * (self.steps * weights + 2 * config.num_layers * B * K * sum(self._lengths))

    @property
    def steps(self) -> int:
        """Passes that are timed."""
        return self.new - 1

    @property
    def tokens(self) -> int:
        """Tokens of all rows that are timed."""
        return self.batch * self.steps

    @property
    def _lengths(self) -> range:
        """Keys that a row's token sees, step by step."""
        return range(self.prompt + 1, self.prompt + self.new)


@dataclass(frozen=True)
class Prefill:
    """One prompt at once into an empty cache, for the logits of its last token."""

    name: str
    model: ModelConfig
    prompt: int

    @property
    def flops(self) -> int:
        """The head sees one token only."""
        head = 2 * self.model.vocab_size * self.model.channels
        return causal_flops(self.model, self.prompt) - (self.prompt - 1) * head

    @property
    def bytes(self) -> int:
        """All weights once, and the cache that is filled."""
        one = Decoding("", self.model, 1, 0, 2)
        return (
            one.bytes
            + (self.prompt - 1) * 2 * ITEM * self.model.num_layers * self.model.kv_heads * self.model.head_size
        )

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return self.prompt


@dataclass(frozen=True)
class OpCall:
    """One op, forward or backward, on its benchmark case in float32."""

    name: str
    backward: bool

    @cached_property
    def inputs(self) -> tuple:
        """The same for every side."""
        return cast(OPS[self.name].cases["benchmark"](np.random.default_rng(0)), np.float32)

    @property
    def flops(self) -> int:
        """Of linear and attention; 0 for the rest, whose arithmetic is hidden behind memory.  Backward: twice."""
        flops = 0
        if self.name == "linear":
            flops = 2 * self.inputs[0].size * self.inputs[1].shape[0]
        elif self.name == "attention":
            (B, T, H, D), S = self.inputs[0].shape, self.inputs[1].shape[1]
            flops = 2 * 2 * B * H * D * sum(range(S - T + 1, S + 1))
        return (2 if self.backward else 1) * flops

    @property
    def bytes(self) -> int:
        """Forward: inputs and output.  Backward: inputs, the output's gradient and the inputs' gradients."""
        arrays = [x for x in self.inputs if isinstance(x, np.ndarray)]
        sizes = [x.nbytes for x in arrays]
        gradients = sum(x.nbytes for x in arrays[: len(arrays) - OPS[self.name].num_constants] if x.dtype.kind == "f")
        output = _output_bytes(self.name, arrays)
        if self.name == "embedding":
            sizes = [arrays[0].nbytes, 0 if self.backward else output]  # of the table only the rows that are named
        return sum(sizes) + output + (gradients if self.backward else 0)


Work = Training | FineTuning | Decoding | Prefill | OpCall
KINDS: dict[str, type] = {kind.__name__: kind for kind in (Training, FineTuning, Decoding, Prefill, OpCall)}


def causal_flops(config: ModelConfig, T: int) -> int:
    """estimate.forward_flops for one row of T tokens, with only those scores that causal attention needs."""
    unneeded = T * (T - 1) // 2
    return forward_flops(config, T) - config.num_layers * 2 * (2 * unneeded * config.query_channels)


def _output_bytes(name: str, arrays: list[Any]) -> int:
    first = arrays[0]
    if name == "linear":
        return first.nbytes // first.shape[-1] * arrays[1].shape[0]
    if name == "embedding":
        return first.size * arrays[1].shape[-1] * ITEM
    return first.nbytes // first.shape[-1] if name == "cross_entropy" else first.nbytes
