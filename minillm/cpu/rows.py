"""What the kernels share: float32 rows in, float32 rows out, spread over threads where an op is alone.

A kernel takes (start, stop, ...) and works on that range of rows, heads or groups of rows.  Inside a micro-batch it is
called once for all; alone, in pieces.  A sum over rows is always taken in the same groups of rows, added in order, so
that its bytes depend neither on the pieces nor on the number of threads.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from minillm import threads

FLOAT32 = np.dtype(np.float32)
GROUP = 128  # rows summed together before groups are
CHUNK = 4096  # elements of a flat array worked on together
WORTH = 1 << 20  # elements below which waking another thread (35 us) costs more than it brings
PIECES = 3  # per thread: small enough to even out, large enough to be worth a call


def twin(reference: Callable) -> Callable:
    """The decorated function stands in for `reference` where all floats are float32; other dtypes go to it itself.

    A backward is told by its dy, whose dtype is that of its forward's result.
    """

    def decorate(function: Callable) -> Callable:
        @wraps(reference)
        def op(*args: Any, **options: Any) -> Any:
            for x in (*args, *options.values()):
                if type(x) is np.ndarray and x.dtype is not FLOAT32 and x.dtype.kind == "f" and x.dtype != FLOAT32:
                    return reference(*args, **options)
            return function(*args, **options)

        return op

    return decorate


class _Alias:
    """The memory of a read-only array, for kernels that only read it: numba would compile each of them once more."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x  # kept alive
        self.__array_interface__ = x.__array_interface__ | {"data": (x.ctypes.data, False)}


def packed(x: np.ndarray) -> np.ndarray:
    """x without gaps, as kernels want their inputs; copies only what has some."""
    x = np.ascontiguousarray(x)
    return x if x.flags.writeable else np.asarray(_Alias(x))


def rows_of(x: np.ndarray) -> np.ndarray:
    """(..., C) as packed rows (N, C)."""
    return packed(x).reshape(-1, x.shape[-1])


def spread(kernel: Callable, count: int, cost: int, *args: Any) -> None:
    """kernel(start, stop, *args) over [0, count), each unit about `cost` elements of work."""
    num = threads.num_threads()
    if count < 2 or num == 1 or count * cost < WORTH or threads.is_busy():
        kernel(0, count, *args)
        return
    pieces = min(count, PIECES * num)
    bounds = [count * piece // pieces for piece in range(pieces + 1)]
    threads.run_all(lambda piece: kernel(bounds[piece], bounds[piece + 1], *args), range(pieces))


def num_chunks(size: int) -> int:
    """Into how many chunks a flat array is cut."""
    return -(-size // CHUNK)


def num_groups(N: int) -> int:
    """Into how many groups a sum over N rows is cut."""
    return -(-N // GROUP)
