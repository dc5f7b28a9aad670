"""One core's part of a launch: the records of its threads, and what its checks look at."""

import math
from typing import Any

import numpy as np

from gpu.array import Array
from gpu.emulator import record as r
from gpu.emulator.fiber import architecture
from gpu.emulator.program import Copy, Program
from gpu.emulator.scheduler import run_blocks


class Job:
    """What stays the same from block to block."""

    def __init__(
        self, core: Copy, program: Program, arguments: list, grid: tuple, block: tuple, shared: int, checked: bool
    ) -> None:
        self.core = core
        threads, used = math.prod(block), program.static + shared
        rows = -(-threads // 32) * 32
        self.arguments = np.array([word for a in arguments for word in _words(a)], np.int64)
        core.arguments[0] = self.arguments.ctypes.data
        core.dims[3:6], core.dims[6:9], core.dims[9] = block, grid, shared
        self.ranges = _ranges(core, program, arguments, shared)
        self.report = np.zeros(r.REPORT_WORDS, np.int64)
        self.shadow = np.full((used if checked else 0, r.SHADOW_WORDS), -1, np.int64)
        self.epochs = np.zeros(32, np.int64)
        self.pending = np.empty((rows, r.MAX_COPIES, r.PENDING_WORDS), np.int64)
        self.context = np.zeros(r.CONTEXT_WORDS, np.int64)
        self.context[[r.RANGES, r.NUM_RANGES]] = self.ranges.ctypes.data, len(self.ranges)
        self.context[[r.REPORT, r.SHADOW]] = self.report.ctypes.data, self.shadow.ctypes.data
        self.context[[r.SHARED, r.WARP_EPOCHS]] = core.shared, self.epochs.ctypes.data
        self.context[[r.PENDING, r.CHECKED]] = self.pending.ctypes.data, checked
        self.records = _records(rows, block, core.stacks(rows))
        self.records[:, r.CONTEXT] = self.context.ctypes.data
        self.poison = np.array([core.shared, -(-used // 8) * 8 if checked else 0])

    def run(self, first: int, last: int, step: int, seed: int) -> int:
        """Run every step-th block; returns the number of the block that failed, or -1."""
        core, arch = self.core, architecture()
        addresses = [core.address("switch"), core.current, core.scheduler, core.address("entry")]
        words = np.array([*addresses, arch.words, arch.entry, self.context.ctypes.data], np.int64)
        mail = self.records.view(np.uint32)[:, r.MAIL :]
        return run_blocks(words, self.records, mail, core.dims, first, last, step, seed, self.poison)


def _ranges(core: Copy, program: Program, arguments: list, shared: int) -> np.ndarray:
    """What may be touched: (first byte, byte behind the last, the argument's number or SHARED_RANGE) of each array."""
    arena = [*program.shared.values(), *([(program.static, shared)] if shared else [])]
    found = [(core.shared + start, core.shared + start + size, r.SHARED_RANGE) for start, size in arena]
    for number, argument in enumerate(arguments):
        if isinstance(argument, Array):
            first = argument.memory.ctypes.data
            found.append((first, first + argument.memory.nbytes, number))
    return np.array(found, np.int64).reshape(-1, r.RANGE)


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
