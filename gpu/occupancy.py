"""How many blocks of a kernel a multiprocessor holds at once, and what keeps it from holding more.

A multiprocessor hides the wait for memory by switching to another warp (32 threads), so it needs warps to switch to.
Its registers, shared memory, thread slots and block slots are given out when a block starts; whichever runs out first
is the limit.  The rules are those of NVIDIA's cuda_occupancy.h (toolkit 13), the capacities those of the CUDA C++
Programming Guide, "Technical Specifications per Compute Capability".
"""

from dataclasses import dataclass

WARP = 32  # threads
MAX_REGISTERS = 255  # of a thread
REGISTER_UNIT = 256  # registers are given to a warp in multiples of it
SHARED_UNIT = 128  # bytes; shared memory is given to a block in multiples of it
RESERVED = 1024  # bytes of shared memory that the driver keeps in each block
PARTITIONS = 4  # of a multiprocessor: each has a quarter of the registers, for the warps it holds


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor has to give out."""

    threads: int
    blocks: int
    shared: int
    """Bytes for all blocks together."""
    registers: int = 65536


MULTIPROCESSORS = {
    (8, 0): Multiprocessor(2048, 32, 164 * 1024),
    (8, 6): Multiprocessor(1536, 16, 100 * 1024),
    (8, 9): Multiprocessor(1536, 24, 100 * 1024),
    (9, 0): Multiprocessor(2048, 32, 228 * 1024),
}


@dataclass(frozen=True)
class Occupancy:
    """How full a multiprocessor gets."""

    blocks: int
    warps: int
    fraction: float
    """Of the warps it could hold."""
    limits: tuple[str, ...]
    """What would have to grow for one more block to fit, all that bind: "registers", "shared", "threads", "blocks"."""


def occupancy(capability: tuple[int, int], threads: int, registers: int, shared: int) -> Occupancy:
    """Occupancy by blocks of threads with `registers` each; shared: bytes of a block, static and dynamic together."""
    if capability not in MULTIPROCESSORS:
        known = ", ".join(f"{a}.{b}" for a, b in MULTIPROCESSORS)
        raise ValueError(
            f"no capacities known for compute capability {capability[0]}.{capability[1]}; there are {known}"
        )
    has = MULTIPROCESSORS[capability]
    warps = _round_up(threads, WARP) // WARP
    fits = {
        "threads": has.threads // WARP // warps,
        "registers": _by_registers(has, warps, registers),
        "shared": has.shared // _round_up(shared + RESERVED, SHARED_UNIT),
        "blocks": has.blocks,
    }
    blocks = min(fits.values())
    limits = tuple(name for name, n in fits.items() if n == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps * WARP / has.threads, limits)


def _by_registers(has: Multiprocessor, warps: int, registers: int) -> int:
    """A warp's registers all lie in one partition."""
    if registers > MAX_REGISTERS:
        return 0
    of_warp = max(_round_up(registers * WARP, REGISTER_UNIT), REGISTER_UNIT)
    return has.registers // PARTITIONS // of_warp * PARTITIONS // warps


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
