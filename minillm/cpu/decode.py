"""One token for each of B texts, in one compiled call: the whole model at the speed of memory.

A token needs every weight once, for two operations each: nothing but reading them takes time, if nothing else gets in
the way.  An op at a time, Python between the ops would take as long as a small model's weights.  So all layers run in
one call, on all threads at once: each takes a share of the heads, then of the outputs of each product, and they meet
four times a layer (minillm/cpu/meeting.py).

The result is that of the ops one by one, to rounding; tests/cpu/test_decode.py compares them.
"""

from typing import Any

import numpy as np

from minillm import store, threads
from minillm.config import ModelConfig
from minillm.cpu.decode_parts import attend, feed, multiply, normalise, share
from minillm.cpu.jit import kernel
from minillm.cpu.meeting import meet, meeting_point
from minillm.cpu.rows import packed
from minillm.tree import Packed, walk

LAYER = (
    "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias",
    "attention.query.weight", "attention.query.bias", "attention.key.weight", "attention.key.bias",
    "attention.value.weight", "attention.value.bias", "attention.output.weight", "attention.output.bias",
    "mlp.gate.weight", "mlp.gate.bias", "mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias",
)  # fmt: skip
ENDS = ("embed", "positions", "norm.weight", "norm.bias", "head")
NOBODY_WAITS = 1 << 62  # more arrivals than any meeting asks for
NORM1, NORM2, QUERY, OUTPUT, FEED, DOWN = 0, 2, 4, 10, 12, 16
EMBED, POSITIONS, NORM, HEAD = 0, 1, 2, 4


class Decoder:
    """The next token's logits for at most B rows of at most `capacity` slots; holds what every step needs again."""

    def __init__(self, config: ModelConfig, weights: Packed, B: int, capacity: int) -> None:
        self.config, self.weights = config, weights
        leaves = dict(walk(weights.tree))
        layers = range(config.num_layers)
        self.offsets = np.array([[self._offset(leaves.get(f"blocks.{i}.{n}")) for n in LAYER] for i in layers])
        self.ends = np.array([self._offset(leaves.get(name)) for name in ENDS])
        C, F = config.channels, config.ffn
        H, G, D = config.num_heads, config.kv_heads, config.head_size
        size = threads.num_threads()
        self.sizes = np.array([H, G, D, F, config.vocab_size])
        self.x, self.normed = store.empty((B, C)), store.empty((size, B, C))
        self.qkv, self.y = store.empty((B, (H + 2 * G) * D)), store.empty((B, H * D))
        self.up, self.gate, self.scores = store.empty((B, F)), store.empty((B, F)), store.empty((size, capacity))

    @staticmethod
    def fits(weights: Packed) -> bool:
        """Whether the compiled call can read the weights: they are float32, and heads are not normalised."""
        return weights.vector.dtype == np.float32 and "query_norm" not in weights.tree.blocks[0].attention

    def step(self, ids: np.ndarray, positions: np.ndarray, rope: Any, keys: np.ndarray, values: np.ndarray,
             tables: np.ndarray, firsts: np.ndarray, lasts: np.ndarray, sinks: int = 0) -> np.ndarray:  # fmt: skip
        """ids, positions: (B,)  ->  logits (B, V).  Puts the keys and values of row b into its slot number lasts[b].

        keys, values: (L, pages, P, G, D), tables: (B, M), as in ops.paged_attention; rope: cos and sin tables or None.
        Row b sees its slots [0, sinks) and [firsts[b], lasts[b]].  Rows may be tokens of one text, in their order.
        """
        B, (cos, sin) = len(ids), rope if rope is not None else (np.empty((0, 0), np.float32),) * 2
        if len(self.x) < B:
            raise ValueError(f"this decoder was made for at most {len(self.x)} rows: got {B}")
        logits = np.empty((B, self.config.vocab_size), np.float32)
        eps, point = np.float32(self.config.norm_eps), meeting_point()
        numbers = [packed(x.astype(np.int64, copy=False)) for x in (ids, positions, tables, firsts, lasts)]
        x, qkv, y, up, gate = (a[:B] for a in (self.x, self.qkv, self.y, self.up, self.gate))

        def work(rank: int, size: int) -> None:
            try:
                _token(
                    rank, size, point, self.sizes, self.weights.vector, self.offsets, self.ends, eps, cos, sin,
                    keys, values, *numbers, sinks, x, self.normed[rank, :B], qkv, y, up, gate, self.scores[rank],
                    logits,
                )  # fmt: skip
            except BaseException:
                point[0] = NOBODY_WAITS  # the others must not wait for this thread
                raise

        threads.together(work, most=len(self.scores))
        return logits

    def _offset(self, leaf: Any) -> int:
        """Where an array begins in the vector; -1 where the family has no such array."""
        if leaf is None:
            return -1
        start = self.weights.vector.__array_interface__["data"][0]
        return (leaf.__array_interface__["data"][0] - start) // leaf.itemsize


@kernel
def _token(rank, size, point, sizes, vector, offsets, ends, eps, cos, sin, keys, values, ids, positions, tables,
           firsts, lasts, sinks, x, normed, qkv, y, up, gate, scores, logits):  # fmt: skip
    """One thread's part.  x: (B, C), shared, is the residual stream; `normed` and `scores` are this thread's own."""
    C, (H, G, D, F, V) = x.shape[1], sizes
    first, last = share(C, rank, size)
    for b in range(len(ids)):
        for c in range(first, last):
            x[b, c] = vector[ends[EMBED] + ids[b] * C + c]
            if ends[POSITIONS] >= 0:
                x[b, c] += vector[ends[POSITIONS] + positions[b] * C + c]
    times = meet(point, size, 1)
    for layer in range(len(offsets)):
        w = offsets[layer]
        normalise(x, vector, w[NORM1 : NORM1 + 2], eps, normed)
        attend(
            rank, size, normed, vector, w[QUERY : QUERY + 6], H, G, D, positions, cos, sin, keys[layer], values[layer],
            tables, firsts, lasts, sinks, qkv, scores, y,
        )  # fmt: skip
        times = meet(point, size, times)
        multiply(y, vector, w[OUTPUT : OUTPUT + 2], C, first, last, True, x, 0)
        times = meet(point, size, times)
        normalise(x, vector, w[NORM2 : NORM2 + 2], eps, normed)
        feed(rank, size, normed, vector, w[FEED : FEED + 4], F, up, gate)
        times = meet(point, size, times)
        multiply(up, vector, w[DOWN : DOWN + 2], C, first, last, True, x, 0)
        times = meet(point, size, times)
    normalise(x, vector, ends[NORM : NORM + 2], eps, normed)
    first, last = share(V, rank, size)
    multiply(normed, vector, np.array([ends[HEAD], -1]), V, first, last, False, logits, 0)
