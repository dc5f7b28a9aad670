"""One block: its threads run in turn, one greenlet each, until each has returned or waits for others.

A greenlet is a function call that can be left in the middle and continued later: switching costs a fraction of a
microsecond, and nothing else runs at the same time.
"""

import math
import sys
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from types import CodeType
from typing import Any, NamedTuple

from gpu.errors import KernelError, ranges
from gpu.simulator.place import error_place, place
from gpu.simulator.races import Mark, Races

WARP = 32
MAX_SPINS = 100_000  # atomic operations or fences of one thread in a row: more is a lock that nobody opens


class Dim3(NamedTuple):
    """Three sizes or coordinates; x moves fastest."""

    x: int
    y: int
    z: int


class Wait(NamedTuple):
    """What a thread waits at.  mask: None for a barrier of the block.  combine: makes one result of {lane: value}."""

    code: CodeType
    offset: int
    kind: str
    mask: int | None
    value: Any
    combine: Callable[[dict[int, Any]], Any]


class Lane:
    """One CUDA thread."""

    __slots__ = ("greenlet", "index", "mark", "number", "result", "returned", "spins", "thread", "wait", "warp")

    def __init__(self, thread: int, index: Dim3, warp: "Warp") -> None:
        self.thread, self.index, self.warp, self.number = thread, index, warp, thread % WARP
        self.mark = Mark(thread, warp.number, 0, warp.group)
        self.wait: Any = None  # a Wait
        self.result: Any = None
        self.greenlet: Any = None
        self.returned = False
        self.spins = 0


class Warp:
    """32 consecutive threads, or what is left of them.

    live: bit i says that lane i exists and has not returned.  began: `live` when the warp last went on together.
    """

    __slots__ = ("began", "epoch", "group", "live", "number", "ready", "waiting")

    def __init__(self, number: int) -> None:
        self.number, self.epoch, self.live, self.began = number, 0, 0, 0
        self.group = Mark(None, number, 0)
        self.ready: list[Lane] = []
        self.waiting: list[Lane] = []  # at operations of this warp


class Threads:
    """Greenlets that each run `body` once per block: beginning one costs more than continuing it."""

    def __init__(self, count: int, body: Callable[[], None], leave: Callable[[], None]) -> None:
        from greenlet import getcurrent, greenlet

        def one_block_after_the_other() -> None:
            while True:
                body()
                leave()

        self.scheduler = getcurrent()
        self.greenlets = [greenlet(one_block_after_the_other) for _ in range(count)]
        context = copy_context()  # NumPy's errstate lives there
        for made in self.greenlets:
            made.gr_context = context

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, *_: Any) -> None:
        for made in self.greenlets:
            made.throw()  # ends it wherever it waits


