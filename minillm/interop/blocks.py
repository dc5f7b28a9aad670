"""The blocks of GGUF files: some weights in small integers, and the scales that make numbers of them again.

A tensor is a row of blocks.  d, m and so on are float16; q are integers.

    Q8_0   32 weights   d | 32 signed bytes                            w = d q
    Q4_0   32           d | 32 half bytes                              w = d (q - 8)
    Q4_1   32           d m | 32 half bytes                            w = d q + m
    Q4_K   256          d m | 8 scales and 8 minima of 6 bits | 256 half bytes        w = d s q - m t
    Q6_K   256          128 bytes of low, 64 of high bits | 16 scales | d             w = d s (q - 32)

Half bytes: the low halves of a run of bytes come first, then the high halves.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Blocks(NamedTuple):
    """A type of tensor: its name, weights per block, bytes per block."""

    name: str
    size: int
    bytes: int


BLOCKS = {
    0: Blocks("F32", 1, 4),
    1: Blocks("F16", 1, 2),
    2: Blocks("Q4_0", 32, 18),
    3: Blocks("Q4_1", 32, 20),
    8: Blocks("Q8_0", 32, 34),
    12: Blocks("Q4_K", 256, 144),
    14: Blocks("Q6_K", 256, 210),
    30: Blocks("BF16", 1, 2),
}  # by the number that the file has
WRITTEN = ("F32", "F16", "Q8_0")
NUMBER = {kind.name: number for number, kind in BLOCKS.items()}


def from_blocks(raw: np.ndarray, name: str) -> np.ndarray:
    """raw: bytes of whole blocks, uint8  ->  float32, flat."""
    kind = BLOCKS[NUMBER[name]]
    return _READERS[name](np.ascontiguousarray(raw).reshape(-1, kind.bytes)).astype(np.float32).reshape(-1)


def to_blocks(x: np.ndarray, name: str) -> np.ndarray:
    """x: numbers of whole blocks  ->  bytes, flat uint8.  F32, F16 and Q8_0 can be written.

    ValueError for a number that is too large for float16.
    """
    if name not in WRITTEN:
        raise ValueError(f"tensors can be written as {', '.join(WRITTEN)}: got {name}")
    x = np.ascontiguousarray(x, np.float32).reshape(-1)
    if name == "F32":
        return x.astype("<f4").view(np.uint8)
    if not np.abs(x).max(initial=0) <= float(np.finfo(np.float16).max) * (127 if name == "Q8_0" else 1):
        raise ValueError(f"a weight of {np.abs(x).max():g} is too large for {name}; write F32")
    if name == "F16":
        return x.astype("<f2").view(np.uint8)
    rows = x.reshape(-1, 32)
    d = np.abs(rows).max(axis=1, keepdims=True) / 127
    q = np.rint(rows / np.where(d == 0, 1, d)).astype(np.int8)
    return np.concatenate([d.astype("<f2").view(np.uint8), q.view(np.uint8)], axis=1).reshape(-1)


def half(raw: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block: (blocks, 1) float32."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view("<f2").astype(np.float32)


def halves(raw: np.ndarray, run: int) -> np.ndarray:
    """Half bytes of runs of `run` bytes, the low ones first: (blocks, bytes) -> (blocks, 2 bytes) uint8."""
    runs = raw.reshape(len(raw), -1, run)
    return np.stack([runs & 15, runs >> 4], axis=2).reshape(len(raw), -1)


def _q8_0(raw: np.ndarray) -> np.ndarray:
    return half(raw, 0) * raw[:, 2:].view(np.int8)


def _q4_0(raw: np.ndarray) -> np.ndarray:
    return half(raw, 0) * (halves(raw[:, 2:], 16).astype(np.float32) - 8)


def _q4_1(raw: np.ndarray) -> np.ndarray:
    return half(raw, 0) * halves(raw[:, 4:], 16) + half(raw, 2)


def _q4_k(raw: np.ndarray) -> np.ndarray:
    low, high, mixed = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([low & 63, mixed & 15 | low >> 6 << 4], axis=1).astype(np.float32)
    minima = np.concatenate([high & 63, mixed >> 4 | high >> 6 << 4], axis=1).astype(np.float32)
    q = halves(raw[:, 16:], 32).reshape(-1, 8, 32)
    w = (half(raw, 0) * scales)[:, :, None] * q - (half(raw, 2) * minima)[:, :, None]
    return w.reshape(len(raw), -1)


def _q6_k(raw: np.ndarray) -> np.ndarray:
    low = halves(raw[:, :128], 64)
    runs = raw[:, 128:192].reshape(-1, 2, 1, 32)
    high = (runs >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(len(raw), -1)
    q = (low | high << 4).astype(np.float32) - 32
    scales = raw[:, 192:208].view(np.int8).astype(np.float32) * half(raw, 208)
    return (q.reshape(-1, 16, 16) * scales[:, :, None]).reshape(len(raw), -1)


def _f32(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f4")


def _f16(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f2")


def _bf16(raw: np.ndarray) -> np.ndarray:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


_READERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q6_K": _q6_k,
}  # fmt: skip
