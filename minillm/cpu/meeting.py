"""A meeting point for threads inside compiled code: all must arrive before any goes on.

Going back to Python between two steps and waiting there for the other threads costs more than a layer's whole
arithmetic for one token.  Here a thread counts itself in and watches the counter: a fraction of a microsecond, at the
price of a busy core, so only for threads that run at the same time and arrive at about the same time.  CUDA's
grid-wide barrier is the same thing.
"""

import sys

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minillm.cpu.jit import inline

PATIENCE = 2000  # looks at the counter before the core is offered to somebody else
LINE = 8  # int64 of a cache line


def meeting_point():
    """A counter for one call of one group of threads: how many arrivals there were."""
    return np.zeros(LINE, np.int64)


@intrinsic
def _count_in(typingctx, address):
    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _arrivals(typingctx, address):
    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def _offer_core(typingctx):
    def generate(context, builder, signature, args):
        if sys.platform != "win32":
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@inline
def meet(point, size, times):
    """Wait until each of `size` threads has arrived for the time number `times` (1, 2, ...); returns times + 1."""
    if size > 1:
        address = point.ctypes.data
        _count_in(address)
        looks = 0
        while _arrivals(address) < times * size:
            looks += 1
            if looks > PATIENCE:
                _offer_core()
    return times + 1
