"""Four small kernels and what their accesses to memory cost: `python -m gpu.simulator.examples [picture folder]`."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

from gpu.kernel import Kernel, kernel
from gpu.simulator.machine import Simulator
from gpu.simulator.picture import draw_access
from gpu.simulator.trace import Row, Trace

TILE, PADDED = 32, 33


@kernel("float32[:], float32[:]", threads=32)
def coalesced_copy(x, y):
    """Neighbouring lanes copy neighbouring elements."""
    i = cuda.grid(1)
    y[i] = x[i]


@kernel("float32[:], float32[:]", threads=32)
def strided_copy(x, y):
    """Lane i reads element 32 i: down a column of a matrix that has 32."""
    i = cuda.grid(1)
    y[i] = x[i * 32]


@kernel("float32[:, :], float32[:, :]", threads=1024)
def conflicting_transpose(x, y):
    """One block transposes a 32 x 32 matrix through a tile: a warp writes a row and reads a column."""
    tile = cuda.shared.array((TILE, TILE), np.float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    tile[i, j] = x[i, j]
    cuda.syncthreads()
    y[i, j] = tile[j, i]


@kernel("float32[:, :], float32[:, :]", threads=1024)
def padded_transpose(x, y):
    """The same with rows of 33: the elements of a column lie in 32 different banks."""
    tile = cuda.shared.array((TILE, PADDED), np.float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    tile[i, j] = x[i, j]
    cuda.syncthreads()
    y[i, j] = tile[j, i]


EXAMPLES: dict[str, tuple[Kernel, Any, tuple[str, str], str]] = {
    # picture: kernel, block, which access, title
    "coalesced": (coalesced_copy, 32, ("x", "load"), "Neighbouring lanes, neighbouring numbers:  x[i]"),
    "strided": (strided_copy, 32, ("x", "load"), "Every lane in a sector of its own:  x[i * 32]"),
    "conflict": (
        conflicting_transpose,
        (32, 32),
        ("tile", "load"),
        "A column of a 32 x 32 tile lies in one bank:  tile[j, i]",
    ),
    "padded": (
        padded_transpose,
        (32, 32),
        ("tile", "load"),
        "With rows of 33, a column crosses all banks:  tile[j, i]",
    ),
}


def traced(example: Kernel, block: Any) -> Trace:
    """The trace of one block of an example."""
    machine = Simulator(trace=True)
    shape = (32, 32) if example.parameters[0].ndim == 2 else (1024,)
    x = machine.array(np.arange(1024, dtype=np.float32).reshape(shape))
    example[1, block](x, machine.empty(shape))
    assert machine.trace is not None, "it was asked for"
    return machine.trace


def find(trace: Trace, array: str, kind: str) -> Row:
    """The access to an array, where there is one."""
    return next(row for row in trace.table() if (row.array, row.kind) == (array, kind))


def main(folder: Path) -> None:
    """Print the tables and draw the pictures."""
    for name, (example, block, access, title) in EXAMPLES.items():
        trace = traced(example, block)
        print(f"{example.function.__name__}: {example.function.__doc__}\n{trace}\n")
        draw_access(find(trace, *access), folder / f"gpu-{name}.png", title)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "notebooks/pictures"))
