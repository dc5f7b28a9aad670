"""How long one kernel takes without a GPU: numba's own simulator, ours, the emulator in both modes.

numba's is chosen by an environment variable when numba.cuda is first imported, so it runs in a process of its own.
"""

import os
import statistics
import subprocess
import sys
import time

import numpy as np

from gpu.array import Machine
from gpu.bench.plain import TILE, tiled
from gpu.emulator import Emulator
from gpu.kernel import kernel
from gpu.simulator import Simulator

STOCK = """
import sys, time
import numpy as np
from numba import cuda
from gpu.bench.plain import TILE, tiled
size = int(sys.argv[1])
a, b = np.random.default_rng(0).standard_normal((2, size, size)).astype(np.float32)
c = np.zeros_like(a)
began = time.perf_counter()
cuda.jit(tiled)[(size // TILE, size // TILE), (TILE, TILE)](a, b, c)
print(time.perf_counter() - began)
assert np.allclose(c, a @ b, atol=1e-4)
"""


def compare(size: int = 64, rounds: int = 5) -> dict[str, float]:
    """Seconds to multiply two matrices of size x size, by each; medians of the rounds (numba's: one run).

    The emulator's first launch, which compiles, is not counted; every result is compared with NumPy's.
    """
    if size % TILE:
        raise ValueError(f"size must be a multiple of {TILE}, got {size}")
    made = kernel("float32[:, :], float32[:, :], float32[:, :]", threads=TILE * TILE)(tiled)
    a, b = np.random.default_rng(0).standard_normal((2, size, size)).astype(np.float32)
    seconds = {"numba's simulator": stock(size)}
    machines: dict[str, Machine] = {
        "our simulator, tracing": Simulator(trace=True),
        "our simulator": Simulator(),
        "emulator, checked": Emulator(checked=True),
        "emulator, 1 core": Emulator(cores=1),
        "emulator, 2 cores": Emulator(),
    }
    for name, machine in machines.items():
        x, y, z = machine.array(a), machine.array(b), machine.empty(a.shape)
        times = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            made[(size // TILE, size // TILE), (TILE, TILE)](x, y, z)
            times.append(time.perf_counter() - began)
        if not np.allclose(z.numpy(), a @ b, atol=1e-4):
            raise RuntimeError(f"{name}: a wrong product")
        seconds[name] = statistics.median(times[1:])
    return seconds


def stock(size: int) -> float:
    """Seconds that numba's own simulator takes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STOCK, str(size)],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)
