"""Checks of every access to memory, and copies that arrive late.  The compiled kernel calls these by address.

Shared memory is watched byte by byte.  The *epoch* counts the block's barriers; a warp's own epoch counts the times its
lanes met.  Two accesses to a byte, one of them a write, by different threads with no barrier between are a race, unless
both threads are of one warp whose lanes met in between.
"""

from typing import Any

from numba import carray

from gpu.emulator import record as r
from gpu.emulator.native import bytes_at, callback, native, words_at

SEVERAL, MANY = 1 << 16, 1 << 17  # beside a reader's number: others of its warp, of other warps have read as well


@native
def fault(report, kind, thread, site, a=0, b=0, c=0):
    """Write down what went wrong; the first fault stays."""
    if report[0] == r.NO_FAULT:
        report[0], report[1], report[2], report[3], report[4], report[5] = kind, thread, site, a, b, c
    return 1


@native
def check(thread, address, size, kind, site):
    """1 and a report where an access of `size` bytes is not allowed, else 0.  thread: address of its record."""
    mine = carray(words_at(thread), r.RECORD)
    if 0 <= address - mine[r.STACK_LOW] < r.STACK:
        return 0  # a local variable
    context = carray(words_at(mine[r.CONTEXT]), r.CONTEXT_WORDS)
    report = carray(words_at(context[r.REPORT]), r.REPORT_WORDS)
    mine[r.ACCESSES] -= 1
    if mine[r.ACCESSES] < 0:
        return fault(report, r.ENDLESS, mine[r.LINEAR], site)
    ranges = carray(words_at(context[r.RANGES]), (context[r.NUM_RANGES], r.RANGE))
    for i in range(context[r.NUM_RANGES]):
        if ranges[i, 0] <= address and address + size <= ranges[i, 1]:
            if address % size:
                return fault(report, r.MISALIGNED, mine[r.LINEAR], site, address, size, kind)
            if ranges[i, 2] == r.SHARED_RANGE and kind != r.ATOMIC:
                return watch(context, report, mine[r.LINEAR], address, size, kind, site)
            return 0
    return fault(report, r.OUTSIDE, mine[r.LINEAR], site, address, size, kind)


@native
def watch(context, report, thread, address, size, kind, site):
    """Note an access to shared memory; 1 and a report where it races with an earlier one."""
    epoch, warp = context[r.EPOCH], thread >> 5
    met = carray(words_at(context[r.WARP_EPOCHS]), 32)[warp]
    first = address - context[r.SHARED]
    shadow = carray(words_at(context[r.SHADOW]), (first + size, r.SHADOW_WORDS))
    for byte in range(first, first + size):
        seen = shadow[byte]
        wrote = seen[0] == epoch and seen[1] != thread
        if wrote and not (seen[1] >> 5 == warp and seen[2] < met):
            return fault(report, r.RACE, thread, site, seen[1], kind, r.WRITE)
        if kind == r.WRITE:
            if seen[3] == epoch and seen[4] != thread:
                reader = seen[4]
                if not ((reader & 0xFFFF) >> 5 == warp and reader < MANY and seen[5] < met):
                    return fault(report, r.RACE, thread, site, reader & 0xFFFF, kind, r.READ)
            seen[0], seen[1], seen[2] = epoch, thread, met
        elif seen[3] != epoch:
            seen[3], seen[4], seen[5] = epoch, thread, met
        else:
            if (seen[4] & 0xFFFF) >> 5 != warp:
                seen[4] |= MANY
            elif seen[4] & 0xFFFF != thread:
                seen[4] |= SEVERAL
            seen[5] = met
    return 0


@native
def begin_copy(thread, to, origin, size, site):
    """Queue 16 bytes for the thread's open group: `size` of them from `origin`, then zeros."""
    mine = carray(words_at(thread), r.RECORD)
    context = carray(words_at(mine[r.CONTEXT]), r.CONTEXT_WORDS)
    to = context[r.SHARED] + to
    if context[r.CHECKED]:
        if check(thread, to, 16, r.WRITE, site) or (size > 0 and check_part(thread, origin, size, site)):
            return 1
        carray(bytes_at(to), 16)[:] = 255  # whoever looks before it has arrived sees NaN
    number = mine[r.COPIES]
    if number - mine[r.FIRST_OPEN] == r.MAX_COPIES:
        report = carray(words_at(context[r.REPORT]), r.REPORT_WORDS)
        return fault(report, r.TOO_MANY_COPIES, mine[r.LINEAR], site)
    copy = pending(context, mine)[number % r.MAX_COPIES]
    copy[0], copy[1], copy[2], copy[3] = to, origin, size, mine[r.GROUP]
    mine[r.COPIES] += 1
    return 0


@native
def check_part(thread, origin, size, site):
    """Check the source of an asynchronous copy: aligned to 16 bytes, of which only `size` are read."""
    mine = carray(words_at(thread), r.RECORD)
    if origin % 16:
        context = carray(words_at(mine[r.CONTEXT]), r.CONTEXT_WORDS)
        report = carray(words_at(context[r.REPORT]), r.REPORT_WORDS)
        return fault(report, r.MISALIGNED, mine[r.LINEAR], site, origin, 16, r.READ)
    return check(thread, origin, 1, r.READ, site) or check(thread, origin + size - 1, 1, r.READ, site)


@native
def pending(context, mine):
    """The queue of a thread's asynchronous copies."""
    start = context[r.PENDING] + mine[r.LINEAR] * r.MAX_COPIES * r.PENDING_WORDS * 8
    return carray(words_at(start), (r.MAX_COPIES, r.PENDING_WORDS))


@native
def finish_copies(thread, groups_left, site):
    """Let copies arrive, oldest first, until at most `groups_left` committed groups are under way."""
    mine = carray(words_at(thread), r.RECORD)
    context = carray(words_at(mine[r.CONTEXT]), r.CONTEXT_WORDS)
    queue = pending(context, mine)
    while mine[r.FIRST_OPEN] < mine[r.COPIES]:
        copy = queue[mine[r.FIRST_OPEN] % r.MAX_COPIES]
        if copy[3] >= mine[r.GROUP] - groups_left:
            break
        to, origin = carray(bytes_at(copy[0]), 16), carray(bytes_at(copy[1]), 16)
        for i in range(16):
            to[i] = origin[i] if i < copy[2] else 0
        if context[r.CHECKED] and check(thread, copy[0], 16, r.WRITE, site):
            return 1
        mine[r.FIRST_OPEN] += 1
    return 0


CALLED: dict[str, tuple[str, Any]] = {
    "emu_check": ("int32(int64, int64, int32, int32, int32)", check),
    "emu_begin_copy": ("int32(int64, int64, int64, int32, int32)", begin_copy),
    "emu_finish_copies": ("int32(int64, int32, int32)", finish_copies),
}


def callbacks() -> dict:
    """The functions that compiled kernels call, by the name under which they ask for them."""
    return {name: callback(signature, function) for name, (signature, function) in CALLED.items()}
