"""A linear layer whose weights are small integers.

    W[o, i] = scale[o, g] * (q[o, i] - zero[o, g]),   g = i // group

Two ways to multiply by it: with x as it is (weight-only quantization, which saves memory and so the time to read it),
or with x rounded to integers too, in blocks of its own (which also saves arithmetic):

    x[n, i] ~ step[n, b] * r[n, i],   b = i // BLOCK,   r in -127 .. 127
    y[n, o] = sum over g, b of scale step (sum of q r - zero * sum of r)      # the inner sums are exact integers
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from minillm.ops.check_inputs import last_axis

BLOCK = 64  # columns are padded to a multiple of it; activations are rounded in blocks of it
HALF = BLOCK // 2
LARGEST = 127  # of a rounded activation, both ways


class Quantized(NamedTuple):
    """A matrix of O rows and `inputs` columns in `bits` bits (8 or 4), a scale and a zero for each `group` columns.

    q: uint8 (O, P), P = inputs padded to whole blocks; with 4 bits (O, P / 2): byte j of a block's 32 holds elements
    j (low half) and 32 + j (high half).  scale: (O, G) float.  zero: (O, G) uint8.
    """

    q: Any
    scale: Any
    zero: Any
    bits: int
    group: int
    inputs: int

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I), as of the matrix it stands for."""
        return len(self.q), self.inputs

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self.q.nbytes + self.scale.nbytes + self.zero.nbytes


def quantized_pack(q, scale, zero, bits, group):
    """A Quantized of integers q: (O, I) from 0 to 2^bits - 1; scale, zero: (O, G), one each for `group` columns.

    ValueError if they do not fit together.
    """
    (O, I), G = q.shape, -(-q.shape[1] // group)
    if bits not in (4, 8):
        raise ValueError(f"integers of 4 or 8 bits can be packed: got {bits}")
    if scale.shape != (O, G) or zero.shape != (O, G):
        raise ValueError(
            f"{O} rows of {I} columns in groups of {group} have scales and zeros of {(O, G)}: "
            f"got {scale.shape} and {zero.shape}"
        )
    if q.size and not 0 <= q.min() <= q.max() < 1 << bits:
        raise ValueError(f"integers of {bits} bits lie from 0 to {(1 << bits) - 1}: got {q.min()} to {q.max()}")
    padded = np.zeros((O, -(-I // BLOCK) * BLOCK), np.uint8)
    padded[:, :I] = q
    if bits == 4:
        halves = padded.reshape(O, padded.shape[1] // BLOCK, 2, HALF)
        padded = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(O, padded.shape[1] // 2)
    return Quantized(padded, scale, zero.astype(np.uint8), bits, group, I)


def quantized_unpack(w):
    """The integers q: (O, I) uint8."""
    q = w.q
    if w.bits == 4:
        both = q.reshape(len(q), q.shape[1] // HALF, HALF)
        q = np.stack([both & 15, both >> 4], axis=2).reshape(len(q), 2 * q.shape[1])
    return q[:, : w.inputs]


def dequantize(w):
    """The matrix (O, I) that `w` stands for, in the dtype of its scales."""
    group = np.arange(w.inputs) // w.group
    return w.scale[:, group] * (quantized_unpack(w).astype(w.scale.dtype) - w.zero[:, group])


def quantized_linear(x, w, bias=None):
    """y = x W^T + b, the activations as they are.  x: (..., I), w: Quantized (O, I)  ->  y: (..., O)."""
    last_axis("quantized linear", "x", x, w.inputs, f"weight {w.shape}")
    y = x @ dequantize(w).T.astype(x.dtype)
    return y if bias is None else y + bias


def round_activations(x, whole=False):
    """x: (..., I)  ->  integers r: (..., P) int8, padded to whole blocks, and steps: (..., P / BLOCK) in x's dtype.

    Each block's largest magnitude becomes 127.  whole: each row's instead, one step for all its blocks.
    """
    I, num_blocks = x.shape[-1], -(-x.shape[-1] // BLOCK)
    padded = np.zeros((*x.shape[:-1], num_blocks * BLOCK), x.dtype)
    padded[..., :I] = x
    blocks = padded.reshape(*x.shape[:-1], num_blocks, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    if whole:
        largest = np.broadcast_to(largest.max(axis=-1, keepdims=True), largest.shape)
    step = largest / LARGEST
    safe = np.where(step == 0, 1, step)[..., None]
    return np.rint(blocks / safe).astype(np.int8).reshape(padded.shape), step.astype(x.dtype)


def integer_linear(x, w, bias=None, whole=False):
    """y = x W^T + b, with x rounded to integers of 8 bits (`round_activations`).  x: (..., I)  ->  y: (..., O).

    A sum of products of one block and group is an exact integer.
    """
    last_axis("integer linear", "x", x, w.inputs, f"weight {w.shape}")
    r, step = round_activations(x, whole)
    q = quantized_unpack(w).astype(np.int32)
    y = np.zeros((*x.shape[:-1], len(q)), x.dtype)
    for start, end, b, g in _pieces(w):
        part = r[..., start:end].astype(np.int32)
        exact = part @ q[:, start:end].T - part.sum(axis=-1, keepdims=True) * w.zero[:, g].astype(np.int32)
        y += exact * (step[..., b, None] * w.scale[:, g]).astype(x.dtype)
    return y if bias is None else y + bias


def _pieces(w):
    """Runs of columns within one block and one group: (start, end, block, group)."""
    bounds = sorted({*range(0, w.inputs, BLOCK), *range(0, w.inputs, w.group), w.inputs})
    return [(start, end, start // BLOCK, start // w.group) for start, end in pairwise(bounds)]
