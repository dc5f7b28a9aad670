"""What some cards can do at most, as published, and the least time that work must take on one (the roofline).

Rates are dense: the twice as high ones of datasheets are for matrices half of zeros.  No kernel reaches them; a good
copy moves 90% of the bandwidth, a good matrix product does 70 to 80% of the arithmetic.

The roofline: Williams, Waterman & Patterson 2009, doi 10.1145/1498765.1498785.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["float32", "tf32", "bfloat16", "int8"]  # float32 without tensor cores, the others with
TERA, GIGA, MIB = 1e12, 1e9, 2**20


@dataclass(frozen=True)
class Card:
    """A graphics card's ceilings."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2: int
    """Bytes of the cache between the multiprocessors and memory."""
    bandwidth: float
    """Bytes of memory read or written in a second."""
    rates: dict[Kind, float]
    """Floating-point (for int8: integer) operations in a second; a multiply-add is two."""


CARDS = {
    card.name: card
    for card in (
        # NVIDIA A100 datasheet (2021) and "NVIDIA A100 Tensor Core GPU Architecture" (2020), table 4.
        Card("A100-SXM4-40GB", (8, 0), 108, 40 * MIB, 1555 * GIGA,
             {"float32": 19.5 * TERA, "tf32": 156 * TERA, "bfloat16": 312 * TERA, "int8": 624 * TERA}),
        Card("A100-SXM4-80GB", (8, 0), 108, 40 * MIB, 2039 * GIGA,
             {"float32": 19.5 * TERA, "tf32": 156 * TERA, "bfloat16": 312 * TERA, "int8": 624 * TERA}),
        # NVIDIA H100 datasheet and "NVIDIA H100 Tensor Core GPU Architecture" (2023), table 3.
        Card("H100-SXM5-80GB", (9, 0), 132, 50 * MIB, 3350 * GIGA,
             {"float32": 66.9 * TERA, "tf32": 494.7 * TERA, "bfloat16": 989.4 * TERA, "int8": 1978.9 * TERA}),
        # NVIDIA H200 datasheet (2024): the chip of the H100 with faster memory.
        Card("H200-SXM-141GB", (9, 0), 132, 50 * MIB, 4800 * GIGA,
             {"float32": 66.9 * TERA, "tf32": 494.7 * TERA, "bfloat16": 989.4 * TERA, "int8": 1978.9 * TERA}),
        # "NVIDIA Ada GPU Architecture" (2022), appendix A; bfloat16 sums in float32.
        Card("RTX-4090", (8, 9), 128, 72 * MIB, 1008 * GIGA,
             {"float32": 82.6 * TERA, "tf32": 82.6 * TERA, "bfloat16": 165.2 * TERA, "int8": 660.6 * TERA}),
        # NVIDIA L4 datasheet (2023), its rates "with sparsity" halved.
        Card("L4", (8, 9), 58, 48 * MIB, 300 * GIGA,
             {"float32": 30.3 * TERA, "tf32": 60 * TERA, "bfloat16": 121 * TERA, "int8": 242.5 * TERA}),
    )
}  # fmt: skip


def roofline(nbytes: float, flops: float, card: Card, kind: Kind = "float32") -> tuple[float, str]:
    """Least seconds for work that moves nbytes and does flops operations, and which of the two it takes: its bound.

        seconds = max(nbytes / bandwidth, flops / rate)

    The bound is "memory" or "arithmetic".  Each byte counts once however often caches give it out again.
    """
    if kind not in card.rates:
        raise ValueError(f"{card.name} has no {kind} arithmetic; it has {', '.join(card.rates)}")
    moving, computing = nbytes / card.bandwidth, flops / card.rates[kind]
    return max(moving, computing), "memory" if moving >= computing else "arithmetic"
