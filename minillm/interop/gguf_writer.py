"""Writing GGUF files; `gguf.py` tells of the format and reads them.

Every number that is counted is stored as u32, as llama.cpp expects; every other one as f32.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minillm.atomic import write_atomically
from minillm.interop.blocks import BLOCKS, NUMBER, to_blocks
from minillm.interop.gguf import ALIGNMENT, ARRAY, MAGIC, STRING, VERSIONS

U32, I32, F32, BOOL = 4, 5, 6, 7  # types of entries


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray], kind: str = "F32") -> None:
    """Write a file, all of it or nothing.

    metadata: str, bool, int, float, a list of str or an array of integers each.  kind: F32, F16 or Q8_0, for the
    matrices whose rows are whole blocks; the others stay F32, and so do arrays of one dimension.

    ValueError for a value that cannot be written.
    """
    head = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_string(key), _entry(value)]
    data, end = [], 0
    for name, array in tensors.items():
        its_kind = kind if array.ndim > 1 and array.shape[-1] % BLOCKS[NUMBER[kind]].size == 0 else "F32"
        raw = to_blocks(array, its_kind).tobytes()
        dimensions = array.shape[::-1]  # the file has the fastest first
        head += [_string(name), struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions,
                                            NUMBER[its_kind], end)]  # fmt: skip
        data += [raw, _padding(len(raw))]
        end += len(raw) + len(data[-1])
    start = b"".join(head)
    write_atomically(path, b"".join([start, _padding(len(start)), *data]))


def _entry(value: Any) -> bytes:
    """A value's type and the value."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", ARRAY, I32, value.size) + value.astype("<i4").tobytes()
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    raise ValueError(f"an entry can be a text, a number or a list of them: got {value!r:.80}")


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _padding(size: int) -> bytes:
    return bytes(-size % ALIGNMENT)
