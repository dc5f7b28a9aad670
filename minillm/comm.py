"""Communication between ranks: the collectives that parallel training is made of.

Three ways to be several: Solo (one rank), Threads (ranks as threads of one process, for tests) and Mpi (processes
under mpirun).  All reduce in the order of ranks, so every rank gets the same bytes, run after run.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

TIMEOUT = 60.0  # seconds a rank of Threads waits for the others before it reports that they are missing


class Comm(Protocol):
    """What every way offers.  Arrays must agree in shape and dtype on all ranks; results are fresh arrays."""

    rank: int
    size: int

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """x of every rank, stacked in order of rank: (size, *x.shape)."""

    def send(self, x: np.ndarray, to: int) -> None:
        """Hand x to rank `to`; does not wait for it."""

    def receive(self, source: int) -> np.ndarray:
        """The next array that rank `source` sent here."""


def all_reduce(comm: Comm, x: np.ndarray) -> np.ndarray:
    """The sum of every rank's x, added in order of rank."""
    total, *others = comm.all_gather(x)
    total = total.copy()
    for other in others:
        total += other
    return total


def reduce_scatter(comm: Comm, x: np.ndarray) -> np.ndarray:
    """This rank's share of the sum: rows [rank * n, (rank + 1) * n) of it, n = len(x) / size."""
    if len(x) % comm.size:
        raise ValueError(f"{len(x)} rows do not divide evenly among {comm.size} ranks; pad them to a multiple")
    return np.split(all_reduce(comm, x), comm.size)[comm.rank]


class Solo:
    """One rank: everything is already here."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self._sent: list[np.ndarray] = []

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """See Comm."""
        return x[None].copy()

    def send(self, x: np.ndarray, to: int) -> None:
        """See Comm.  To itself, the only one there is."""
        _check_rank(to, self.size)
        self._sent.append(x.copy())

    def receive(self, source: int) -> np.ndarray:
        """See Comm."""
        _check_rank(source, self.size)
        if not self._sent:
            raise RuntimeError("nothing was sent: a rank alone would wait for itself for ever")
        return self._sent.pop(0)


class Threads:
    """One of several ranks that are threads of this process; `run_threads` makes them."""

    def __init__(self, rank: int, size: int, shared: "_Shared") -> None:
        self.rank, self.size, self._shared = rank, size, shared

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """See Comm.  ValueError on every rank if shapes or dtypes differ."""
        slots = self._shared.slots
        slots[self.rank] = x
        self._shared.barrier.wait(TIMEOUT)
        kinds = {(a.shape, a.dtype) for a in slots}
        stacked = np.stack(slots) if len(kinds) == 1 else None
        self._shared.barrier.wait(TIMEOUT)  # nobody overwrites a slot before all have read it
        if stacked is None:
            raise ValueError(f"ranks must bring arrays of one shape and dtype: got {sorted(map(str, kinds))}")
        return stacked

    def send(self, x: np.ndarray, to: int) -> None:
        """See Comm."""
        _check_rank(to, self.size)
        self._shared.mail[self.rank, to].put(x.copy())

    def receive(self, source: int) -> np.ndarray:
        """See Comm.  RuntimeError if nothing comes in time or the sender has failed."""
        _check_rank(source, self.size)
        try:
            return self._shared.mail[source, self.rank].get(timeout=TIMEOUT)
        except queue.Empty:
            raise RuntimeError(
                f"rank {self.rank} waited {TIMEOUT:.0f} s for rank {source}, which sent nothing"
            ) from None


class _Shared:
    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)
        self.mail: dict[tuple[int, int], queue.Queue] = {
            (a, b): queue.Queue() for a in range(size) for b in range(size)
        }


def run_threads(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    """work(comm) on `size` ranks at once; returns their results in order of rank.

    If a rank fails, those that wait for it are released and its error is raised.
    """
    shared, results, errors = _Shared(size), [None] * size, []

    def body(rank: int) -> None:
        try:
            results[rank] = work(Threads(rank, size, shared))
        except BaseException as error:
            errors.append(error)
            shared.barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error  # the cause before its consequences
    return results


class Mpi:
    """One of several processes started by mpirun.  Needs the extra `mpi`."""

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ImportError:
            raise ImportError("parallel runs need MPI; install it with: pip install 'minillm[mpi]'") from None
        self._world = MPI.COMM_WORLD
        self._pending: list[Any] = []
        self.rank, self.size = self._world.rank, self._world.size

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """See Comm.  ValueError on every rank if shapes or dtypes differ."""
        kinds = set(self._world.allgather((x.shape, x.dtype.str)))
        if len(kinds) > 1:
            raise ValueError(f"ranks must bring arrays of one shape and dtype: got {sorted(map(str, kinds))}")
        stacked = np.empty((self.size, *x.shape), x.dtype)
        self._world.Allgather(np.ascontiguousarray(x), stacked)
        return stacked

    def send(self, x: np.ndarray, to: int) -> None:
        """See Comm.  The message is kept until it has left."""
        _check_rank(to, self.size)
        self._pending = [request for request in self._pending if not request.Test()]
        self._pending.append(self._world.isend(np.ascontiguousarray(x), dest=to))

    def receive(self, source: int) -> np.ndarray:
        """See Comm."""
        _check_rank(source, self.size)
        return self._world.recv(source=source)


def _check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"rank must be in [0, {size}): got {rank}")
