"""What a warp's request to memory costs: sectors of global memory, conflicts among the banks of shared memory.

Global memory moves in sectors of 32 bytes.  Shared memory has 32 banks: consecutive words of 4 bytes lie in consecutive
banks, and a bank serves one word at a time, to any number of lanes.
"""

from typing import NamedTuple

SECTOR, WORD, BANKS = 32, 4, 32  # bytes, bytes, number


class Request(NamedTuple):
    """One instruction of a warp: which lanes take part, each one's first byte, and how many bytes each wants."""

    lanes: tuple[int, ...]
    addresses: tuple[int, ...]
    width: int


def num_sectors(request: Request) -> int:
    """How many sectors hold a byte that some lane wants."""
    last = request.width - 1
    return len({s for a in request.addresses for s in range(a // SECTOR, (a + last) // SECTOR + 1)})


def num_ideal_sectors(request: Request) -> int:
    """How many sectors the wanted bytes would fill if they lay side by side."""
    return -(-len(set(request.addresses)) * request.width // SECTOR)


def conflict_ways(request: Request) -> int:
    """How often the busiest bank must serve: 1 is no conflict.

    Requests of 8 and 16 bytes a lane are served in halves and quarters of the warp; the worst of them counts.
    """
    together = BANKS * WORD // max(request.width, WORD)  # lanes that are served at once
    words: dict[tuple[int, int], set[int]] = {}  # by part of the warp and bank
    for lane, address in zip(request.lanes, request.addresses):
        for word in range(address // WORD, (address + request.width - 1) // WORD + 1):
            words.setdefault((lane // together, word % BANKS), set()).add(word)
    return max(map(len, words.values()))
