"""What a kernel knows as `cuda`: numba's names, each with its meaning in Python."""

import math
import sys
from collections.abc import Callable
from operator import index as as_int
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from gpu.errors import KernelError
from gpu.simulator.block import WARP, Block, Dim3, Wait
from gpu.simulator.memory import View
from gpu.simulator.place import kernel_place, stored_name
from gpu.simulator.shared import SharedMemory, poisoned
from gpu.simulator.trace import Trace

ALL_LANES = 0xFFFFFFFF


class Cuda:
    """One launch's `cuda`.  The scheduler sets `threadIdx` and `laneid` whenever another thread continues."""

    warpsize = WARP

    def __init__(self, grid: Dim3, size: Dim3, memory: SharedMemory, trace: Trace | None) -> None:
        self.gridDim, self.blockDim, self.trace = grid, size, trace
        self.threadIdx = self.blockIdx = Dim3(0, 0, 0)
        self.laneid = 0
        self.shared = SimpleNamespace(array=memory.array)
        self.local = SimpleNamespace(array=_local_array)
        self.const = SimpleNamespace(array_like=_constant)
        self.atomic = Atomic(self)

    def begin(self, block: Block) -> None:
        """Another block."""
        self.block, self.blockIdx = block, block.index
        self._meet = block.meet
        if self.trace:
            self.trace.begin(block)

    def note_barrier(self, wait: Wait) -> None:
        """The block passes a barrier."""
        if self.trace:
            self.trace.note_barrier(wait)

    def end(self) -> None:
        """The block has ended."""
        if self.trace:
            self.trace.end()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the simulator has no cuda.{name}; the emulator runs whatever compiles")

    def grid(self, ndim: int) -> Any:
        """Coordinates of the thread in the whole grid: an int, or a tuple of two or three."""
        blocks, size, thread = self.blockIdx, self.blockDim, self.threadIdx
        x = blocks.x * size.x + thread.x
        return x if ndim == 1 else (x, blocks.y * size.y + thread.y, blocks.z * size.z + thread.z)[:ndim]

    def gridsize(self, ndim: int) -> Any:
        """Number of threads of the grid along each axis: an int, or a tuple of two or three."""
        sizes = tuple(g * b for g, b in zip(self.gridDim, self.blockDim))
        return sizes[0] if ndim == 1 else sizes[:ndim]

    # Barriers of the block.

    def syncthreads(self) -> None:
        """Wait for all threads of the block."""
        self._meet("syncthreads", None, None, _nothing)

    def syncthreads_count(self, predicate: Any) -> int:
        """And count those whose predicate holds."""
        return self._meet("syncthreads_count", None, bool(predicate), lambda values: sum(values.values()))

    def syncthreads_and(self, predicate: Any) -> int:
        """And tell whether all predicates hold: 0 or 1."""
        return self._meet("syncthreads_and", None, bool(predicate), lambda values: int(all(values.values())))

    def syncthreads_or(self, predicate: Any) -> int:
        """And tell whether one holds: 0 or 1."""
        return self._meet("syncthreads_or", None, bool(predicate), lambda values: int(any(values.values())))

    # Operations of the warp.

    def syncwarp(self, mask: int = ALL_LANES) -> None:
        """Wait for the lanes of the mask."""
        self._meet("syncwarp", mask, None, _nothing)

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        """The value of another lane (modulo 32)."""
        return self._from(self._meet("shfl_sync", mask, value, _all_values), as_int(lane) % WARP)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane `delta` below; the own value in the lowest lanes."""
        source = self.laneid - as_int(delta)
        values = self._meet("shfl_up_sync", mask, value, _all_values)
        return self._from(values, source) if source >= 0 else value

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane `delta` above; the own value in the highest lanes."""
        source = self.laneid + as_int(delta)
        values = self._meet("shfl_down_sync", mask, value, _all_values)
        return self._from(values, source) if source < WARP else value

    def shfl_xor_sync(self, mask: int, value: Any, lane_mask: int) -> Any:
        """The value of the lane whose number differs in the bits of `lane_mask`."""
        source = self.laneid ^ as_int(lane_mask)
        values = self._meet("shfl_xor_sync", mask, value, _all_values)
        return self._from(values, source) if source < WARP else value

    def _from(self, values: dict[int, Any], lane: int) -> Any:
        if lane in values:
            return values[lane]
        raise KernelError(
            f"lane {self.laneid} reads the value of lane {lane}, which gives none: "
            "it is not in the mask, has returned or does not exist"
        )

    def any_sync(self, mask: int, predicate: Any) -> bool:
        """Does the predicate of one of the lanes hold?"""
        return self._meet("any_sync", mask, bool(predicate), lambda values: any(values.values()))

    def all_sync(self, mask: int, predicate: Any) -> bool:
        """Do those of all lanes hold?"""
        return self._meet("all_sync", mask, bool(predicate), lambda values: all(values.values()))

    def ballot_sync(self, mask: int, predicate: Any) -> int:
        """Bit i is the predicate of lane i.  As in numba an int32, so lane 31 makes it negative."""
        return self._meet("ballot_sync", mask, bool(predicate), lambda votes: _int32(_bits(votes, True)))

    def match_any_sync(self, mask: int, value: Any) -> int:
        """The lanes that have the same value as this one, as bits of an int32."""
        values = self._meet("match_any_sync", mask, value, _all_values)
        return _int32(_bits(values, value))

    def activemask(self) -> int:
        """The lanes that are here together.  Which those are is up to the hardware; here: all that can be."""
        return self._meet("activemask", ALL_LANES, True, lambda values: _bits(values, True))

    # Memory fences: threads run one at a time, so they order nothing; but who waits for another's flag lets it run.

    def threadfence(self) -> None:
        """See the other threads' writes."""
        self.block.spin()

    threadfence_block = threadfence_system = threadfence

    # Arithmetic.

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        if isinstance(a, np.float32):
            return np.float32(np.float64(a) * np.float64(b) + np.float64(c))
        return a * b + c

    def selp(self, condition: Any, a: Any, b: Any) -> Any:
        """a if condition else b."""
        return a if condition else b

    def popc(self, value: Any) -> int:
        """How many bits are 1."""
        return _unsigned(value)[0].bit_count()

    def clz(self, value: Any) -> int:
        """How many zeros stand above the highest 1."""
        bits, width = _unsigned(value)
        return width - bits.bit_length()

    def ffs(self, value: Any) -> int:
        """Position of the lowest 1, counted from 1; 0 if there is none."""
        bits, _ = _unsigned(value)
        return (bits & -bits).bit_length()

    def brev(self, value: Any) -> Any:
        """The bits in reverse order."""
        bits, width = _unsigned(value)
        return int(f"{bits:0{width}b}"[::-1], 2)


