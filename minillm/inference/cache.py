"""The contiguous key/value cache: keys and values of past tokens, kept so that each new token attends without
recomputing them."""

import math
from typing import Any

import numpy as np

from minillm.model.model import Model
from minillm.model.run import Run, run_of
from minillm.model.transformer import embed_forward, trunk_forward, unembed_forward
from minillm.ops.check_inputs import ids_in_range


class Cache:
    """Keys and values of B rows, (L, B, capacity, G, D) each; an Attend (see model/run.py) while it is extended.

    Rows of unequal length are aligned at the end: row b starts with `padding[b]` slots that nobody sees.
    """

    def __init__(self, model: Model, padding: np.ndarray, capacity: int | None = None) -> None:
        """padding: (B,) integers.  capacity: slots per row, by default the context plus the longest padding."""
        config = model.config
        self.ops, self.padding = model.ops, np.asarray(padding)
        capacity = config.context_len + int(self.padding.max(initial=0)) if capacity is None else capacity
        shape = (config.num_layers, len(self.padding), capacity, config.kv_heads, config.head_size)
        self.keys, self.values = np.empty((2, *shape), model.weights.vector.dtype)
        self.length = 0  # slots filled, the same for every row
        self.segments = np.where(np.arange(capacity) < self.padding[:, None], -1, 0)  # (B, capacity)
        self.decoder = _decoder(model, len(self.padding), capacity)

    def positions(self, T: int) -> np.ndarray:
        """Positions of the next T slots, (B, T): counted from each row's first token; 0 in slots that nobody sees."""
        slots = np.arange(self.length, self.length + T)
        return np.where(self.segments[:, slots] < 0, 0, slots - self.padding[:, None])

    def end_row(self, b: int) -> None:
        """Row b takes no more tokens: whatever fills its slots from here on is seen by nobody."""
        self.segments[b, self.length :] = -1

    def forward(self, layer, q, k, v):
        """Store k and v of the new tokens, attend to everything stored.  See Attend."""
        end = self.length + k.shape[1]
        self.keys[layer, :, self.length : end], self.values[layer, :, self.length : end] = k, v
        filled = self.segments[:, :end]
        segments = filled if filled.any() else None  # None: every slot is a token of its row
        return self.ops.attention_forward(q, self.keys[layer, :, :end], self.values[layer, :, :end], segments)

    def backward(self, dy, saved):
        """A cache is for inference."""
        raise NotImplementedError("a cached pass has no backward; train with Causal or Segmented attention")

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return math.prod(self.keys.shape) * self.keys.itemsize * 2


def extend(model: Model, ids: np.ndarray, cache: Cache, last_only: bool = False) -> np.ndarray:
    """Run the next T tokens of each row: ids (B, T) -> logits (B, T, V), or (B, 1, V) of the last token alone."""
    w, T, capacity = model.tree, ids.shape[1], cache.keys.shape[2]
    if ids.shape[0] != len(cache.padding):
        raise ValueError(f"one row of ids for each row of the cache: {ids.shape[0]} and {len(cache.padding)} rows")
    if cache.length + T > capacity:
        raise ValueError(f"the cache is full: {capacity} slots, {cache.length + T} needed; give it a larger capacity")
    run = run_of(model.config, model.ops, cache.positions(T), cache, model.weights.vector.dtype)
    if T == 1 and cache.decoder is not None:
        return _decode(ids, run, cache)
    x, _ = embed_forward(ids, w, run)
    x, _ = trunk_forward(x, w.blocks, run)
    cache.length += T  # once per pass, after every layer has used the old value
    logits, _ = unembed_forward(x[:, -1:] if last_only else x, w, run)
    return logits


def _decoder(model: Model, B: int, capacity: int) -> Any:
    """What the backend offers for single tokens, a whole model in one call; None: the ops one by one."""
    decoder = getattr(model.ops, "Decoder", None)
    if decoder is None or not decoder.fits(model.weights):
        return None
    return decoder(model.config, model.weights, B, capacity)


def _decode(ids: np.ndarray, run: Run, cache: Cache) -> np.ndarray:
    """As the end of `extend`, for one token a row."""
    ids_in_range("decode", "ids", ids, run.config.vocab_size)
    rows = np.arange(len(ids))  # each row of the cache is one long page
    logits = cache.decoder.step(
        ids[:, 0], run.positions[:, 0], run.rope, cache.keys, cache.values, rows[:, None], cache.padding,
        np.full(len(ids), cache.length),
    )  # fmt: skip
    cache.length += 1
    return logits[:, None]
