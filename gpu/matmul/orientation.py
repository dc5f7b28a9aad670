"""The four ways to read two operands, each as it is or transposed, and the name a kernel gets for its way."""

from collections.abc import Callable

from gpu.kernel import Kernel


def each_orientation(build: Callable[[bool, bool], Kernel]) -> dict[tuple[bool, bool], Kernel]:
    """A kernel for each (transpose_a, transpose_b): what is known when compiling costs nothing when running."""
    return {(a, b): build(a, b) for a in (False, True) for b in (False, True)}


def named(rung: str, transpose_a: bool, transpose_b: bool) -> Callable[[Callable], Callable]:
    """Decorator: call a kernel's function as BLAS does, "tiled_nt" for A as it is and B transposed."""

    def rename(function: Callable) -> Callable:
        function.__name__ = f"{rung}_{'nt'[transpose_a]}{'nt'[transpose_b]}"
        return function

    return rename
