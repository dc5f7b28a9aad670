"""The emulator: runs a compiled kernel on this computer's cores.

numba-cuda compiles the kernel as it would for a GPU; the result is translated for this processor, and each CUDA thread
runs as a fiber.  So what runs is what the GPU would be given, types and all, without a GPU and far faster than Python.

    Emulator()                  fast: trusts the kernel, on all cores
    Emulator(checked=True)      watches: accesses out of bounds or misaligned, reads of memory nobody wrote, races,
                                barriers that not all threads reach, deadlocks; in a random order of warps

What it cannot tell: anything about time; races between blocks, or on global memory; how a GPU rounds its approximate
instructions (`ex2.approx` is exact here); what `__nanosleep`, clocks and `activemask` give; a loop without any access
to memory that never ends.  Cooperative grids and clusters are not there.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from gpu.array import HostMemory
from gpu.emulator.faults import describe
from gpu.emulator.job import Job
from gpu.emulator.program import DYNAMIC, Copy, Program
from gpu.errors import KernelError
from gpu.kernel import Kernel


class Emulator(HostMemory):
    """A machine that runs compiled kernels on the host.

    checked: see above.  seed: of the order of warps in checked mode.  cores: run blocks on so many (checked: one).
    """

    def __init__(self, checked: bool = False, seed: int = 0, cores: int = 2) -> None:
        self.checked, self.seed = checked, seed
        self.cores = 1 if checked else cores
        self.num_launches = 0

    def launch(
        self, kernel: Kernel, grid: tuple, block: tuple, shared: int, arguments: list, stream: Any = None
    ) -> None:
        """Run it to the end.  KernelError in checked mode, or where threads wait for each other for ever."""
        del stream  # launches are in order
        if shared > DYNAMIC:
            raise ValueError(f"{kernel.name}: {shared} bytes of shared memory; a block has at most {DYNAMIC}")
        self.num_launches += 1
        program, cores, lock = loaded(kernel, self.checked, self.cores)
        blocks = int(np.prod(grid))
        with lock:
            jobs = [Job(core, program, arguments, grid, block, shared, self.checked) for core in cores[:blocks]]

            def run(i: int) -> int:
                return jobs[i].run(i, blocks, len(jobs), self.seed)

            if len(jobs) == 1:
                failed = [run(0)]
            else:
                with ThreadPoolExecutor(len(jobs)) as pool:
                    failed = list(pool.map(run, range(len(jobs))))
            for job, number in zip(jobs, failed):
                if number >= 0:
                    raise KernelError(describe(kernel, program, job, number, arguments, grid))


@cache
def loaded(kernel: Kernel, checked: bool, cores: int) -> tuple[Program, list[Copy], threading.Lock]:
    """The kernel's program, a loaded copy for each core, and the right to use them: one launch at a time."""
    program = Program(kernel, checked)
    return program, [program.load() for _ in range(cores)], threading.Lock()
