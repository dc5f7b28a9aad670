"""Shared memory of a block: arrays, by the instruction that asks for them."""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.array import aligned
from gpu.errors import KernelError
from gpu.simulator.block import Block
from gpu.simulator.memory import SharedView, View
from gpu.simulator.place import Place, place, stored_name
from gpu.simulator.races import Races

MAX_STATIC = 48 * 1024  # bytes of shared memory whose size is known when the kernel is compiled


class SharedMemory:
    """`cuda.shared` during a launch.  All threads of a block that pass the same instruction get the same array.

    dynamic_bytes: of the launch; an array of shape 0 sees all of them.  traced: makes a view into a traced one.
    """

    def __init__(self, dynamic_bytes: int, races: bool, traced: Callable[[View], View]) -> None:
        self.dynamic_bytes, self.races, self.traced = dynamic_bytes, races, traced

    def begin(self, block: Block) -> None:
        """Another block: fresh memory."""
        self.block = block
        self.arrays: dict[Place, View] = {}
        self.static_bytes = 0
        self.dynamic = aligned(self.dynamic_bytes)
        self.dynamic_races: dict[int, Races] = {}

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> View:  # noqa: ARG002
        """cuda.shared.array"""
        frame = sys._getframe(1)
        call = place(frame.f_code, frame.f_lasti)
        if call not in self.arrays:
            shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
            name = stored_name(call)
            made = self._static(shape, dtype, name) if math.prod(shape) else self._dynamic(dtype, name)
            self.arrays[call] = self.traced(made)
        return self.arrays[call]

    def _static(self, shape: tuple[int, ...], dtype: Any, name: str) -> View:
        flat = poisoned(math.prod(shape), dtype)
        self.static_bytes += flat.nbytes
        if self.static_bytes > MAX_STATIC:
            raise KernelError(
                f"{self.static_bytes} bytes of static shared memory with {name!r}; a block may have {MAX_STATIC} "
                "(more only as dynamic shared memory)"
            )
        return self._view(flat, shape, name, Races(name, shape) if self.races else None)

    def _dynamic(self, dtype: Any, name: str) -> View:
        dtype = as_dtype(dtype)
        flat = self.dynamic[: self.dynamic_bytes // dtype.itemsize * dtype.itemsize].view(dtype)
        # Arrays of equally large elements see each other's accesses.
        races = self.dynamic_races.setdefault(flat.itemsize, Races(name, flat.shape)) if self.races else None
        return self._view(flat, flat.shape, name, races)

    def _view(self, flat: np.ndarray, shape: tuple[int, ...], name: str, races: Races | None) -> View:
        if races is None:
            return View(flat, shape, name, "shared")
        if races not in self.block.races:
            self.block.races.append(races)
        return SharedView(flat, shape, name, self.block, races)


def poisoned(count: int, dtype: Any) -> np.ndarray:
    """`count` elements that show when they are read before they are written: NaN, or all bits one."""
    dtype = as_dtype(dtype)
    return aligned(count * dtype.itemsize).view(dtype)


def as_dtype(dtype: Any) -> np.dtype:
    """Of NumPy's types and of numba's, which print as NumPy's names."""
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(str(dtype))
