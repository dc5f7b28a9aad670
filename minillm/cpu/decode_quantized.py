"""One token in one compiled call, as minillm/cpu/decode.py has it, for a model of integers.

What a matrix reads is rounded where it is read: every thread rounds all of it for itself, which is little beside the
matrix.  Integers stay where they are and are known by their addresses; scales and zeros, which are few, are copied side
by side.
"""

from typing import Any

import numpy as np

from minillm import store, threads
from minillm.config import ModelConfig
from minillm.cpu.decode import NOBODY_WAITS
from minillm.cpu.decode_parts import activate, look, normalise, share
from minillm.cpu.jit import kernel
from minillm.cpu.meeting import meet, meeting_point
from minillm.cpu.quantized import dot_integers, group_of_halves, round_rows
from minillm.cpu.rows import packed
from minillm.ops.quantized import BLOCK, HALF, Quantized, dequantize
from minillm.tree import Tree

MATRICES = (
    ("attention", "query"), ("attention", "key"), ("attention", "value"), ("attention", "output"),
    ("mlp", "gate"), ("mlp", "up"), ("mlp", "down"),
)  # fmt: skip
NORMS = (("norm1", "weight"), ("norm1", "bias"), ("norm2", "weight"), ("norm2", "bias"))
QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN = range(7)
ADDRESS, SCALES, ZEROS, BIAS, NUM_OUTPUTS, NUM_GROUPS, HALVED = range(7)  # what is known of a matrix
NONE = -1


