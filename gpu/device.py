"""A GPU: kernels compiled by numba-cuda, run by the driver.

Arrays are numba-cuda's device arrays; streams, events and properties are those of `cuda.core`.  Streams made here wait
for copies and for launches without a stream, and those wait for them (they are "blocking" in CUDA's words).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

import gpu
from gpu.array import Array
from gpu.compile import lines_without_variables, numba_types
from gpu.kernel import Kernel

FREE_SHARED = 48 * 1024  # bytes of dynamic shared memory that a block may have without asking for more


class Device:
    """The machine of a real card.  RuntimeError where there is none: use `Emulator()` there."""

    def __init__(self, number: int = 0) -> None:
        if lacking := gpu.missing():
            raise RuntimeError(f"{lacking}: use Emulator() in place of Device()")
        from cuda.core import Device as CoreDevice
        from numba import cuda
        from numba.cuda.core import config

        if not cuda.is_available():
            raise RuntimeError("gpu: the NVIDIA driver finds no card: use Emulator() in place of Device()")
        config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # numba warns of every grid below 128 blocks, and tests are small
        cuda.select_device(number)
        self.core = CoreDevice(number)
        self.core.set_current()
        self._cuda = cuda
        self._compiled = cache(self._compile)
        self._allowed: dict[Kernel, int] = {}  # dynamic shared memory asked for so far

    @property
    def name(self) -> str:
        """As the driver gives it: "NVIDIA A100-SXM4-80GB"."""
        return self.core.name

    @property
    def capability(self) -> tuple[int, int]:
        """(8, 0) for an A100, (9, 0) for an H100."""
        return tuple(self.core.compute_capability)

    @property
    def multiprocessors(self) -> int:
        """How many there are; blocks are spread over them."""
        return self.core.properties.multiprocessor_count

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of memory: free, and in all."""
        return tuple(self._cuda.current_context().get_memory_info())

    @property
    def bandwidth(self) -> float:
        """Bytes a second that memory can move at most: clock (kHz) x 2, for it works on both edges, x width (bits)."""
        has = self.core.properties
        return has.memory_clock_rate * 1e3 * 2 * has.global_memory_bus_width / 8

    def array(self, host: Any) -> Array:
        """A copy of a NumPy array on the card."""
        host = np.asarray(host, order="C")
        return Array(self, self._cuda.to_device(host), host.shape, host.dtype)

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """New memory with whatever was in it."""
        shape = (int(shape),) if isinstance(shape, int | np.integer) else tuple(shape)
        return Array(self, self._cuda.device_array(shape, dtype), shape, dtype)

    def launch(
        self, kernel: Kernel, grid: tuple, block: tuple, shared: int, arguments: list, stream: Any = None
    ) -> None:
        """Start `kernel` and return; launches in one stream run one after the other."""
        compiled = self._compiled(kernel)
        if shared > max(FREE_SHARED, self._allowed.get(kernel, 0)):
            self._allow_shared(kernel, shared)
        compiled[grid, block, stream or 0, shared](*(a.memory if isinstance(a, Array) else a for a in arguments))

    def synchronize(self) -> None:
        """Wait until every launch, in all streams, has ended."""
        self.core.sync()

    def to_host(self, memory: Any) -> np.ndarray:
        """A copy as a NumPy array, after all launches."""
        self.synchronize()
        return memory.copy_to_host()

    def reshaped(self, memory: Any, shape: tuple[int, ...]) -> Any:
        """The same memory in another shape."""
        return memory.reshape(shape)

    def stream(self) -> Any:
        """A queue of launches beside the others: `kernel[grid, block, stream](...)`."""
        from cuda.core import StreamOptions

        return self.core.create_stream(options=StreamOptions(nonblocking=False))

    def event(self, stream: Any = None) -> Any:
        """A mark behind the launches so far, with the time at which the card reaches it."""
        from cuda.core import LEGACY_DEFAULT_STREAM, EventOptions

        return (stream or LEGACY_DEFAULT_STREAM).record(options=EventOptions(timing_enabled=True))

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two events; waits for the second."""
        end.sync()
        return (end - start) / 1e3

    def _compile(self, kernel: Kernel) -> Any:
        """By way of PTX, as the gate does (lto=False), so that what runs is what was counted."""
        bounds = (kernel.threads, kernel.blocks)
        made = self._cuda.jit(kernel.function, launch_bounds=bounds, lineinfo=True, lto=False)
        with lines_without_variables():
            made.compile(numba_types(kernel))
        return made

    def _allow_shared(self, kernel: Kernel, shared: int) -> None:
        """Ask for more than 48 KiB of dynamic shared memory, which numba-cuda never does (NVIDIA/numba-cuda#94)."""
        from cuda.bindings import driver

        most = self.core.properties.max_shared_memory_per_block_optin
        if shared > most:
            raise ValueError(f"{kernel.name} wants {shared} bytes of shared memory a block, {self.name} has {most}")
        function = self._compiled(kernel).compile(numba_types(kernel)).library.get_cufunc()
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuKernelSetAttribute(attribute, shared, function.handle, driver.CUdevice(self.core.device_id))
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(
                f"{kernel.name}: the driver refuses {shared} bytes of dynamic shared memory: {error.name}"
            )
        self._allowed[kernel] = shared
