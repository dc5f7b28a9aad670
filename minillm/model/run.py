"""Run: everything one pass needs besides weights and tokens, chosen at the edge and only passed on below it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from minillm.config import ModelConfig
from minillm.ops.rope import llama3_factors, rope_tables


class Attend(Protocol):
    """Attend to whom?  All that differs between training, packing, decoding and serving."""

    def forward(self, layer: int, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        """q: (B, T, H, D), k and v of the same T tokens: (B, T, G, D)  ->  y: (B, T, H, D) and what is saved."""

    def backward(self, dy: Any, saved: Any) -> tuple[Any, Any, Any]:
        """dq, dk, dv."""


@dataclass(frozen=True)
class Causal:
    """Each token attends to itself and to those before it in its row."""

    ops: Any

    def forward(self, layer, q, k, v):
        """See Attend."""
        del layer
        return self.ops.attention_forward(q, k, v)

    def backward(self, dy, saved):
        """See Attend."""
        return self.ops.attention_backward(dy, saved)


@dataclass(frozen=True)
class Segmented:
    """As Causal, but only within the token's own segment: packed documents numbered 0, 1, ...; padding is -1."""

    ops: Any
    segments: Any  # (B, T) integers

    def forward(self, layer, q, k, v):
        """See Attend."""
        del layer
        return self.ops.attention_forward(q, k, v, self.segments)

    def backward(self, dy, saved):
        """See Attend."""
        return self.ops.attention_backward(dy, saved)


def attend_of(ops: Any, segments: Any = None) -> Attend:
    """Causal attention, within segments where there are some."""
    return Causal(ops) if segments is None else Segmented(ops, segments)


@dataclass(frozen=True)
class Dropout:
    """Which elements to drop, as a function of (seed, step) and the place: no hidden state, so recomputing a block
    or resuming a run draws the same masks."""

    rate: float
    seed: int
    step: int

    def generator(self, layer: int, place: int) -> np.random.Generator:
        """The generator of one place of one layer: see model/dropout.py for the places."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.step, layer, place)))


def identity(x: Any) -> Any:
    """The sum over one rank."""
    return x


@dataclass(frozen=True)
class Run:
    """One pass: which ops, who attends to whom, at which positions; `run_of` fills in what the config implies."""

    config: ModelConfig
    ops: Any
    attend: Attend
    positions: Any  # (B, T) integers
    rope: tuple[Any, Any] | None  # cos and sin tables of every position, where the family turns its heads
    reduce: Callable[[Any], Any] = identity  # sums partial results over tensor-parallel ranks
    dropout: Dropout | None = None
    recompute: bool = False
    keep_hidden: bool = False  # for an objective that looks at what the last block leaves


def run_of(config: ModelConfig, ops: Any, positions: np.ndarray, attend: Attend | None = None,
           dtype: Any = np.float32, **rest: Any) -> Run:  # fmt: skip
    """A Run with the tables `config` needs, in the weights' dtype.  Plain causal attention unless `attend` is given.

    ValueError if a position lies beyond the context.
    """
    if positions.size and not 0 <= positions.min() <= positions.max() < config.context_len:
        raise ValueError(
            f"text longer than the context: position {positions.max()}, context of {config.context_len} tokens; "
            "shorten the text or use a model with a longer context_len"
        )
    return Run(config, ops, attend or Causal(ops), positions, _tables(config, np.dtype(dtype)), **rest)


def positions_of(B: int, T: int, start: int = 0) -> np.ndarray:
    """Positions start, start + 1, ... for each of B rows: (B, T)."""
    return np.broadcast_to(np.arange(start, start + T), (B, T))


@lru_cache(maxsize=8)
def _tables(config: ModelConfig, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray] | None:
    if config.family != "llama":
        return None
    D, theta, scaling = config.head_size, config.rope_theta, config.rope_scaling
    factors: Any = scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.low_turns, scaling.high_turns
        factors = llama3_factors(D, theta, scaling.factor, *turns, scaling.first_context)
    elif scaling.kind != "linear":
        factors = scaling.factors or 1
    return rope_tables(config.context_len, D, theta, dtype, factors)
