"""The machine's two ceilings: how fast it multiplies matrices, and how fast it reads memory.

No program can do better than the slower of  FLOPs / product rate  and  bytes / bandwidth  (Williams, Waterman &
Patterson 2009, the roofline model).  Other programs on the machine can only lower a measurement, so the best counts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minillm import threads

SIZE = 1024  # rows and columns of the matrices: large enough that the copies BLAS makes of its tiles cost nothing
ARRAY_BYTES = 192 << 20  # read by each thread: several times the largest caches
REPEATS = 5


@dataclass(frozen=True)
class Ceilings:
    """The best seen so far.  GFLOP/s of single-precision products and GB/s read, on all threads and on one."""

    gflops: float
    bandwidth: float
    one_thread_gflops: float
    one_thread_bandwidth: float

    def best(self, other: "Ceilings") -> "Ceilings":
        """The higher of two measurements, number by number."""
        return Ceilings(*(max(pair) for pair in zip(vars(self).values(), vars(other).values())))

    def seconds(self, flops: float, num_bytes: float = 0.0) -> float:
        """The least time in which this machine can do `flops` and read `num_bytes`."""
        return max(flops / self.gflops, num_bytes / self.bandwidth) / 1e9


def measure(size: int = SIZE, array_bytes: int = ARRAY_BYTES, repeats: int = REPEATS) -> Ceilings:
    """Measure both ceilings; about a second.  One large product, or one large array, for each thread."""
    pieces = range(threads.num_threads())
    matrices = [np.full((size, size), 0.5, np.float32) for _ in pieces]
    products = [np.empty_like(m) for m in matrices]
    arrays = [np.ones(array_bytes // 8, np.int64) for _ in pieces]  # integers: one addition for eight bytes read

    def multiply(piece: int) -> None:
        np.matmul(matrices[piece], matrices[piece], out=products[piece])

    def read(piece: int) -> None:
        np.sum(arrays[piece])

    flops, num_bytes = 2 * size**3, arrays[0].nbytes
    return Ceilings(
        gflops=len(pieces) * flops / _best(multiply, pieces, repeats) / 1e9,
        bandwidth=len(pieces) * num_bytes / _best(read, pieces, repeats) / 1e9,
        one_thread_gflops=flops / _best(multiply, [0], repeats) / 1e9,
        one_thread_bandwidth=num_bytes / _best(read, [0], repeats) / 1e9,
    )


def _best(work: Callable[[Any], None], pieces: Any, repeats: int) -> float:
    """Seconds of the fastest of `repeats` runs, after one that does not count."""
    fastest = float("inf")
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        threads.run_all(work, pieces)
        fastest = min(fastest, time.perf_counter() - began) if repeat else fastest
    return fastest
