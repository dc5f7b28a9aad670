"""How the kernels are compiled: one decorator for all, and a cache that cannot be stale.

Kernels release the interpreter's lock, so several threads run them at once (see minillm/threads.py), and let the
compiler reorder sums, which is what lets it use vector registers for them.  They do not let it assume that no NaN
and no infinity occurs (LLVM's `nnan` and `ninf`, which numba's `fastmath=True` includes): masks are infinities here.
Nor do divisions become estimates (`arcp`): they are rare, and 1/C must be exact where C is a power of two.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

from minillm.code_cache import fingerprint, keep

FLAGS = {"contract", "reassoc", "nsz"}


SOURCES = fingerprint(Path(__file__).parent, Path(__file__).parents[1] / "ops")  # kernels use the reference's constants


def kernel(function: Callable) -> Any:
    """Compile `function` on its first call for the types it is called with, and keep the machine code on disk.

    The cache lies beside the source, or in the user's cache folder where that may not be written.  It is keyed by
    numba's version, the processor, and the source of every file in minillm/cpu and minillm/ops.
    """
    compiled: Any = numba.njit(nogil=True, fastmath=FLAGS, error_model="numpy")(function)
    return keep(compiled, SOURCES)


def inline(function: Callable) -> Any:
    """Compile a small function that kernels call.  Its sums keep their order: only multiply-adds are fused."""
    return numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")(function)


def exact(function: Callable) -> Any:
    """As `inline`, for arithmetic that must be rounded as it is written."""
    return numba.njit(nogil=True, error_model="numpy")(function)


class _Notice(event.Listener):
    """Tells, once, why the first run takes longer."""

    said = False

    def on_start(self, event: Any) -> None:
        """A function is about to be compiled."""
        module = event.data["dispatcher"].py_func.__module__
        if not _Notice.said and module.startswith(__package__):
            _Notice.said = True
            print("minillm: compiling kernels for this processor; later starts find them in a cache", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        """It has been."""


event.register("numba:compile", _Notice())
