"""An array that lives on a machine, and what a machine is: a place with memory where kernels run.

There are three machines: `Device` (a GPU), `Emulator` (the compiled kernel on this computer's cores) and `Simulator`
(the kernel's Python code, thread by thread).  A kernel's host code looks the same on each.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from gpu.kernel import Kernel


class Machine(Protocol):
    """What runs kernels."""

    def array(self, host: Any) -> "Array":
        """A copy of a NumPy array in this machine's memory."""

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> "Array":
        """New memory with nothing in it that may be read before it is written."""

    def launch(
        self, kernel: "Kernel", grid: tuple, block: tuple, shared: int, arguments: list, stream: Any = None
    ) -> None:
        """Run `kernel` on grid x block threads; shared: bytes of dynamic shared memory of each block."""

    def synchronize(self) -> None:
        """Wait until every launch has ended."""

    def to_host(self, memory: Any) -> np.ndarray:
        """What is in `memory`, as a NumPy array of its own."""

    def reshaped(self, memory: Any, shape: tuple[int, ...]) -> Any:
        """The same memory in another shape."""


class Array:
    """Contiguous memory on a machine, with a shape and a dtype.  It has no arithmetic: kernels compute."""

    __slots__ = ("dtype", "machine", "memory", "shape")

    def __init__(self, machine: Machine, memory: Any, shape: Sequence[int], dtype: Any) -> None:
        self.machine, self.memory = machine, memory
        self.shape, self.dtype = tuple(int(n) for n in shape), np.dtype(dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def reshape(self, *shape: int) -> "Array":
        """The same memory in another shape; one of its sizes may be -1."""
        known = math.prod(n for n in shape if n != -1)
        shape = tuple(self.size // max(known, 1) if n == -1 else n for n in shape)
        if math.prod(shape) != self.size:
            raise ValueError(f"cannot see {self.shape} as {shape}: {self.size} elements")
        return Array(self.machine, self.machine.reshaped(self.memory, shape), shape, self.dtype)

    def numpy(self) -> np.ndarray:
        """A copy on the host; waits for the kernels that write it."""
        return self.machine.to_host(self.memory)

    def __repr__(self) -> str:
        return f"Array({self.shape}, {self.dtype}, on {type(self.machine).__name__})"


class HostMemory:
    """The memory half of a machine whose kernels run on the host: NumPy arrays."""

    def array(self, host: Any) -> Array:
        """A copy of a NumPy array.  16-byte aligned, as device memory is."""
        host = np.asarray(host)
        made = self.empty(host.shape, host.dtype)
        made.memory[...] = host
        return made

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """Memory of its own, filled with NaN or all bits one, so that reading it unwritten shows."""
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        memory = aligned(math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
        return Array(self, memory, shape, dtype)  # type: ignore[arg-type]

    def to_host(self, memory: np.ndarray) -> np.ndarray:
        """A copy."""
        return memory.copy()

    def reshaped(self, memory: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """A view."""
        return memory.reshape(shape)

    def synchronize(self) -> None:
        """Nothing to wait for: a launch returns when it has ended."""


def aligned(nbytes: int, alignment: int = 256) -> np.ndarray:
    """Bytes at a multiple of `alignment` with as much unused room behind them, poisoned: all bits are one."""
    memory = np.full(nbytes + 2 * alignment, 0xFF, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes]
