"""What kernels index: arrays that notice an element that is not there, a race, and (traced) every address.

An index below zero or past the end is no error on a GPU: it is somebody else's memory.
"""

import math
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from operator import index as as_int
from typing import Any

import numpy as np

from gpu.errors import KernelError
from gpu.simulator.races import SEVERAL, Races


class Places(dict):
    """Where the elements of a shape are in its flat memory: {index: position}, found out when first asked.

    IndexError or TypeError for anything that is not one element.  Python's and NumPy's integers find the same entry.
    """

    MAX_KEPT = 1 << 16

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __missing__(self, index: Any) -> int:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != len(self.shape):
            raise IndexError
        k = 0
        for i, n in zip(map(as_int, indices), self.shape):
            if not 0 <= i < n:
                raise IndexError
            k = k * n + i
        if len(self) < self.MAX_KEPT:
            self[index] = k
        return k


places = lru_cache(maxsize=64)(Places)


class View:
    """A contiguous array as a kernel sees it; `flat` is its memory, which begins at element `start` of the whole."""

    __slots__ = ("dtype", "flat", "name", "places", "shape", "space", "start")

    def __init__(self, flat: np.ndarray, shape: tuple[int, ...], name: str, space: str) -> None:
        self.flat, self.shape, self.name, self.space, self.start = flat, shape, name, space, 0
        self.dtype, self.places = flat.dtype, places(shape)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: self.flat.size)
    __iter__ = None  # or Python would count up to an IndexError that never comes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        try:
            k = self.places[index]
        except (IndexError, TypeError):
            return self.part(index)
        return self.flat[k]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.store(self.place(index), value)

    def place(self, index: Any) -> int:
        """Where in `flat` the one element is that `index` names."""
        try:
            return self.places[index]
        except (IndexError, TypeError):
            part = self.part(index)
            raise KernelError(f"{self} is changed one element at a time, not {part.size} as by [{index}]") from None

    def part(self, index: Any) -> "View":
        """x[i] of a matrix, or x[a:b]: a view of consecutive elements."""
        *leading, last = index if isinstance(index, tuple) else (index,)
        self._check([*leading, last])
        if not isinstance(last, slice):
            leading, last = [*leading, last], slice(None)
        if any(isinstance(i, slice) for i in leading) or last.step not in (None, 1):
            raise KernelError(f"{self}[{index}] is not contiguous; the simulator has no such views")
        sizes = self.shape[len(leading) :]
        first, stop, _ = last.indices(sizes[0])
        shape = (max(stop - first, 0), *sizes[1:])
        row = math.prod(sizes[1:])
        k = 0
        for i, n in zip(leading, self.shape):
            k = k * n + as_int(i)
        start = k * math.prod(sizes) + first * row
        return self._at(start, shape)

    def _check(self, indices: list) -> None:
        if len(indices) > len(self.shape):
            raise KernelError(f"{self} has {len(self.shape)} dimensions, the index {len(indices)}")
        for i, n in zip(indices, self.shape):
            if isinstance(i, slice):
                continue
            if not hasattr(i, "__index__"):
                raise KernelError(f"{self} is indexed with {i!r}; an index is an integer")
            if not 0 <= i < n:
                raise KernelError(f"{self} has no element [{', '.join(map(str, indices))}]")

    def _at(self, start: int, shape: tuple[int, ...]) -> "View":
        made = copy(self)
        made.flat, made.shape, made.start = self.flat[start : start + math.prod(shape)], shape, self.start + start
        made.places = places(shape)
        return made

    def store(self, k: int, value: Any) -> None:
        """flat[k] = value, cast as hardware would: integers that do not fit lose their upper bits."""
        try:
            self.flat[k] = value
        except OverflowError:
            bits = 8 * self.dtype.itemsize
            wrapped = int(value) & ((1 << bits) - 1)
            self.flat[k] = wrapped - (wrapped >> bits - 1 << bits) if self.dtype.kind == "i" else wrapped

    def load4(self, start: int) -> tuple:
        """Elements start .. start + 3 of the flattened array."""
        start = self._four(start)
        return tuple(self.flat[start : start + 4])

    def store4(self, start: int, values: tuple) -> None:
        """Write elements start .. start + 3 of the flattened array."""
        start = self._four(start)
        for k, value in enumerate(values, start):
            self.store(k, value)

    def _four(self, start: int) -> int:
        start = as_int(start)
        if self.dtype.itemsize != 4:
            raise KernelError(f"{self}: 16 bytes at once need elements of 4 bytes")
        if start < 0 or start + 4 > self.flat.size:
            raise KernelError(f"{self} has no elements {start} to {start + 3}")
        if self.flat[start:].ctypes.data % 16:
            raise KernelError(f"{self}: element {start} is not at a multiple of 16 bytes")
        return start

    def update(self, index: Any, change: Callable[[Any], Any]) -> Any:
        """Atomically: element = change(element); what was there before."""
        k = self.place(index)
        old = self.flat[k]
        View.store(self, k, change(old))
        return old

    def __str__(self) -> str:
        return f"{self.space} array {self.name!r} of shape {self.shape}"


