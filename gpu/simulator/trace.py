"""What a kernel's accesses to memory cost, line by line."""

import sys
from typing import Any, NamedTuple

from gpu.simulator.block import WARP, Block, Wait
from gpu.simulator.cost import Request, conflict_ways, num_ideal_sectors, num_sectors
from gpu.simulator.memory import SharedView, TracedSharedView, TracedView, View
from gpu.simulator.place import Place, kernel_place, place


class Row(NamedTuple):
    """All executions of one access in the source.  Requests are counted per warp, sectors are sums over all of them.

    ways: how often shared memory must serve a request, on average and at worst.  divergent: requests in which only some
    of the lanes that were alive took part.  costliest: one of the requests, for a picture.
    """

    place: str
    column: int
    source: str
    array: str
    space: str
    kind: str
    requests: int
    lanes: float
    divergent: int
    sectors: int
    ideal_sectors: int
    ways: float
    worst_ways: int
    costliest: Request


class Access:
    """Counts of one access in the source."""

    def __init__(self, place: Place, view: View, kind: str) -> None:
        self.place, self.array, self.space, self.kind = place, view.name, view.space, kind
        self.requests = self.lanes = self.divergent = self.sectors = self.ideal = self.ways = self.highest = 0
        self.costliest = Request((), (), 0)

    def add(self, request: Request, num_alive: int) -> None:
        """One more request."""
        self.requests += 1
        self.lanes += len(request.lanes)
        self.divergent += len(request.lanes) < num_alive
        if self.space == "global":
            cost = num_sectors(request)
            self.sectors += cost
            self.ideal += num_ideal_sectors(request)
        else:
            cost = conflict_ways(request)
            self.ways += cost
        if cost > self.highest:
            self.highest, self.costliest = cost, request

    def row(self) -> Row:
        """As a record."""
        shared = self.space == "shared"
        return Row(
            place=str(self.place),
            column=self.place.column,
            source=self.place.text,
            array=self.array,
            space=self.space,
            kind=self.kind,
            requests=self.requests,
            lanes=self.lanes / self.requests,
            divergent=self.divergent,
            sectors=self.sectors,
            ideal_sectors=self.ideal,
            ways=self.ways / self.requests if shared else 0.0,
            worst_ways=self.highest if shared else 0,
            costliest=self.costliest,
        )


class Trace:
    """Counts of all launches since it was made.  `table()` has one row per access; `print` shows it.

    Threads run one after the other, so which lanes act together is inferred: the k-th time that a lane comes to an
    access belongs to the k-th time that the other lanes of its warp do.  So does hardware, unless lanes skip turns of
    a loop.
    """

    def __init__(self) -> None:
        self._accesses: dict[tuple, Access] = {}
        self._barriers: dict[Place, int] = {}

    def table(self) -> list[Row]:
        """One row per access in the source, in the order of the source."""
        accesses = sorted(self._accesses.values(), key=lambda a: (a.place.file, a.place.line, a.place.column, a.kind))
        return [access.row() for access in accesses]

    @property
    def barriers(self) -> dict[str, int]:
        """How often blocks passed each barrier, by place."""
        return {str(where): count for where, count in sorted(self._barriers.items(), key=lambda item: item[0].line)}

    def __str__(self) -> str:
        head = (
            "place",
            "access",
            "memory",
            "kind",
            "requests",
            "lanes",
            "divergent",
            "sectors",
            "ideal",
            "ways",
            "worst",
        )
        rows = [head]
        for r in self.table():
            memory = (
                r.array if r.space == "global" else f"{r.array} (shared)",
                r.kind,
                f"{r.requests}",
                f"{r.lanes:.3g}",
            )
            if r.space == "global":
                cost = (f"{r.sectors / r.requests:.3g}", f"{r.ideal_sectors / r.requests:.3g}", "", "")
            else:
                cost = ("", "", f"{r.ways:.3g}", f"{r.worst_ways}")
            rows.append((r.place, r.source, *memory, f"{r.divergent}" if r.divergent else "", *cost))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [
            "  ".join(
                cell.ljust(w) if i < 4 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
            ).rstrip()
            for row in rows
        ]
        lines += [f"{where}  barriers passed: {count}" for where, count in self.barriers.items()]
        return "\n".join(lines)

    # Called by the simulator.

    def observe(self, view: View) -> View:
        """The same memory; this trace sees every access to it."""
        made: Any
        if isinstance(view, SharedView):
            made = TracedSharedView(view.flat, view.shape, view.name, view.block, view.races)
        else:
            made = TracedView(view.flat, view.shape, view.name, view.space)
        made.recorder = self
        return made

    def begin(self, block: Block) -> None:
        """Another block runs."""
        self._block = block
        self._times: dict[tuple, int] = {}
        self._requests: dict[tuple, tuple[int, dict[int, int], int]] = {}

    def note(self, view: View, element: int, count: int, kind: str) -> None:
        """The running thread touches `count` elements."""
        lane, where = self._block.lane, kernel_place(sys._getframe(1))
        key = (id(where.code), where.offset, view.name, view.space, kind)
        if key not in self._accesses:
            self._accesses[key] = Access(where, view, kind)
        time = self._times[key, lane.thread] = self._times.get((key, lane.thread), 0) + 1
        request = (key, lane.thread // WARP, time)
        if request not in self._requests:
            self._requests[request] = (lane.warp.began.bit_count(), {}, view.dtype.itemsize * count)
        self._requests[request][1][lane.number] = (view.start + element) * view.dtype.itemsize

    def note_barrier(self, wait: Wait) -> None:
        """The block passes a barrier."""
        where = place(wait.code, wait.offset)
        self._barriers[where] = self._barriers.get(where, 0) + 1

    def end(self) -> None:
        """The block has ended: its requests become counts."""
        for (key, _, _), (num_alive, addresses, width) in self._requests.items():
            lanes = sorted(addresses)
            request = Request(tuple(lanes), tuple(addresses[lane] for lane in lanes), width)
            self._accesses[key].add(request, num_alive)
