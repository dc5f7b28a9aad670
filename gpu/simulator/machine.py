"""The machine that runs a kernel's Python code on the host."""

import math
from functools import partial
from random import Random
from typing import Any

import numpy as np

from gpu.array import Array, HostMemory
from gpu.kernel import Kernel
from gpu.simulator.block import Block, Dim3, Threads
from gpu.simulator.memory import View
from gpu.simulator.rebind import Rebinding
from gpu.simulator.shared import SharedMemory
from gpu.simulator.trace import Trace
from gpu.simulator.vocabulary import Cuda


class Simulator(HostMemory):
    """Runs kernels thread by thread, one block after the other, and raises KernelError where one breaks a rule.

    seed: shuffles the order in which blocks, warps and lanes run; None: by number.
    races: look for races on shared memory.
    trace: count what every access costs; `simulator.trace` is then a `Trace` of all launches.
    """

    def __init__(self, seed: int | None = None, trace: bool = False, races: bool = True) -> None:
        try:
            import greenlet  # noqa: F401
        except ImportError:
            raise ImportError("the simulator switches between threads with greenlet: pip install greenlet") from None
        self.random = None if seed is None else Random(seed)
        self.races = races
        self.trace = Trace() if trace else None

    def launch(
        self,
        kernel: Kernel,
        grid: tuple,
        block: tuple,
        shared: int,
        arguments: list,
        stream: Any = None,  # noqa: ARG002 -- a launch has ended when it returns
    ) -> None:
        """Run all blocks.  KernelError names the kernel, the block, the thread and the line."""
        traced = self.trace.observe if self.trace else _untraced
        memory = SharedMemory(shared, self.races, traced)
        cuda = Cuda(Dim3(*grid), Dim3(*block), memory, self.trace)
        function = Rebinding(cuda).function(kernel.function)
        passed = [
            traced(View(a.memory.reshape(-1), a.shape, p.name, "global")) if isinstance(a, Array) else _scalar(a)
            for p, a in zip(kernel.parameters, arguments)
        ]
        body = partial(function, *passed)
        with (
            np.errstate(all="ignore"),  # hardware wraps and makes infinities in silence
            Threads(math.prod(block), body, lambda: cuda.block.leave()) as threads,
        ):
            for index in self._blocks(grid):
                running = Block(kernel.name, index, Dim3(*block), cuda, self.random)
                memory.begin(running)
                cuda.begin(running)
                running.run(threads)
                cuda.end()

    def _blocks(self, grid: tuple) -> list[Dim3]:
        blocks = [Dim3(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
        return self.random.sample(blocks, len(blocks)) if self.random else blocks


def _untraced(view: View) -> View:
    return view


def _scalar(value: Any) -> Any:
    """numba computes with int32 in 64 bits, and so do Python's own integers; they are quicker, too."""
    return int(value) if isinstance(value, np.signedinteger) else value
