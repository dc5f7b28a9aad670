"""The Python twin of `gpu.ptx`: what its operations mean, where that needs no tensor core and no asynchronous copy."""

from typing import Any, NoReturn

import numpy as np

from gpu.simulator.memory import View


def load4(array: View, index: int) -> tuple:
    """Elements index .. index + 3 of the flattened array."""
    return array.load4(index)


def store4(array: View, index: int, a: Any, b: Any, c: Any, d: Any) -> None:
    """Write elements index .. index + 3 of the flattened array."""
    array.store4(index, (a, b, c, d))


def exp2(value: Any) -> np.float32:
    """2 to the power of a float32."""
    return np.exp2(np.float32(value))


def divide(numerator: Any, denominator: Any) -> np.float32:
    """A float32 quotient."""
    return np.float32(numerator) / np.float32(denominator)


def dp4a(a: Any, b: Any, c: Any) -> np.int32:
    """c + a0 b0 + a1 b1 + a2 b2 + a3 b3 of the four signed bytes in each of a and b."""
    first, second = (np.array([int(x) & 0xFFFFFFFF], np.uint32).view(np.int8).astype(int) for x in (a, b))
    total = int(first @ second) + int(c)
    return np.int64(total).astype(np.int32)


def as_float(bits: Any) -> np.float32:
    """The float32 whose bits are the given uint32."""
    return np.uint32(bits).view(np.float32)


def as_bits(value: Any) -> np.uint32:
    """The bits of a float32 as uint32."""
    return np.float32(value).view(np.uint32)


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"ptx.{name}: tensor-core operations and asynchronous copies run in the emulator, not in the simulator"
    )
