"""A caching allocator: memory of arrays that are gone serves the next ones of that size.

A training step asks for the same arrays as the step before.  Fresh memory from the system comes as untouched pages
whose first touch costs more than a whole pass of arithmetic over them; memory that was used before costs nothing.
PyTorch does the same for GPUs.  Nothing has to be given back by hand: an array's memory returns when the last view of
it is gone, wherever that happens.
"""

import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np

SMALLEST = 1 << 16  # bytes; below, the C library's own free lists do the same
FLOAT32 = np.dtype(np.float32).str
ALIGN = 64  # bytes: a cache line, and the widest vector register
SLACK = 1.25  # memory kept, in use and free together, relative to the most that was ever in use

_lock = threading.RLock()  # reentrant: an array may be dropped, by the collector, while its thread is in here
_free: dict[int, list["_Memory"]] = {}
_used_bytes = _free_bytes = _peak_bytes = 0


class _Memory:
    """Bytes from the system, and where the first aligned one is."""

    __slots__ = ("data", "raw", "size")

    def __init__(self, size: int) -> None:
        self.raw, self.size = np.empty(size, np.uint8), size
        self.data = (-(-self.raw.ctypes.data // ALIGN) * ALIGN, False)  # as __array_interface__ wants it


class _Block:
    """Memory on loan.  Arrays made from it keep it alive; when the last is gone, its memory is free again."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: _Memory, shape: tuple[int, ...], typestr: str) -> None:
        self.memory = memory
        self.__array_interface__ = {"data": memory.data, "shape": shape, "typestr": typestr, "version": 3}

    def __del__(self) -> None:
        if _give_back is not None:  # as it is when the interpreter ends
            _give_back(self.memory)


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """As np.empty: an uninitialised array of that shape, its memory aligned to 64 bytes."""
    itemsize, typestr = (4, FLOAT32) if dtype is np.float32 else (np.dtype(dtype).itemsize, np.dtype(dtype).str)
    num_bytes = math.prod(shape) * itemsize
    if num_bytes < SMALLEST:
        memory = np.empty(num_bytes + ALIGN, np.uint8)
        start = -memory.ctypes.data % ALIGN
        return memory[start : start + num_bytes].view(dtype).reshape(shape)
    return np.asarray(_Block(_take(size_class(num_bytes)), shape, typestr))


def zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """As np.zeros."""
    x = empty(shape, dtype)
    x.fill(0)
    return x


@lru_cache(maxsize=4096)
def size_class(num_bytes: int) -> int:
    """The block that serves `num_bytes`: rounded up so that one size serves its neighbours, wasting at most 1/8."""
    step = 1 << max(0, num_bytes.bit_length() - 4)
    return -(-num_bytes // step) * step + ALIGN


def peak_bytes() -> int:
    """The most that was in use at one time since the last `clear`."""
    return _peak_bytes


def kept_bytes() -> tuple[int, int]:
    """Bytes in use, and bytes free for the next array of their size."""
    return _used_bytes, _free_bytes


def clear() -> None:
    """Return all free memory to the system and begin to count anew."""
    global _free_bytes, _peak_bytes
    with _lock:
        _free.clear()
        _free_bytes, _peak_bytes = 0, _used_bytes


def _take(size: int) -> _Memory:
    global _used_bytes, _free_bytes, _peak_bytes
    with _lock:
        _used_bytes += size
        _peak_bytes = max(_peak_bytes, _used_bytes)
        blocks = _free.get(size)
        if blocks:
            _free_bytes -= size
            return blocks.pop()
        _shrink(int(SLACK * _peak_bytes) - _used_bytes)
    return _Memory(size)


def _give_back(memory: _Memory) -> None:
    global _used_bytes, _free_bytes
    with _lock:
        _used_bytes -= memory.size
        _free_bytes += memory.size
        _free.setdefault(memory.size, []).append(memory)


def _shrink(allowed: int) -> None:
    """Return free blocks to the system, the sizes longest unknown first, until at most `allowed` bytes are free."""
    global _free_bytes
    for size in list(_free):
        while _free_bytes > allowed and _free[size]:
            _free[size].pop()
            _free_bytes -= size
        if not _free[size]:
            del _free[size]