class QuantizedWeights:
    """Where everything is that a decoder reads of a model; `tree` is kept, and with it the integers."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        numbers, zeros = _Joined(np.float32), _Joined(np.uint8)

        def matrix(layer: Tree | None) -> list[int]:
            if layer is None:
                return [NONE] * 7
            w = layer.weight
            return [w.q.ctypes.data, numbers.add(w.scale), zeros.add(w.zero), numbers.add(layer.bias), len(w.q),
                    w.scale.shape[1], int(w.bits == 4)]  # fmt: skip

        self.matrices = np.array([[matrix(block[part].get(name)) for part, name in MATRICES] for block in tree.blocks])
        self.head = np.array(matrix(Tree(weight=tree.head, bias=None)))
        self.norms = np.array([[numbers.add(block[norm][name]) for norm, name in NORMS] for block in tree.blocks])
        self.norm = np.array([numbers.add(tree.norm.weight), numbers.add(tree.norm.bias)])
        self.numbers, self.zeros = numbers.array(), zeros.array()
        first = tree.blocks[0]
        readers = first.attention.query.weight, first.attention.output.weight, first.mlp.down.weight
        self.halves = tuple(group_of_halves(w) for w in readers)
        self.groups = np.array([w.group for w in readers])

    @staticmethod
    def fits(tree: Tree) -> bool:
        """Whether all matrices are integers whose groups hold whole halves of blocks, and heads are not normalised."""
        layers = [block[part].get(name) for block in tree.blocks for part, name in MATRICES]
        return "query_norm" not in tree.blocks[0].attention and all(
            isinstance(w, Quantized) and w.scale.dtype == np.float32 and (w.scale.shape[1] == 1 or w.group % HALF == 0)
            for w in [tree.head, *(layer.weight for layer in layers if layer is not None)]
        )


class _Joined:
    """Arrays side by side."""

    def __init__(self, dtype: Any) -> None:
        self.parts: list[np.ndarray] = [np.empty(0, dtype)]
        self.end = 0

    def add(self, array: np.ndarray | None) -> int:
        """Where it begins; NONE for none."""
        if array is None:
            return NONE
        self.parts.append(array.reshape(-1))
        self.end += array.size
        return self.end - array.size

    def array(self) -> np.ndarray:
        """All of them."""
        return np.concatenate(self.parts)


class QuantizedDecoder:
    """See Decoder.  whole: activations have one step a token, and not one a block."""

    def __init__(self, config: ModelConfig, weights: QuantizedWeights, whole: bool, B: int, capacity: int) -> None:
        self.config, self.weights, self.whole = config, weights, whole
        C, F, H, G, D = config.channels, config.ffn, config.num_heads, config.kv_heads, config.head_size
        size, blocks = threads.num_threads(), -(-max(C, H * D, F) // BLOCK)
        self.sizes = np.array([H, G, D, F, config.vocab_size])
        self.x, self.normed = store.empty((B, C)), store.empty((size, B, C))
        self.rounded = np.empty((size, B, blocks * BLOCK), np.int8)
        self.steps, self.sums = store.empty((size, B, blocks)), store.empty((size, B, 2 * blocks))
        self.qkv, self.y = store.empty((B, (H + 2 * G) * D)), store.empty((B, H * D))
        self.up, self.gate, self.scores = store.empty((B, F)), store.empty((B, F)), store.empty((size, capacity))

    def step(self, ids: np.ndarray, positions: np.ndarray, rope: Any, keys: np.ndarray, values: np.ndarray,
             tables: np.ndarray, firsts: np.ndarray, lasts: np.ndarray, sinks: int = 0) -> np.ndarray:  # fmt: skip
        """See Decoder.step."""
        B, w, (cos, sin) = len(ids), self.weights, rope if rope is not None else (np.empty((0, 0), np.float32),) * 2
        if len(self.x) < B:
            raise ValueError(f"this decoder was made for at most {len(self.x)} rows: got {B}")
        logits = np.empty((B, self.config.vocab_size), np.float32)
        eps, point = np.float32(self.config.norm_eps), meeting_point()
        numbers = [packed(x.astype(np.int64, copy=False)) for x in (positions, tables, firsts, lasts)]
        x, qkv, y, up, gate = (a[:B] for a in (self.x, self.qkv, self.y, self.up, self.gate))
        x[...] = self._embed(ids, positions)

        def work(rank: int, size: int) -> None:
            own = (a[rank, :B] for a in (self.normed, self.rounded, self.steps, self.sums))
            try:
                _token(
                    rank, size, point, self.sizes, w.numbers, w.zeros, w.matrices, w.head, w.norms, w.norm, w.halves,
                    w.groups, self.whole, eps, cos, sin, keys, values, *numbers, sinks, x, *own, qkv, y, up, gate,
                    self.scores[rank], logits,
                )  # fmt: skip
            except BaseException:
                point[0] = NOBODY_WAITS  # the others must not wait for this thread
                raise

        threads.together(work, most=len(self.scores))
        return logits

    def _embed(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        table, learned = self.weights.tree.embed, self.weights.tree.positions
        x = dequantize(table._replace(q=table.q[ids], scale=table.scale[ids], zero=table.zero[ids]))
        return x if learned is None else x + learned[positions]


@kernel
def _times(matrix, numbers, zeros, halves, rounded, steps, sums, first, last, add, out, shift):
    """out[:, shift + o] (+)= for o in [first, last), of what was rounded."""
    O, G, num_blocks = matrix[NUM_OUTPUTS], matrix[NUM_GROUPS], halves.shape[1]
    scale = numbers[matrix[SCALES] : matrix[SCALES] + O * G].reshape(O, G)
    zero = zeros[matrix[ZEROS] : matrix[ZEROS] + O * G].reshape(O, G)
    for b in range(len(out)):
        y = out[b, shift:]
        dot_integers(
            first, last, rounded[b], steps[b, :num_blocks], sums[b, :G], matrix[ADDRESS], scale, zero,
            matrix[HALVED] == 1, halves, add, y,
        )  # fmt: skip
        if matrix[BIAS] >= 0:
            for o in range(first, last):
                y[o] += numbers[matrix[BIAS] + o]


@kernel
def _round(x, whole, group, rounded, steps, sums):
    num_blocks, num_groups = -(-x.shape[1] // BLOCK), -(-x.shape[1] // group)
    round_rows(
        0, len(x), x, whole, group, rounded[:, : num_blocks * BLOCK], steps[:, :num_blocks], sums[:, :num_groups]
    )


@kernel
def _token(rank, size, point, sizes, numbers, zeros, matrices, head, norms, norm, halves, groups, whole, eps, cos, sin,
           keys, values, positions, tables, firsts, lasts, sinks, x, normed, rounded, steps, sums, qkv, y, up, gate,
           scores, logits):  # fmt: skip
    """One thread's part.  x: (B, C), shared, is the residual stream; what is normed or rounded is this thread's own."""
    C, (H, G, D, F, V) = x.shape[1], sizes
    first, last = share(C, rank, size)
    begin, end = share(G, rank, size)
    wide, up_to = share(F, rank, size)
    times = 1
    for layer in range(len(matrices)):
        w = matrices[layer]
        normalise(x, numbers, norms[layer, 0:2], eps, normed)
        _round(normed, whole, groups[0], rounded, steps, sums)
        heads, one = (H // G) * D, D
        _times(w[QUERY], numbers, zeros, halves[0], rounded, steps, sums, begin * heads, end * heads, False, qkv, 0)
        _times(w[KEY], numbers, zeros, halves[0], rounded, steps, sums, begin * one, end * one, False, qkv, H * D)
        _times(
            w[VALUE], numbers, zeros, halves[0], rounded, steps, sums, begin * one, end * one, False, qkv, (H + G) * D
        )
        look(begin, end, H, G, D, positions, cos, sin, keys[layer], values[layer], tables, firsts, lasts, sinks, qkv,
             scores, y)  # fmt: skip
        times = meet(point, size, times)
        _round(y, whole, groups[1], rounded, steps, sums)
        _times(w[OUTPUT], numbers, zeros, halves[1], rounded, steps, sums, first, last, True, x, 0)
        times = meet(point, size, times)
        normalise(x, numbers, norms[layer, 2:4], eps, normed)
        _round(normed, whole, groups[0], rounded, steps, sums)
        _times(w[UP], numbers, zeros, halves[0], rounded, steps, sums, wide, up_to, False, up, 0)
        gated = w[GATE, ADDRESS] != NONE
        if gated:
            _times(w[GATE], numbers, zeros, halves[0], rounded, steps, sums, wide, up_to, False, gate, 0)
        activate(wide, up_to, gated, up, gate)
        times = meet(point, size, times)
        _round(up, whole, groups[2], rounded, steps, sums)
        _times(w[DOWN], numbers, zeros, halves[2], rounded, steps, sums, first, last, True, x, 0)
        times = meet(point, size, times)
    normalise(x, numbers, norm, eps, normed)
    _round(normed, whole, groups[0], rounded, steps, sums)
    first, last = share(V, rank, size)
    _times(head, numbers, zeros, halves[0], rounded, steps, sums, first, last, False, logits, 0)
