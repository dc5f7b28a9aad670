"""The GGUF format, which llama.cpp reads: metadata, and tensors in blocks of small integers.

    "GGUF" | version | number of tensors | number of entries | entries | tensor infos | padding | data

A file may come from anybody.  So every count, length, type and offset is checked against the file's size before it is
used; tensors and arrays of numbers are views of the mapped file, so reading takes no memory but that of the strings.
Specification: github.com/ggml-org/ggml, docs/gguf.md.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minillm.interop.blocks import BLOCKS, Blocks, from_blocks

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # of struct
STRING, ARRAY = 8, 9
ALIGNMENT = 32  # where the file does not say otherwise
MOST_DIMENSIONS = 4
MOST_STRINGS = 1 << 20  # a string of two letters takes ten bytes in a file and sixty in memory
SMALLEST_ENTRY, SMALLEST_INFO = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8  # bytes: as many as the file has room for


class Tensor(NamedTuple):
    """A tensor as it lies in the file.  shape: as in NumPy, the last axis without gaps; raw: its bytes, uint8."""

    shape: tuple[int, ...]
    kind: Blocks
    raw: np.ndarray

    def array(self) -> np.ndarray:
        """As float32."""
        return from_blocks(self.raw, self.kind.name).reshape(self.shape)


@dataclass(frozen=True)
class GGUF:
    """What a file holds."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """An entry, of the type it must have.  ValueError if it has another, or is missing and there is no default."""
        value = self.metadata.get(key, default)
        if value is None:
            raise ValueError(f"the file has no entry {key!r}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"entry {key!r} has an unexpected type: {value!r:.80}")
        return value


def read_gguf(path: Path) -> GGUF:
    """Read a file.  ValueError names it and says what is wrong with it."""
    size = path.stat().st_size
    if size < len(MAGIC) + 20:
        raise ValueError(f"{path} is no GGUF file: it has {size} bytes")
    try:
        return _read(np.memmap(path, np.uint8, "r"))
    except (ValueError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{path} is no GGUF file that can be read: {error}") from error


def _read(data: np.ndarray) -> GGUF:
    reader = _Reader(data)
    if bytes(reader.take(4)) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.number("I")
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}; versions {' and '.join(map(str, VERSIONS))} are understood")
    num_tensors, num_entries = reader.number("Q"), reader.number("Q")
    reader.room_for(num_entries, SMALLEST_ENTRY, "entries")
    reader.room_for(num_tensors, SMALLEST_INFO, "tensors")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = reader.string()
        if key in metadata:
            raise ValueError(f"entry {key!r} occurs twice")
        metadata[key] = reader.value(reader.number("I"))
    infos = [_info(reader) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise ValueError(f"its alignment must be a power of 2 of at least 8: got {alignment!r:.80}")
    start = end = -(-reader.place // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, shape, kind, offset in sorted(infos, key=lambda info: info[3]):
        if name in tensors:
            raise ValueError(f"tensor {name!r} occurs twice")
        if offset % alignment or start + offset < end:
            raise ValueError(f"tensor {name!r} at byte {offset} is not aligned to {alignment}, or in another's place")
        tensors[name] = _tensor(data, name, shape, kind, start + offset)
        end = start + offset + len(tensors[name].raw)
    return GGUF(metadata, tensors)


def _info(reader: "_Reader") -> tuple[str, tuple[int, ...], Blocks, int]:
    name, num_dimensions = reader.string(), reader.number("I")
    if not 1 <= num_dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {MOST_DIMENSIONS} can be")
    shape = tuple(reader.number("Q") for _ in range(num_dimensions))[::-1]  # the file has the fastest first
    number = reader.number("I")
    if number not in BLOCKS:
        raise ValueError(
            f"tensor {name!r} is of type {number}; understood are {', '.join(b.name for b in BLOCKS.values())}"
        )
    return name, shape, BLOCKS[number], reader.number("Q")


def _tensor(data: np.ndarray, name: str, shape: tuple[int, ...], kind: Blocks, start: int) -> Tensor:
    if 0 in shape or shape[-1] % kind.size:
        raise ValueError(f"tensor {name!r} of {shape} in {kind.name} must have rows of whole blocks of {kind.size}")
    num_bytes = math.prod(shape) // kind.size * kind.bytes
    if start + num_bytes > len(data):
        raise ValueError(f"tensor {name!r} ends at byte {start + num_bytes}, the file at {len(data)}: is it cut off?")
    return Tensor(shape, kind, data[start : start + num_bytes])


class _Reader:
    """A place in the file's bytes, which moves on as things are read."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.place, self.num_strings = data.data, 0, 0

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        if count > len(self.data) - self.place:
            raise ValueError(f"{count} bytes are wanted at byte {self.place}, the file ends at {len(self.data)}")
        self.place += count
        return self.data[self.place - count : self.place]

    def room_for(self, count: int, least: int, what: str) -> None:
        """ValueError unless so many things of at least `least` bytes may follow."""
        if count * least > len(self.data) - self.place:
            raise ValueError(f"it says to hold {count} {what}, for which it is too short")

    def number(self, code: str) -> Any:
        """One number of a type of the struct module."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def string(self) -> str:
        """A length, and so many bytes of UTF-8."""
        self.num_strings += 1
        if self.num_strings > MOST_STRINGS:
            raise ValueError(f"it has more than {MOST_STRINGS:,} strings")
        return bytes(self.take(self.number("Q"))).decode("utf-8")

    def value(self, kind: int) -> Any:
        """An entry's value; an array of strings is a list, one of numbers a NumPy array."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            raise ValueError(f"an entry is of type {kind}, which is unknown")
        inner, count = self.number("I"), self.number("Q")
        if inner in NUMBERS:
            code = NUMBERS[inner]
            return np.frombuffer(self.take(count * struct.calcsize(f"<{code}")), f"<{code}")
        if inner != STRING:
            raise ValueError(f"an array of type {inner} cannot be read")
        self.room_for(count, 8, "strings")
        return [self.string() for _ in range(count)]
