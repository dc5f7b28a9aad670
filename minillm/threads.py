"""One pool of threads for the whole process.

Work is spread at the coarsest level there is: the micro-batches of a training step, the batches of a validation, or,
where there is only one piece of work, the rows of a single op.  Whatever runs inside a piece stays on its thread.
BLAS therefore gets one thread per caller: two pools that each want every core spend their time waiting for each other.
"""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from threadpoolctl import threadpool_limits

_here = threading.local()  # _here.busy: this thread runs a piece of work already
_gang = threading.Lock()  # held while all threads work on one thing together
_pool: ThreadPoolExecutor | None = None
_num_threads = 0  # 0: not chosen yet


def available_cores() -> int:
    """The cores this process may use, which in a container or under mpirun can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads() -> int:
    """How many threads work at the same time, the calling one included."""
    if not _num_threads:
        set_num_threads(0)
    return _num_threads


def set_num_threads(num: int) -> None:
    """Work on `num` threads from now on; 0: one per core.  Results do not depend on it.  Also holds BLAS to one."""
    global _pool, _num_threads
    if num < 0:
        raise ValueError(f"the number of threads must be positive, or 0 for one per core: got {num}")
    num = num or available_cores()
    hold_blas()
    if num == _num_threads:
        return
    if _pool is not None:
        _pool.shutdown()
    _num_threads = num
    _pool = ThreadPoolExecutor(num - 1, "minillm") if num > 1 else None  # the calling thread is one of them


def hold_blas() -> None:
    """Hold every BLAS library loaded so far to one thread per caller."""
    threadpool_limits(1, "blas")


def is_busy() -> bool:
    """Whether this thread runs a piece of work already, so that its own work is not spread further."""
    return getattr(_here, "busy", False)


def run_all(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """[work(item) for item in items], several at the same time.  Results come in the order of `items`.

    Each thread takes the next item when it is free.  Called from inside a piece of work, or for a single item, it
    runs on the calling thread.  The first error ends it once the pieces under way are done.
    """
    items = list(items)
    workers = min(num_threads(), len(items))
    if workers <= 1 or is_busy():
        return [work(item) for item in items]
    results: list[Any] = [None] * len(items)
    numbers = iter(range(len(items)))

    def take() -> None:
        _here.busy = True
        try:
            for number in numbers:
                results[number] = work(items[number])
        except BaseException:
            for _ in numbers:  # nobody begins another
                pass
            raise
        finally:
            _here.busy = False

    assert _pool is not None, "more than one thread needs a pool"
    others = [_pool.submit(take) for _ in range(workers - 1)]
    try:
        take()
    finally:
        errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error
    return results


def together(work: Callable[[int, int], None], most: int) -> None:
    """work(rank, size) on `size` threads at the same time, so that they may wait for one another; size <= most.

    As many as there are, or one from inside a piece of work.  One such group runs at a time: two halves of two groups
    would wait for ever.  If one fails the others must end by themselves.
    """
    size = 1 if is_busy() else min(num_threads(), most)
    if size == 1:
        work(0, 1)
        return
    assert _pool is not None, "more than one thread needs a pool"
    with _gang:
        others = [_pool.submit(work, rank, size) for rank in range(1, size)]
        try:
            work(0, size)
        finally:
            errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error
