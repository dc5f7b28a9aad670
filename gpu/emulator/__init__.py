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

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from gpu.array import Array, HostMemory
from gpu.emulator import record as r
from gpu.emulator.faults import describe
from gpu.emulator.fiber import architecture
from gpu.emulator.program import DYNAMIC, Copy, Program
from gpu.emulator.scheduler import run_blocks
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
        program, cores = loaded(kernel, self.checked, self.cores)
        words = np.array([w for a in arguments for w in _words(a)], np.int64)
        ranges = [
            (a.memory.ctypes.data, a.memory.ctypes.data + a.memory.nbytes, i)
            for i, a in enumerate(arguments)
            if isinstance(a, Array)
        ]
        jobs = [_Job(core, program, words, ranges, grid, block, shared, self.checked) for core in cores]
        blocks = int(np.prod(grid))

        def run(i: int) -> int:
            return jobs[i].run(i, blocks, len(jobs), self.seed)

        if len(jobs) == 1 or blocks == 1:
            failed = [run(0)]
        else:
            with ThreadPoolExecutor(len(jobs)) as pool:
                failed = list(pool.map(run, range(len(jobs))))
        for job, number in zip(jobs, failed):
            if number >= 0:
                raise KernelError(describe(kernel, program, job, number, arguments, grid))


@cache
def loaded(kernel: Kernel, checked: bool, cores: int) -> tuple[Program, list[Copy]]:
    """The kernel's program, and a loaded copy for each core."""
    program = Program(kernel, checked)
    return program, [program.load() for _ in range(cores)]


class _Job:
    """One core's part of a launch: the records of its threads and what its checks look at."""

    def __init__(
        self,
        core: Copy,
        program: Program,
        words: np.ndarray,
        ranges: list,
        grid: tuple,
        block: tuple,
        shared: int,
        checked: bool,
    ) -> None:
        self.core = core
        threads = int(np.prod(block))
        rows = -(-threads // 32) * 32
        self.arguments = words
        core.arguments[0] = words.ctypes.data
        core.dims[3:6], core.dims[6:9], core.dims[9] = block, grid, shared
        arena = [
            (core.shared + start, core.shared + start + size, r.SHARED_RANGE) for start, size in program.shared.values()
        ]
        if shared:
            arena.append((core.shared + program.static, core.shared + program.static + shared, r.SHARED_RANGE))
        self.ranges = np.array(arena + ranges, np.int64).reshape(-1, r.RANGE)
        self.report = np.zeros(r.REPORT_WORDS, np.int64)
        used = program.static + shared
        self.shadow = np.full((used if checked else 0, r.SHADOW_WORDS), -1, np.int64)
        self.epochs = np.zeros(32, np.int64)
        self.pending = np.empty((rows, r.MAX_COPIES, r.PENDING_WORDS), np.int64)
        self.records = _records(rows, block, core.stacks(rows))
        self.context = np.zeros(r.CONTEXT_WORDS, np.int64)
        self.context[[r.RANGES, r.NUM_RANGES]] = self.ranges.ctypes.data, len(self.ranges)
        self.context[[r.REPORT, r.SHADOW]] = self.report.ctypes.data, self.shadow.ctypes.data
        self.context[[r.SHARED, r.WARP_EPOCHS]] = core.shared, self.epochs.ctypes.data
        self.context[[r.PENDING, r.CHECKED]] = self.pending.ctypes.data, checked
        self.records[:, r.CONTEXT] = self.context.ctypes.data
        self.poison = np.array([core.shared, -(-used // 8) * 8 if checked else 0])

    def run(self, first: int, last: int, step: int, seed: int) -> int:
        """Run every step-th block; returns the number of the block that failed, or -1."""
        core, arch = self.core, architecture()
        addresses = [core.address("switch"), core.current, core.scheduler, core.address("entry")]
        words = np.array([*addresses, arch.words, arch.entry, self.context.ctypes.data], np.int64)
        mail = self.records.view(np.uint32)[:, r.MAIL :]
        return run_blocks(words, self.records, mail, core.dims, first, last, step, seed, self.poison)


def _records(rows: int, block: tuple, stacks: np.ndarray) -> np.ndarray:
    """A record for each thread: who it is, and where its stack is."""
    records = np.zeros((rows, r.RECORD), np.int64)
    t = np.arange(rows)
    records[:, r.TID_X], records[:, r.TID_Y] = t % block[0], t // block[0] % block[1]
    records[:, r.TID_Z], records[:, r.LINEAR] = t // (block[0] * block[1]), t
    records[:, r.STACK_LOW] = -(-stacks.ctypes.data // 64) * 64 + t * r.STACK
    return records


def _words(argument: Any) -> list[int]:
    """An argument as the kernel receives it: a scalar's bits, or numba's description of an array."""
    if isinstance(argument, Array):
        memory = argument.memory
        return [0, 0, memory.size, memory.itemsize, memory.ctypes.data, *memory.shape, *memory.strides]
    wide = np.zeros(8 // argument.dtype.itemsize, argument.dtype)
    wide[0] = argument
    return [int(wide.view(np.int64)[0])]