class Atomic:
    """cuda.atomic: each function changes an element at once and returns what it held."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def _update(self, array: View, index: Any, change: Callable[[Any], Any]) -> Any:
        old = array.update(index, change)
        self._cuda.block.spin()
        return old

    def add(self, array: View, index: Any, value: Any) -> Any:
        """element + value."""
        return self._update(array, index, lambda old: old + value)

    def sub(self, array: View, index: Any, value: Any) -> Any:
        """element - value."""
        return self._update(array, index, lambda old: old - value)

    def max(self, array: View, index: Any, value: Any) -> Any:
        """The larger of the two."""
        return self._update(array, index, lambda old: value if value > old else old)

    def min(self, array: View, index: Any, value: Any) -> Any:
        """The smaller of the two."""
        return self._update(array, index, lambda old: value if value < old else old)

    def and_(self, array: View, index: Any, value: Any) -> Any:
        """element & value."""
        return self._update(array, index, lambda old: old & value)

    def or_(self, array: View, index: Any, value: Any) -> Any:
        """element | value."""
        return self._update(array, index, lambda old: old | value)

    def xor(self, array: View, index: Any, value: Any) -> Any:
        """element ^ value."""
        return self._update(array, index, lambda old: old ^ value)

    def exch(self, array: View, index: Any, value: Any) -> Any:
        """value."""
        return self._update(array, index, lambda old: value)

    def cas(self, array: View, index: Any, old: Any, value: Any) -> Any:
        """value if the element is `old`, else the element."""
        return self._update(array, index, lambda found: value if found == old else found)


def _nothing(_: dict[int, Any]) -> None:
    pass


def _all_values(values: dict[int, Any]) -> dict[int, Any]:
    return values


def _bits(values: dict[int, Any], wanted: Any) -> int:
    return sum(1 << lane for lane, value in values.items() if value == wanted)


def _int32(bits: int) -> int:
    return bits - (bits >> 31 << 32)


def _unsigned(value: Any) -> tuple[int, int]:
    """The bits of an integer and how many it has: Python's own have 32 if they fit, otherwise 64."""
    number = int(value)
    width = value.dtype.itemsize * 8 if isinstance(value, np.integer) else 32 if -(2**31) <= number < 2**32 else 64
    return number & ((1 << width) - 1), width


def _local_array(shape: Any, dtype: Any, alignment: int | None = None) -> View:  # noqa: ARG001
    """cuda.local.array: memory of one thread (registers, if all indices are known when it is compiled)."""
    shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    return View(poisoned(math.prod(shape), dtype), shape, _receiver(), "local")


def _constant(host: np.ndarray) -> View:
    """cuda.const.array_like: memory that is only read."""
    flat = np.array(host).reshape(-1)
    flat.flags.writeable = False
    return View(flat, host.shape, _receiver(), "constant")


def _receiver() -> str:
    """The name of the variable that gets what is made here."""
    return stored_name(kernel_place(sys._getframe(1)))