class SharedView(View):
    """Shared memory: every access is compared with what other threads did since the last barrier."""

    __slots__ = ("block", "races")

    def __init__(self, flat: np.ndarray, shape: tuple[int, ...], name: str, block: Any, races: Races) -> None:
        super().__init__(flat, shape, name, "shared")
        self.block, self.races = block, races

    def __getitem__(self, index: Any) -> Any:
        try:
            k = self.places[index]
        except (IndexError, TypeError):
            return self.part(index)
        races, me, at = self.races, self.block.mark, k + self.start
        reader = races.readers[at]
        if races.writers[at] is not None or (reader is not me and reader is not me.group and reader is not SEVERAL):
            races.read(at, me)
        return self.flat[k]

    def store(self, k: int, value: Any) -> None:
        """As `View.store`."""
        self.races.write(k + self.start, self.block.mark)
        super().store(k, value)

    def load4(self, start: int) -> tuple:
        """As `View.load4`."""
        values = super().load4(start)
        for k in range(start, start + 4):
            self.races.read(k + self.start, self.block.mark)
        return values

    def update(self, index: Any, change: Callable[[Any], Any]) -> Any:
        """As `View.update`."""
        self.races.atomic(self.place(index) + self.start, self.block.mark)
        return super().update(index, change)


class Traced:
    """Added to a view: `recorder.note(view, element, how many, kind)` is told of every access."""

    __slots__ = ()
    recorder: Any

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)  # type: ignore[misc]
        if not isinstance(value, View):
            self.recorder.note(self, self.place(index), 1, "load")  # type: ignore[attr-defined]
        return value

    def store(self, k: int, value: Any) -> None:
        """As `View.store`."""
        self.recorder.note(self, k, 1, "store")
        super().store(k, value)  # type: ignore[misc]

    def load4(self, start: int) -> tuple:
        """As `View.load4`."""
        values = super().load4(start)  # type: ignore[misc]
        self.recorder.note(self, start, 4, "load")
        return values

    def store4(self, start: int, values: tuple) -> None:
        """As `View.store4`."""
        start = self._four(start)  # type: ignore[attr-defined]
        self.recorder.note(self, start, 4, "store")
        for k, value in enumerate(values, start):
            super().store(k, value)  # type: ignore[misc]

    def update(self, index: Any, change: Callable[[Any], Any]) -> Any:
        """As `View.update`."""
        old = super().update(index, change)  # type: ignore[misc]
        self.recorder.note(self, self.place(index), 1, "atomic")  # type: ignore[attr-defined]
        return old


class TracedView(Traced, View):
    """Global memory under observation."""

    __slots__ = ("recorder",)


class TracedSharedView(Traced, SharedView):
    """Shared memory under observation."""

    __slots__ = ("recorder",)
