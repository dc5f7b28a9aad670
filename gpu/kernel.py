"""A kernel: one Python function that runs on a GPU, in the emulator and in the simulator, unchanged.

    @kernel("float32[:], float32[:], int32", threads=256)
    def double(x, y, n):
        i = cuda.grid(1)
        if i < n:
            y[i] = x[i] + x[i]

    machine = Emulator()                       # or Simulator(), or Device()
    x = machine.array(np.arange(5, dtype=np.float32))
    y = machine.empty(5, np.float32)
    double[1, 256](x, y, 5)
    y.numpy()

The arrays say where the kernel runs: all of them live on one machine.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu.array import Array, Machine

MAX_THREADS = 1024  # of a block, on every card so far
MAX_BLOCKS = 65_535  # of a grid in y and in z; in x there may be 2^31 - 1
MAX_DEPTH = 64  # threads of a block in z


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, its dtype and its number of dimensions (0: a scalar).  Arrays are C-contiguous."""

    name: str
    dtype: np.dtype
    ndim: int

    def __str__(self) -> str:
        dims = f"[{', '.join(':' * self.ndim)}]" if self.ndim else ""
        return f"{self.dtype}{dims}"


@dataclass(frozen=True)
class Claims:
    """What the machine code must show, beside no float64, no spills and no local memory.

    wide: 16-byte loads and stores of global memory.  tensor: tensor-core instructions.  asynchronous: copies from
    global to shared memory that pass no register.  stack: bytes of stack allowed (0 but for teaching kernels).
    """

    wide: bool = False
    tensor: bool = False
    asynchronous: bool = False
    stack: int = 0


@dataclass(frozen=True)
class Kernel:
    """What `@kernel` makes; `kernel[grid, block, stream, shared](*arguments)` launches it, as in numba."""

    function: Callable[..., None]
    parameters: tuple[Parameter, ...]
    threads: int
    """The largest block it may be launched with: the compiler's register budget follows from it."""
    blocks: int = 1
    """How many such blocks should fit on one multiprocessor: lowers the register budget."""
    claims: Claims = field(default=Claims())
    shared: int = 0
    """Bytes of dynamic shared memory of a typical launch, for the occupancy in the report."""

    @property
    def name(self) -> str:
        """module.function, without the package."""
        return f"{self.function.__module__.removeprefix('gpu.')}.{self.function.__name__}"

    def __getitem__(self, launch: tuple) -> Callable[..., None]:
        grid, block, *rest = launch
        stream = rest[0] if rest else None
        shared = rest[1] if len(rest) > 1 else 0
        grid, block = _three(grid), _three(block)
        if np.prod(block) > self.threads:
            raise ValueError(
                f"{self.name}: a block of {block} has {np.prod(block)} threads; "
                f"the kernel is compiled for at most {self.threads}"
            )
        if min(grid) < 0 or min(block) < 1:
            raise ValueError(f"{self.name}: grid {grid} and block {block} must be positive")
        if max(grid[1:]) > MAX_BLOCKS or block[2] > MAX_DEPTH:
            raise ValueError(
                f"{self.name}: a grid has at most {MAX_BLOCKS} blocks in y and z, a block {MAX_DEPTH} threads in z; "
                f"got grid {grid}, block {block}: put what is long into x"
            )

        def run(*arguments: Any) -> None:
            machine, checked = self._check(arguments)
            if 0 not in grid:
                machine.launch(self, grid, block, shared, checked, stream)

        return run

    def _check(self, arguments: tuple) -> tuple[Machine, list]:
        """The one machine on which all arrays live, and the arguments with scalars in their declared dtype."""
        if len(arguments) != len(self.parameters):
            raise ValueError(
                f"{self.name} takes {len(self.parameters)} arguments "
                f"({', '.join(p.name for p in self.parameters)}), got {len(arguments)}"
            )
        checked = [_checked(self.name, p, a) for p, a in zip(self.parameters, arguments)]
        machines = {id(a.machine): a.machine for a in checked if isinstance(a, Array)}
        if len(machines) != 1:
            raise ValueError(f"{self.name}: the arrays must live on one machine, they live on {len(machines)}")
        return next(iter(machines.values())), checked


def kernel(signature: str, threads: int, **rest: Any) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator.  signature: the parameters' types, as in "float32[:, :], int32"; arrays are C-contiguous.

    threads, and the rest: see `Kernel`.  ValueError where the signature does not fit the function.
    """
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"a block has 1 to {MAX_THREADS} threads, got threads={threads}")

    def wrap(function: Callable[..., None]) -> Kernel:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        types = re.findall(r"(\w+)\s*(\[[^\]]*\])?", signature)
        if len(types) != len(names):
            raise ValueError(f"{function.__name__} has {len(names)} parameters, its signature {len(types)}")
        made = (Parameter(n, np.dtype(t), dims.count(":")) for n, (t, dims) in zip(names, types))
        return Kernel(function, tuple(made), threads, **rest)

    return wrap


def device(function: Callable) -> Any:
    """Decorator of a function that kernels call: numba compiles it into them, and the simulator runs it as Python."""
    from numba import cuda

    return cuda.jit(device=True, lineinfo=True)(function)


def ceil_div(a: int, b: int) -> int:
    """How many pieces of b cover a: for the grid and for buffers alike."""
    return -(-a // b)


def _three(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    """A grid or block of one, two or three dimensions, as three."""
    x, y, z = (*((size,) if isinstance(size, int | np.integer) else size), 1, 1)[:3]
    return int(x), int(y), int(z)


def _checked(name: str, parameter: Parameter, argument: Any) -> Any:
    """The argument as the kernel wants it.  ValueError says what was expected and what came."""
    if parameter.ndim:
        if not isinstance(argument, Array):
            raise ValueError(
                f"{name}: argument {parameter.name!r} must be an array on a machine, got {type(argument).__name__}; "
                "put it there with machine.array(...)"
            )
        if (argument.dtype, len(argument.shape)) != (parameter.dtype, parameter.ndim):
            raise ValueError(
                f"{name}: argument {parameter.name!r} must be {parameter}, "
                f"got {argument.dtype} of shape {argument.shape}"
            )
        return argument
    scalar = parameter.dtype.type(argument)
    if parameter.dtype.kind in "iu" and scalar != argument:
        raise ValueError(f"{name}: argument {parameter.name!r} = {argument} does not fit into {parameter.dtype}")
    return scalar
