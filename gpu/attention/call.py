"""What all rungs of the ladder share on the host: what they take, what they give, and what a later backward needs."""

from typing import NamedTuple

import numpy as np

from gpu.array import Array
from minillm.ops.attention import check_inputs


class AttentionSaved(NamedTuple):
    """q, y: (B, T, H, D), k, v: (B, S, G, D), segments: (B, S) or None, lse: (B, T, H).

    lse is the natural logarithm of the sum of exp(score) over the keys that a row sees, -inf where it sees none.  With
    it the backward computes the probabilities again, exp(score - lse), instead of reading T x S of them.
    """

    q: Array
    k: Array
    v: Array
    segments: Array | None
    y: Array
    lse: Array


def begin(q: Array, k: Array, v: Array, segments: Array | None) -> AttentionSaved:
    """Check the shapes, as the reference does, and make room for y and lse: a kernel will fill them."""
    check_inputs(*(None if x is None else np.broadcast_to(np.float32(0), x.shape) for x in (q, k, v, segments)))
    return AttentionSaved(q, k, v, segments, q.machine.empty(q.shape), q.machine.empty(q.shape[:3]))


def segments_or_nothing(segments: Array | None, machine: object, ndim: int) -> tuple[Array, int]:
    """What kernels take for segments: an array in any case, and whether there is something in it (1 or 0)."""
    if segments is None:
        return machine.empty((1,) * ndim, np.int32), 0  # type: ignore[attr-defined]
    return segments, 1
