"""What went wrong, in words: the kernel, the block, the threads, the line, the rule that was broken."""

from typing import Any

import numpy as np

from gpu.emulator import record as r
from gpu.emulator.program import Program
from gpu.errors import ranges
from gpu.kernel import Kernel

KIND = {r.READ: "reads", r.WRITE: "writes", r.ATOMIC: "updates"}


def describe(kernel: Kernel, program: Program, job: Any, block: int, arguments: list, grid: tuple) -> str:
    """The message for the fault in a job's report."""
    kind, thread, site, a, b, c = (int(x) for x in job.report[:6])
    index = (block % grid[0], block // grid[0] % grid[1], block // (grid[0] * grid[1]))
    place = program.sites[site] if site < len(program.sites) else "?"
    where = f"{kernel.name}, block {index}, {_thread(job, thread)}, {place}: "
    if kind in (r.STUCK, r.DIVERGED):
        return f"{kernel.name}, block {index}: {_waiting(job, program, kind)}"
    if kind == r.RACE:
        order = f"{KIND[b]} a byte of shared memory that {_thread(job, a)} {'wrote' if c == r.WRITE else 'read'}"
        return where + order + ", and no barrier lies between: put cuda.syncthreads() there (in one warp: syncwarp())"
    if kind == r.MISALIGNED:
        return (
            where
            + f"{KIND[c]} {b} bytes at an address that is no multiple of {b} ({_nearest(a, job, arguments, kernel)})"
        )
    if kind == r.OUTSIDE:
        return where + f"{KIND[c]} {b} bytes out of bounds: {_nearest(a, job, arguments, kernel)}"
    if kind == r.LOST_LANE:
        return where + f"{r.OPERATION_NAMES[a]} asks for a value of a lane that has returned or is not in the mask"
    if kind == r.NOT_IN_MASK:
        return where + f"calls a warp operation whose mask 0x{a & 0xFFFFFFFF:08x} does not name this lane"
    if kind == r.TOO_MANY_COPIES:
        return where + f"more than {r.MAX_COPIES} asynchronous copies under way: commit() and wait() for some"
    return where + "too many accesses without reaching a barrier: a loop that does not end?"


def _thread(job: Any, thread: int) -> str:
    tid = tuple(int(x) for x in job.records[thread, [r.TID_X, r.TID_Y, r.TID_Z]])
    return f"thread {thread}" if tid == (thread, 0, 0) else f"thread {tid}"


def _waiting(job: Any, program: Program, kind: int) -> str:
    """Who waits where."""
    threads = int(np.prod(job.core.dims[3:6]))
    groups: dict[str, list[int]] = {}
    for t in range(threads):
        state, operation, site = (int(x) for x in job.records[t, [r.STATE, r.OPERATION, r.SITE]])
        text = "have returned"
        if state != r.DONE:
            mask = int(job.records[t, r.MASK]) & 0xFFFFFFFF
            lanes = f" with mask 0x{mask:08x}" if state == r.AT_WARP else ""
            text = f"wait at {program.sites[site]} ({r.OPERATION_NAMES[operation]}{lanes})"
        groups.setdefault(text, []).append(t)
    listed = "; ".join(f"threads {ranges(numbers)} {text}" for text, numbers in groups.items())
    rule = "not all threads reach the same barrier" if kind == r.DIVERGED else "deadlock, nobody can go on"
    return f"{rule}: {listed}"


def _nearest(address: int, job: Any, arguments: list, kernel: Kernel) -> str:
    """The array that an address belongs to or lies closest to, and the index it would have there."""
    best, text = None, "there is no array"
    for low, high, what in (tuple(int(x) for x in row) for row in job.ranges):
        distance = max(low - address, address - high + 1, 0)
        if best is None or distance < best:
            best = distance
            if what == r.SHARED_RANGE:
                text = f"byte {address - low} of a shared array of {high - low} bytes"
            else:
                array = arguments[what]
                flat, rest = divmod(address - low, array.dtype.itemsize)
                text = f"element {flat}{f' and {rest} bytes' if rest else ''} of {kernel.parameters[what].name!r}, "
                text += f"which has {array.size} ({' x '.join(map(str, array.shape))})"
    return text
