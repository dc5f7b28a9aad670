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
    """How many sectors hold a byte that some lane wants.  What one lane wants is aligned, so it lies in one."""
    return len({address // SECTOR for address in request.addresses})


def num_ideal_sectors(request: Request) -> int:
    """How many sectors the wanted bytes would fill if they lay side by side."""
    return -(-len(set(request.addresses)) * request.width // SECTOR)


def words_by_bank(request: Request) -> dict[tuple[int, int], set[int]]:
    """The words that each bank must give, by (turn, bank).

    Requests of 8 and 16 bytes a lane take two and four turns: one for each half or quarter of the warp.
    """
    together = BANKS * WORD // max(request.width, WORD)  # lanes that are served in one turn
    words: dict[tuple[int, int], set[int]] = {}
    for lane, address in zip(request.lanes, request.addresses):
        for word in range(address // WORD, (address + request.width - 1) // WORD + 1):
            words.setdefault((lane // together, word % BANKS), set()).add(word)
    return words


def conflict_ways(request: Request) -> int:
    """How many words the busiest bank must give in one turn: 1 is no conflict."""
    return max(map(len, words_by_bank(request).values()))
