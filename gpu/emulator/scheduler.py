"""Run blocks on one core: switch from thread to thread, and let warps and blocks meet.

A thread runs until it waits for its warp or its block, or ends.  When all lanes that an operation's mask names wait for
it, the warp performs it; when all threads wait at a barrier, the block goes on.  In checked mode the order of warps and
lanes is drawn anew each round, from a seed, and each rule of the machine that a thread breaks ends the launch.
"""

import numpy as np
from numba import carray

from gpu.emulator import record as r
from gpu.emulator.memory import check, fault
from gpu.emulator.native import native, switch, words_at
from gpu.emulator.warp import NOBODY, perform


@native
def run_blocks(core, records, mail, dims, first, last, step, seed, poison):
    """Run blocks first, first + step, ... before last; returns the number of the block that failed, or -1.

    core: (switch's address, where the current thread is kept, the scheduler's stack, entry, words of a frame, entry's
    place in it, context).  poison: (first byte, number) of shared memory filled with ones before each block.
    """
    current = carray(words_at(core[1]), 1)
    context = carray(words_at(core[6]), r.CONTEXT_WORDS)
    report = carray(words_at(context[r.REPORT]), r.REPORT_WORDS)
    threads = dims[3] * dims[4] * dims[5]
    np.random.seed(seed)  # noqa: NPY002  (what numba has)
    order = np.arange((threads + 31) // 32)
    for block in range(first, last, step):
        dims[0], dims[1] = block % dims[6], block // dims[6] % dims[7]
        dims[2] = block // (dims[6] * dims[7])
        begin(core, records, threads, context, poison)
        while True:
            moved = False
            if context[r.CHECKED]:
                np.random.shuffle(order)  # noqa: NPY002  (what numba has)
            for w in order:
                moved |= run_warp(core, records, current, w, threads, context[r.CHECKED])
                if report[0]:
                    return block
                moved |= meet(records, mail, context, report, w)
                if report[0]:
                    return block
            states = records[:threads, r.STATE]
            done, waiting = np.sum(states == r.DONE), np.sum(states == r.AT_BLOCK)
            if done == threads:
                break
            if done + waiting == threads:
                release(records, mail, context, report, threads, done)
            elif not moved:
                fault(report, r.STUCK, 0, 0)
            if report[0]:
                return block
    return -1


@native
def begin(core, records, threads, context, poison):
    """A new block: every thread at the kernel's entry, with nothing in flight."""
    frame, entry = core[4], core[5]
    for t in range(threads):
        mine = records[t]
        top = mine[r.STACK_LOW] + r.STACK - 64
        top -= top % 16
        mine[r.STACK_POINTER] = top - 8 * (frame + 1) if entry == frame - 1 else top - 8 * frame
        stack = carray(words_at(mine[r.STACK_POINTER]), frame)
        stack[:] = 0
        stack[entry] = core[3]
        mine[r.STATE], mine[r.COPIES], mine[r.FIRST_OPEN], mine[r.GROUP] = r.READY, 0, 0, 0
        mine[r.ACCESSES] = ENDLESS
    for t in range(threads, len(records)):
        records[t, r.STATE] = r.DONE
    context[r.EPOCH] += 1
    if poison[1]:
        carray(words_at(poison[0]), poison[1] // 8)[:] = -1


ENDLESS = 1 << 26  # accesses of one thread between two barriers; more take seconds, and are a loop that does not end


@native
def run_warp(core, records, current, w, threads, mixed):
    """Let every lane of warp w that can run do so until it waits or ends; returns if one did."""
    moved = False
    start = np.random.randint(32) if mixed else 0  # noqa: NPY002  (what numba has)
    for i in range(32):
        t = 32 * w + (i + start) % 32
        if t < threads and records[t, r.STATE] == r.READY:
            current[0] = records[t].ctypes.data
            switch(core[0], core[2], records[t, r.STACK_POINTER])
            moved = True
            if records[t, r.STATE] == r.FAILED:
                break
    return moved


@native
def meet(records, mail, context, report, w):
    """Perform the operations of warp w for which all lanes have come; returns if there was one."""
    lanes = records[32 * w : 32 * w + 32]
    active = np.empty(32, np.bool_)
    performed = False
    for leader in range(32):
        if lanes[leader, r.STATE] != r.AT_WARP:
            continue
        operation, mask = lanes[leader, r.OPERATION], lanes[leader, r.MASK]
        if context[r.CHECKED] and not mask >> leader & 1:
            fault(report, r.NOT_IN_MASK, 32 * w + leader, lanes[leader, r.SITE], mask)
            return False
        complete = True
        for lane in range(32):
            named = mask >> lane & 1
            same = lanes[lane, r.OPERATION] == operation and lanes[lane, r.MASK] == mask
            active[lane] = named and lanes[lane, r.STATE] == r.AT_WARP and same
            complete &= active[lane] or not named or lanes[lane, r.STATE] == r.DONE
        if not complete:
            continue
        perform_together(lanes, mail[32 * w : 32 * w + 32], context, report, operation, active, w)
        performed = True
    return performed


@native
def perform_together(lanes, mail, context, report, operation, active, w):
    """One operation of a warp; the lanes that took part can run on."""
    every = True
    if context[r.CHECKED] and operation in (r.LDMATRIX, r.LDMATRIX_TRANSPOSED):
        for lane in range(8 * mail[0, 1]):
            address = context[r.SHARED] + np.int64(np.int32(mail[lane, 0]))
            if check(lanes[lane].ctypes.data, address, 16, r.READ, lanes[lane, r.SITE]):
                return
    lost = perform(operation, mail, active, context[r.SHARED])
    if lost != NOBODY and context[r.CHECKED]:
        fault(report, r.LOST_LANE, 32 * w + lost, lanes[lost, r.SITE], operation)
    for lane in range(32):
        if active[lane]:
            lanes[lane, r.STATE] = r.READY
        every &= active[lane] or lanes[lane, r.STATE] == r.DONE
    if every:
        carray(words_at(context[r.WARP_EPOCHS]), 32)[w] += 1


@native
def release(records, mail, context, report, threads, done):
    """All threads that have not ended wait at a barrier: count what they bring, and let them run on."""
    place, total, live = -1, 0, 0
    for t in range(threads):
        if records[t, r.STATE] != r.AT_BLOCK:
            continue
        place = records[t, r.SITE] if place < 0 else place
        if context[r.CHECKED] and (done or records[t, r.SITE] != place):
            fault(report, r.DIVERGED, t, records[t, r.SITE])
            return
        live += 1
        total += mail[t, 0] != 0
    for t in range(threads):
        if records[t, r.STATE] == r.AT_BLOCK:
            kind = records[t, r.OPERATION]
            answer = total if kind == r.BARRIER_COUNT else total == live if kind == r.BARRIER_AND else total > 0
            mail[t, r.RESULT] = answer
            records[t, r.STATE], records[t, r.ACCESSES] = r.READY, ENDLESS
    context[r.EPOCH] += 1
