"""The table of ops: inputs that matter for each, and how closely two implementations must agree.

Tests, benchmarks, exercises and notebooks all read this one table.  Makers draw float64; readers cast.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minillm.ops.cross_entropy import IGNORE
from minillm.ops.rope import rope_tables

Maker = Callable[[np.random.Generator], tuple]
SAFETY = 8  # how far an unlucky order of additions may stray beyond the random-walk estimate


class Op(NamedTuple):
    """One row: makers of inputs by name, the length of the longest sum (for the tolerance), and how many of the last
    array inputs are constants without a gradient."""

    cases: dict[str, Maker]
    sum_length: Callable[[tuple], int]
    num_constants: int = 0


def tolerance(op: Op, inputs: tuple, dtype: Any) -> float:
    """Allowed error relative to the largest value: rounding of a sum of n terms grows like sqrt(n) times epsilon."""
    return SAFETY * float(np.finfo(dtype).eps) * max(op.sum_length(inputs), 1) ** 0.5


def cast(inputs: tuple, dtype: Any) -> tuple:
    """The inputs with their float arrays in `dtype`."""
    return tuple(x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in inputs)


def read_only(inputs: tuple) -> tuple:
    """Copies that may not be written, as memory-mapped weights are."""
    copies = tuple(x.copy() if isinstance(x, np.ndarray) else x for x in inputs)
    for x in copies:
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    return copies


def strided(inputs: tuple) -> tuple:
    """The same values as views with gaps: every second element along the last axis of something larger."""

    def spread(x: np.ndarray) -> np.ndarray:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]

    return tuple(spread(x) if isinstance(x, np.ndarray) and x.ndim else x for x in inputs)


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Maker:
    """Maker of normal arrays."""
    return lambda r: tuple(scale * r.standard_normal(s) for s in shapes)


def _rows(make: Callable[[int, int], Maker]) -> dict[str, Maker]:
    """The usual sizes of an op on rows: N rows of C channels."""
    return {"toy": make(3, 4), "odd": make(5, 33), "one": make(1, 1), "empty": make(0, 7), "benchmark": make(1024, 256)}


def _elementwise(num_inputs: int) -> Op:
    cases = _rows(lambda N, C: normal(*[(N, C)] * num_inputs))
    cases["extreme"] = lambda r: tuple(r.choice([-100.0, -20.0, 0.0, 20.0, 100.0], (4, 9)) for _ in range(num_inputs))
    return Op(cases, lambda inputs: 1)


def _norm(num_weights: int) -> Op:
    def make(N: int, C: int, scale: float = 1.0, shift: float = 0.0) -> Maker:
        return lambda r: (
            shift + scale * r.standard_normal((2, N, C)),
            *(r.standard_normal(C) for _ in range(num_weights)),
            1e-5,
        )

    cases = _rows(make)
    cases |= {"small": make(3, 8, scale=1e-3), "zero": make(3, 8, scale=0.0), "extreme": make(3, 8, scale=1e4)}
    return Op(cases, lambda inputs: 2 * max(inputs[0].shape[1:]))


def _linear(N: int, inputs: int, outputs: int, bias: bool, scale: float = 1.0) -> Maker:
    def make(r: np.random.Generator) -> tuple:
        x, weight = scale * r.standard_normal((2, N, inputs)), r.standard_normal((outputs, inputs))
        return x, weight, r.standard_normal(outputs) if bias else None

    return make


def _embedding(ids: Callable[[np.random.Generator], np.ndarray], V: int, C: int) -> Maker:
    return lambda r: (ids(r), r.standard_normal((V, C)))


def _softmax() -> Op:
    cases = _rows(lambda N, C: normal((2, N, C)))
    cases["extreme"] = normal((3, 9), scale=1e4)

    def masked(r: np.random.Generator) -> tuple:
        x = r.standard_normal((4, 6))
        x[0], x[1, :5], x[2, 0] = -np.inf, -np.inf, -np.inf
        return (x,)

    cases["masked"] = masked
    return Op(cases, lambda inputs: inputs[0].shape[-1])


def _rope(B: int, T: int, H: int, D: int, start: int = 0) -> Maker:
    def make(r: np.random.Generator) -> tuple:
        cos, sin = rope_tables(start + T + 3, D, dtype=np.float64)
        positions = start + np.stack([r.permutation(T) for _ in range(B)]) if B else np.zeros((0, T), np.int64)
        return r.standard_normal((B, T, H, D)), positions, cos, sin

    return make


def _attention(B: int, T: int, S: int, H: int, G: int, D: int, segments: Any = None, scale: float = 1.0) -> Maker:
    def make(r: np.random.Generator) -> tuple:
        q, k, v = (scale * r.standard_normal(s) for s in ((B, T, H, D), (B, S, G, D), (B, S, G, D)))
        return q, k, v, None if segments is None else np.array(segments)

    return make


def _cross_entropy(shape: tuple[int, ...], V: int, ignored: float = 0.0, scale: float = 1.0) -> Maker:
    def make(r: np.random.Generator) -> tuple:
        targets = np.where(r.random(shape) < ignored, IGNORE, r.integers(0, V, shape))
        return scale * r.standard_normal((*shape, V)), targets

    return make


def _dropout() -> Op:
    def make(N: int, C: int, rate: float = 0.3) -> Maker:
        return lambda r: (r.standard_normal((N, C)), rate, np.random.default_rng(int(r.integers(1 << 31))))

    return Op(_rows(make) | {"never": make(4, 5, 0.0), "nearly always": make(40, 5, 0.99)}, lambda inputs: 1)


OPS: dict[str, Op] = {
    "add": _elementwise(2),
    "linear": Op(
        _rows(lambda N, C: _linear(N, C, C + 3, bias=True))
        | {"no bias": _linear(3, 5, 2, bias=False), "extreme": _linear(3, 5, 2, bias=True, scale=1e6)},
        lambda inputs: max(inputs[0].shape[0] * inputs[0].shape[1], *inputs[1].shape),
    ),
    "embedding": Op(
        {
            "toy": _embedding(lambda r: r.integers(0, 5, (2, 3)), 5, 4),
            "odd": _embedding(lambda r: r.integers(0, 33, (5, 33)), 33, 7),
            "one": _embedding(lambda r: np.zeros((1, 1), np.int64), 1, 1),
            "empty": _embedding(lambda r: np.zeros((0, 3), np.int64), 5, 4),
            "all equal": _embedding(lambda r: np.full((3, 11), 2), 5, 4),
            "positions": _embedding(lambda r: np.broadcast_to(np.arange(6), (4, 6)), 9, 5),
            "benchmark": _embedding(lambda r: r.integers(0, 4096, (8, 256)), 4096, 384),
        },
        lambda inputs: inputs[0].size,
    ),
    "layer_norm": _norm(2),
    "rms_norm": _norm(1),
    "gelu_tanh": _elementwise(1),
    "gelu_erf": _elementwise(1),
    "swiglu": _elementwise(2),
    "softmax": _softmax(),
    "log_softmax": _softmax(),
    "rope": Op(
        {
            "toy": _rope(2, 3, 2, 4),
            "odd": _rope(3, 5, 7, 10, start=31),
            "one": _rope(1, 1, 1, 2, start=1),
            "empty": _rope(0, 3, 2, 4),
            "benchmark": _rope(8, 256, 6, 64),
        },
        lambda inputs: 2,
        num_constants=3,  # positions and the two tables
    ),
    "attention": Op(
        {
            "toy": _attention(2, 3, 3, 2, 2, 4),
            "odd": _attention(2, 5, 5, 3, 1, 7),
            "one": _attention(1, 1, 1, 1, 1, 1),
            "empty": _attention(0, 3, 3, 2, 2, 4),
            "grouped": _attention(2, 6, 6, 6, 2, 5),
            "fewer queries": _attention(2, 2, 5, 4, 2, 3),
            "more queries": _attention(2, 5, 2, 4, 2, 3),
            "left padded": _attention(2, 4, 4, 2, 1, 3, segments=[[-1, -1, 0, 0], [0, 0, 0, 0]]),
            "right padded": _attention(2, 4, 4, 2, 1, 3, segments=[[0, 0, -1, -1], [0, 0, 0, -1]]),
            "documents": _attention(2, 3, 6, 2, 2, 3, segments=[[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 1, 1]]),
            "fully masked": _attention(1, 3, 3, 2, 1, 3, segments=[[-1, -1, -1]]),
            "extreme": _attention(2, 5, 5, 2, 1, 4, scale=100.0),
            "benchmark": _attention(4, 128, 128, 4, 4, 32),
        },
        lambda inputs: max(inputs[1].shape[1] * inputs[0].shape[2], inputs[0].shape[3]),
        num_constants=1,  # segments
    ),
    "cross_entropy": Op(
        {
            "toy": _cross_entropy((2, 3), 5),
            "odd": _cross_entropy((5, 7), 33, ignored=0.3),
            "one": _cross_entropy((1,), 1),
            "empty": _cross_entropy((0, 3), 5),
            "all ignored": _cross_entropy((2, 3), 5, ignored=1.1),
            "more ids than 100": _cross_entropy((3, 4), 128, ignored=0.5),
            "extreme": _cross_entropy((4, 3), 6, ignored=0.3, scale=1e4),
            "benchmark": _cross_entropy((8, 128), 4096),
        },
        lambda inputs: inputs[0].shape[-1],
    ),
    "dropout": _dropout(),
}
