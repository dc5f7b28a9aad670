"""What all rungs share on the host: what they take, what they give, and what a later backward needs."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gpu.array import Array
from minillm.ops.attention import check_inputs

LOG2_E = math.log2(math.e)
TILED_SIGNATURE = (
    "float32[:], float32[:], float32[:], int32[:], float32[:], float32[:], "  # q, k, v, segments, y, lse
    "int32, int32, int32, int32, int32, int32, float32"  # T, S, G, group, D, packed, scale
)


class AttentionSaved(NamedTuple):
    """q, y: (B, T, H, D), k, v: (B, S, G, D), segments: (B, S) or None, lse: (B, T, H).

    lse is the natural logarithm of the sum of exp(score) over the keys that a row sees, -inf where it sees none.  With
    it a backward computes the probabilities again, exp(score - lse), instead of reading T x S of them.
    """

    q: Array
    k: Array
    v: Array
    segments: Array | None
    y: Array
    lse: Array


def begin(q: Array, k: Array, v: Array, segments: Array | None) -> AttentionSaved:
    """Check the shapes as the reference does, and make room for y and lse, which a kernel will fill."""
    check_inputs(*(None if x is None else np.broadcast_to(np.float32(0), x.shape) for x in (q, k, v, segments)))
    return AttentionSaved(q, k, v, segments, q.machine.empty(q.shape), q.machine.empty(q.shape[:3]))


def segments_or_nothing(saved: AttentionSaved) -> tuple[Array, int]:
    """What kernels take for segments: an array in any case, and whether there is something in it (1 or 0)."""
    if saved.segments is None:
        return saved.q.machine.empty((1, 1), np.int32), 0
    return saved.segments, 1


def tiled_arguments(saved: AttentionSaved) -> tuple[Any, ...]:
    """The arguments of a kernel with `TILED_SIGNATURE`: flat arrays, sizes, and a scale that makes exp(x) exp2(x)."""
    (_, T, H, D), (_, S, G, _) = saved.q.shape, saved.k.shape
    segments, packed = segments_or_nothing(saved)
    arrays = (x.reshape(x.size) for x in (saved.q, saved.k, saved.v, segments, saved.y, saved.lse))
    return *arrays, T, S, G, H // G, D, packed, LOG2_E * D**-0.5


def smallest_width(D: int, widths: Iterable[int]) -> int:
    """The narrowest kernel into which heads of D channels fit; it fills up with zeros."""
    widths = list(widths)
    if max(widths) < D:
        raise ValueError(
            f"attention: heads of {D} channels, and this kernel is made for at most {max(widths)}; "
            "use the rung 'naive', which takes any"
        )
    return min(width for width in widths if width >= D)
