"""Races on shared memory: two threads at one element, one of them writing, and nothing between them that orders it.

Every element remembers its last writer and its readers since the last syncthreads.  Threads of one warp are also
ordered by the operations of their warp (syncwarp, shuffles, votes), so what is remembered carries the *epoch* of the
warp, a number that grows at each of them.
"""

import math
from typing import NoReturn

import numpy as np

from gpu.errors import KernelError


class Mark:
    """Who touched an element: a thread in an epoch of its warp.

    thread is None in the mark of several threads, which is the `group` of each of theirs.  SEVERAL: of several warps.
    """

    __slots__ = ("atomic", "epoch", "group", "thread", "warp")

    def __init__(self, thread: int | None, warp: int, epoch: int, group: "Mark | None" = None) -> None:
        self.thread, self.warp, self.epoch, self.group, self.atomic = thread, warp, epoch, group, False

    def races(self, other: "Mark") -> bool:
        """Is nothing known that orders the two?"""
        return self.warp != other.warp or (self.epoch == other.epoch and self.thread != other.thread)

    def __str__(self) -> str:
        if self.thread is not None:
            return f"thread {self.thread}"
        return "threads of several warps" if self.warp < 0 else f"several threads of warp {self.warp}"


SEVERAL = Mark(None, -1, 0)


class Races:
    """The marks of one shared array.  `read`, `write` and `atomic` raise KernelError where they complete a race."""

    __slots__ = ("name", "readers", "shape", "size", "writers")

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape, self.size = name, shape, math.prod(shape)
        self.forget()

    def forget(self) -> None:
        """A barrier: whatever was touched before it is ordered."""
        self.writers: list[Mark | None] = [None] * self.size
        self.readers: list[Mark | None] = [None] * self.size

    def read(self, k: int, me: Mark) -> None:
        """Thread `me` reads element k."""
        writer, reader = self.writers[k], self.readers[k]
        if writer is not None and writer is not me and writer.races(me):
            self._fail(k, me, "reads", "wrote", writer)
        # Readers of an older epoch matter to other warps only, and for those `me` stands for them.
        if reader is None or (reader.warp == me.warp and (reader.epoch != me.epoch or reader.thread == me.thread)):
            self.readers[k] = me
        else:
            self.readers[k] = me.group if reader.warp == me.warp else SEVERAL

    def write(self, k: int, me: Mark) -> None:
        """Thread `me` writes element k."""
        writer, reader = self.writers[k], self.readers[k]
        if writer is not None and writer is not me and writer.races(me):
            self._fail(k, me, "writes", "wrote", writer)
        if reader is not None and reader is not me and reader.races(me):
            self._fail(k, me, "writes", "read", reader)
        self.writers[k] = me

    def atomic(self, k: int, me: Mark) -> None:
        """An atomic operation: it races with reads and writes, not with other atomic operations."""
        writer = self.writers[k]
        if writer is None or not writer.atomic:
            self.write(k, me)
            mark = Mark(me.thread, me.warp, me.epoch)
        else:
            alone = writer.thread == me.thread or writer.epoch != me.epoch
            mark = Mark(me.thread if alone else None, me.warp if writer.warp == me.warp else SEVERAL.warp, me.epoch)
        mark.atomic = True
        self.writers[k] = mark

    def _fail(self, k: int, me: Mark, does: str, did: str, other: Mark) -> NoReturn:
        order = "syncthreads" if other.warp != me.warp else "syncwarp or syncthreads"
        element = ", ".join(str(i) for i in np.unravel_index(k, self.shape))
        raise KernelError(
            f"race on shared memory: {me} {does} {self.name}[{element}], which {other} {did}, "
            f"and there is no {order} between them"
        )
