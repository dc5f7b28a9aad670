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


class Probe:
    """One large product and one large array for each thread, made once and measured as often as one likes."""

    def __init__(self, size: int = SIZE, array_bytes: int = ARRAY_BYTES) -> None:
        self.pieces = range(threads.num_threads())
        self.matrices = [np.full((size, size), 0.5, np.float32) for _ in self.pieces]
        self.products = [np.empty_like(m) for m in self.matrices]
        self.arrays = [np.ones(array_bytes // 8, np.int64) for _ in self.pieces]  # one addition for eight bytes read

    def measure(self, repeats: int = REPEATS) -> Ceilings:
        """Both ceilings, the best of `repeats`; a tenth of a second each."""
        pieces, flops, num_bytes = self.pieces, 2 * len(self.matrices[0]) ** 3, self.arrays[0].nbytes
        return Ceilings(
            gflops=len(pieces) * flops / _best(self._multiply, pieces, repeats) / 1e9,
            bandwidth=len(pieces) * num_bytes / _best(self._read, pieces, repeats) / 1e9,
            one_thread_gflops=flops / _best(self._multiply, [0], repeats) / 1e9,
            one_thread_bandwidth=num_bytes / _best(self._read, [0], repeats) / 1e9,
        )

    def _multiply(self, piece: int) -> None:
        np.matmul(self.matrices[piece], self.matrices[piece], out=self.products[piece])

    def _read(self, piece: int) -> None:
        np.sum(self.arrays[piece])


def measure(size: int = SIZE, array_bytes: int = ARRAY_BYTES, repeats: int = REPEATS) -> Ceilings:
    """Measure both ceilings once; about a second."""
    return Probe(size, array_bytes).measure(repeats)


def _best(work: Callable[[Any], None], pieces: Any, repeats: int) -> float:
    """Seconds of the fastest of `repeats` runs, after one that does not count."""
    fastest = float("inf")
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        threads.run_all(work, pieces)
        fastest = min(fastest, time.perf_counter() - began) if repeat else fastest
    return fastest