class Block:
    """The threads of one block and its shared memory.  seen: the object that the kernel knows as `cuda`."""

    def __init__(self, kernel_name: str, index: Dim3, size: Dim3, seen: Any, random: Random | None = None) -> None:
        self.kernel_name, self.index, self.size, self.seen, self.random = kernel_name, index, size, seen, random
        self.warps = [Warp(i) for i in range(-(-math.prod(size) // WARP))]
        self.lanes: list[Lane] = []
        self.at_barrier: list[Lane] = []
        self.races: list[Races] = []
        for thread in range(math.prod(size)):
            warp = self.warps[thread // WARP]
            x, row = thread % size.x, thread // size.x
            lane = Lane(thread, Dim3(x, row % size.y, row // size.y), warp)
            warp.live |= 1 << lane.number
            warp.ready.append(lane)
            self.lanes.append(lane)
        self.lane = self.lanes[0]  # the one that runs
        self.mark = self.lane.mark

    def run(self, threads: "Threads") -> None:
        """Until all threads have returned.  KernelError where they cannot, or where one fails."""
        self.scheduler = threads.scheduler
        for lane, greenlet in zip(self.lanes, threads.greenlets):
            lane.greenlet = greenlet
        while any(warp.live for warp in self.warps):
            ready = [warp for warp in self.warps if warp.ready]
            for warp in self._in_some_order(ready):
                self._run_warp(warp)
            if not ready:
                self._release_barrier()

    def leave(self) -> None:
        """Called by a thread that has come to the kernel's end."""
        self.lane.returned = True
        self.scheduler.switch()

    def meet(self, kind: str, mask: int | None, value: Any, combine: Callable[[dict[int, Any]], Any]) -> Any:
        """Called by a thread: wait for the others (mask: of the warp; None: all of the block); the combined result."""
        lane, frame = self.lane, sys._getframe(2)
        if mask is not None:
            mask = int(mask) & 0xFFFFFFFF
            if not mask >> lane.number & 1:
                raise KernelError(f"lane {lane.number} calls {kind} with mask {mask:#010x}, which does not name it")
        lane.spins = 0
        lane.wait = Wait(frame.f_code, frame.f_lasti, kind, mask, value, combine)
        self.scheduler.switch()
        return lane.result

    def spin(self) -> None:
        """Called by a thread that may be waiting for what another does: let the others run."""
        lane = self.lane
        lane.spins += 1
        if lane.spins > MAX_SPINS:
            raise KernelError(f"{MAX_SPINS:,} atomic operations or fences without a barrier: does it wait for ever?")
        self.scheduler.switch()

    def _in_some_order(self, things: list) -> list:
        return self.random.sample(things, len(things)) if self.random else things

    def _run_warp(self, warp: Warp) -> None:
        """Each ready lane until it waits or returns; then what the warp's lanes can do together."""
        ready, warp.ready, warp.began = self._in_some_order(warp.ready), [], warp.live
        seen = self.seen
        for lane in ready:
            self.lane, self.mark = lane, lane.mark
            seen.threadIdx, seen.laneid = lane.index, lane.number
            try:
                lane.greenlet.switch()
            except Exception as error:
                raise self._failure(lane, error) from error
            wait = lane.wait
            if wait is None:
                if lane.returned:
                    warp.live &= ~(1 << lane.number)
                else:
                    warp.ready.append(lane)
            elif wait.mask is None:
                self.at_barrier.append(lane)
            else:
                warp.waiting.append(lane)
        if warp.waiting:
            self._meet(warp)

    def _meet(self, warp: Warp) -> None:
        """Complete each operation at which all lanes of its mask that are alive have arrived."""
        groups = _grouped(warp.waiting)
        complete = [g for g in groups if sum(1 << lane.number for lane in g) == g[0].wait.mask & warp.live]
        if not complete and not warp.ready:
            # Nothing else can happen first, so those that are there together are the active lanes.
            complete = [g for g in groups if g[0].wait.kind == "activemask"][:1]
        for lanes in complete:
            warp.epoch += 1
            group = Mark(None, warp.number, warp.epoch)
            for lane in lanes:
                lane.mark = Mark(lane.thread, warp.number, warp.epoch, group)
                warp.waiting.remove(lane)
            _continue(lanes, {lane.number: lane.wait.value for lane in lanes})

    def _release_barrier(self) -> None:
        """Nobody can move: all threads must be at the same barrier."""
        lanes = sorted(self.at_barrier, key=lambda lane: lane.thread)
        if len(lanes) < len(self.lanes) or len(_grouped(lanes)) > 1:
            raise KernelError(f"{self.kernel_name}, block {tuple(self.index)} is stuck: {self._who_waits_where()}")
        self.at_barrier = []
        for races in self.races:
            races.forget()
        self.seen.note_barrier(lanes[0].wait)
        _continue(lanes, {lane.thread: lane.wait.value for lane in lanes})

    def _who_waits_where(self) -> str:
        waiting = [lane for lane in self.lanes if lane.wait is not None]
        parts = []
        for lanes in _grouped(waiting):
            wait = lanes[0].wait
            what = wait.kind if wait.mask is None else f"{wait.kind} with mask {wait.mask:#010x}"
            parts.append(f"{_threads(lanes)} wait at {place(wait.code, wait.offset)} ({what})")
        returned = [lane for lane in self.lanes if lane.wait is None]
        return ", ".join(parts + ([f"{_threads(returned)} have returned"] if returned else []))

    def _failure(self, lane: Lane, error: Exception) -> KernelError:
        line = error_place(error.__traceback__)
        what = str(error) if isinstance(error, KernelError) else f"{type(error).__name__}: {error}"
        where = f", {line} `{line.line_text}`" if line else ""
        return KernelError(f"{self.kernel_name}, block {tuple(self.index)}, thread {tuple(lane.index)}{where}: {what}")


def _grouped(lanes: list[Lane]) -> list[list[Lane]]:
    """Those that wait at the same instruction for the same thing."""
    groups: list[list[Lane]] = []
    for lane in lanes:
        for group in groups:
            if _same(lane.wait, group[0].wait):
                group.append(lane)
                break
        else:
            groups.append([lane])
    return groups


def _same(a: Wait, b: Wait) -> bool:
    if a.code is not b.code or a.mask != b.mask or a.kind != b.kind:
        return False
    # A frame's offset may lie in the room for caches behind the instruction.
    return a.offset == b.offset or place(a.code, a.offset) == place(b.code, b.offset)


def _continue(lanes: list[Lane], values: dict[int, Any]) -> None:
    result = lanes[0].wait.combine(values)
    for lane in sorted(lanes, key=lambda lane: lane.thread):
        lane.wait, lane.result = None, result
        lane.warp.ready.append(lane)


def _threads(lanes: list[Lane]) -> str:
    return f"threads {ranges([lane.thread for lane in lanes])}"
