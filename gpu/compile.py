"""From a kernel to NVVM IR and PTX, with no GPU and no driver.

numba-cuda's own front end does the work, exactly as its `@cuda.jit` would, for a compute capability that we name.
This is the one file that knows numba-cuda's internals (0.30.4 is pinned for them).

Kernels are compiled without `fastmath`: it would let the compiler assume that there are no infinities, and masks are
made of them.  Where an approximation pays, the kernel says so (`ptx.exp2`, `ptx.divide`).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

from gpu.kernel import Kernel

VARIABLES = re.compile(r'^\s*call void @"llvm\.dbg\.(?:declare|value)"[^\n]*\n', re.MULTILINE)
Capability = tuple[int, int]  # (8, 0) is sm_80, an A100; (9, 0) is sm_90, an H100


def nvvm_ir(kernel: Kernel, capability: Capability = (8, 0)) -> list[str]:
    """The kernel's modules in NVVM IR (LLVM's language, typed pointers), with line numbers."""
    return list(_library(kernel, capability).llvm_strs)


def ptx(kernel: Kernel, capability: Capability) -> str:
    """The kernel in PTX, NVIDIA's virtual instruction set."""
    with lines_without_variables():
        return "\n".join(_library(kernel, capability).get_asm_strs(cc=capability))


def numba_types(kernel: Kernel) -> tuple:
    """The parameters as numba's types."""
    from numba.cuda import types

    return tuple(
        types.Array(getattr(types, str(p.dtype)), p.ndim, "C") if p.ndim else getattr(types, str(p.dtype))
        for p in kernel.parameters
    )


@contextmanager
def lines_without_variables() -> Iterator[None]:
    """While it lasts, NVVM hears where lines are and not where variables are.

    numba-cuda tells it both, and NVVM refuses some of the names: "Symbol name with unsupported characters".
    """
    from numba.cuda.cudadrv import nvvm

    compiled = nvvm.compile_ir

    def compile_ir(modules: str | list[str], **options: Any) -> Any:
        modules = [modules] if isinstance(modules, str) else modules
        return compiled([VARIABLES.sub("", module) for module in modules], **options)

    nvvm.compile_ir = compile_ir
    try:
        yield
    finally:
        nvvm.compile_ir = compiled


@cache
def _library(kernel: Kernel, capability: Capability) -> Any:
    from numba.cuda import types
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.cudadrv import nvvm

    with _capability_without_driver(capability):
        compiled = compile_cuda(
            kernel.function,
            types.void,
            numba_types(kernel),
            lineinfo=True,
            nvvm_options={"fastmath": False, "opt": 3},
            cc=capability,
        )
    library, name = compiled.library, compiled.fndesc.llvm_func_name
    library._entry_name = name
    function = library.get_function(name)
    kernel_fixup(function, False)
    nvvm.set_launch_bounds(function, (kernel.threads, kernel.blocks))
    return library


@contextmanager
def _capability_without_driver(capability: Capability) -> Iterator[None]:
    """While it lasts, numba-cuda, which asks the device before it compiles a callee, is told `capability`."""
    import numba.cuda.dispatcher as dispatcher

    asked = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = asked
