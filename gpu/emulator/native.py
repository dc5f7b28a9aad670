"""What numba's ordinary language lacks: numbers as addresses, bits as floats, and a call to an address."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from minillm.code_cache import fingerprint, keep

SOURCES = fingerprint(Path(__file__).parent)


def native(function: Callable) -> Any:
    """Compile a function of the emulator on its first call, for any thread to run; the machine code is kept on disk."""
    return keep(njit(nogil=True)(function), SOURCES)


def callback(signature: str, function: Any) -> Any:
    """A `native` function as one that machine code can call by its `address`."""
    return keep(cfunc(signature)(function.py_func), SOURCES)


def _pointer(numba_type, llvm_type):
    @intrinsic
    def at(typing, address):
        """The int64 `address` as a pointer."""
        return types.CPointer(numba_type)(types.int64), lambda context, builder, signature, args: builder.inttoptr(
            args[0], llvm_type.as_pointer()
        )

    return at


words_at = _pointer(types.int64, ir.IntType(64))
bytes_at = _pointer(types.uint8, ir.IntType(8))
halves_at = _pointer(types.uint16, ir.IntType(16))


@intrinsic
def switch(typing, code, save, other):
    """Call the fiber switch at address `code`: remember this stack at `save`, continue on `other`.  All int64."""

    def generate(context, builder, signature, args):
        word = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), [word, word]).as_pointer())
        builder.call(function, args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def float_of(typing, bits):
    """The float32 with the bits of a uint32."""
    return types.float32(types.uint32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.FloatType()
    )


@intrinsic
def bits_of(typing, value):
    """The bits of a float32 as uint32."""
    return types.uint32(types.float32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.IntType(32)
    )
