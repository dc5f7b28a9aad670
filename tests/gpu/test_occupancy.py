"""Occupancy against hand-counted cases and NVIDIA's own calculator; cards and their roofline."""

import pytest

from gpu.cards import CARDS, roofline
from gpu.occupancy import MULTIPROCESSORS, occupancy


def test_32_registers_fill_an_a100():
    """65536 registers / (256 threads x 32) = 8 blocks, which are also all 2048 threads."""
    full = occupancy((8, 0), threads=256, registers=32, shared=0)
    assert (full.blocks, full.warps, full.fraction, full.limits) == (8, 64, 1.0, ("threads", "registers"))


def test_one_register_more_costs_a_quarter():
    """33 x 32 registers round up to 1280 a warp: 12 warps in each quarter of 16384, 48 in all, 6 blocks of 8."""
    less = occupancy((8, 0), threads=256, registers=33, shared=0)
    assert (less.blocks, less.fraction, less.limits) == (6, 0.75, ("registers",))


def test_the_driver_keeps_a_kilobyte_of_each_blocks_shared_memory():
    """164 KiB hold two blocks of 81 KiB, not of 81.1, for each takes one KiB more."""
    assert occupancy((8, 0), 128, 32, 81 * 1024).blocks == 2
    assert occupancy((8, 0), 128, 32, 81 * 1024 + 1).blocks == 1


def test_shared_memory_is_given_in_units_of_128_bytes():
    """228 KiB / 21 blocks = 11117 bytes, of which 11008 are a multiple of 128 and 9984 are the block's own."""
    assert occupancy((9, 0), 32, 16, 9984).blocks == 21
    assert occupancy((9, 0), 32, 16, 9985).blocks == 20


@pytest.mark.parametrize(("capability", "most"), [((8, 0), 163), ((8, 6), 99), ((8, 9), 99), ((9, 0), 227)])
def test_the_largest_block_of_the_programming_guide_fits_once(capability, most):
    """CUDA C++ Programming Guide, "Maximum amount of shared memory per thread block", in KiB."""
    assert occupancy(capability, 128, 32, most * 1024).blocks == 1
    assert occupancy(capability, 128, 32, most * 1024 + 1).blocks == 0


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "limits"),
    [  # printed by cudaOccMaxActiveBlocksPerMultiprocessor of the CUDA toolkit 13.5's cuda_occupancy.h
        ((8, 0), 128, 128, 40960, 4, "registers shared"),
        ((8, 0), 1024, 64, 0, 1, "registers"),
        ((8, 0), 1024, 65, 0, 0, "registers"),
        ((8, 0), 32, 16, 0, 32, "blocks"),
        ((8, 0), 256, 104, 8192, 2, "registers"),
        ((8, 0), 256, 255, 0, 1, "registers"),
        ((8, 0), 33, 40, 0, 24, "registers"),
        ((8, 0), 288, 200, 0, 0, "registers"),  # 2 warps in each quarter, 8 in all, and the block has 9
        ((9, 0), 256, 124, 40960, 2, "registers"),
        ((9, 0), 128, 168, 115712, 2, "shared"),
        ((9, 0), 384, 168, 200000, 1, "registers shared"),
        ((9, 0), 96, 20, 3000, 21, "threads"),
        ((8, 6), 256, 32, 0, 6, "threads"),
        ((8, 6), 128, 64, 32768, 3, "shared"),
        ((8, 9), 64, 24, 0, 24, "threads blocks"),
        ((8, 9), 512, 40, 49152, 2, "shared"),
    ],
)
def test_occupancy_is_that_of_nvidias_calculator(capability, threads, registers, shared, blocks, limits):
    found = occupancy(capability, threads, registers, shared)
    assert (found.blocks, found.limits) == (blocks, tuple(limits.split()))


def test_more_registers_than_a_thread_can_have_fit_nowhere():
    assert occupancy((8, 0), 32, 255, 0).blocks > 0 == occupancy((8, 0), 32, 256, 0).blocks


def test_an_unknown_capability_is_told():
    with pytest.raises(ValueError, match=r"compute capability 7\.0; there are 8\.0, 8\.6, 8\.9, 9\.0"):
        occupancy((7, 0), 256, 32, 0)


CLOCK = {"A": (64, 1.41e9), "H": (128, 1.98e9), "R": (128, 2.52e9), "L": (128, 2.04e9)}  # lanes of an SM, boost clock


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_cards_float32_rate_is_that_of_its_lanes(card):
    lanes, clock = CLOCK[card.name[0]]
    assert card.rates["float32"] == pytest.approx(card.multiprocessors * lanes * 2 * clock, rel=0.005)
    assert card.rates["float32"] <= card.rates["tf32"] <= card.rates["bfloat16"] / 1.99 <= card.rates["int8"] / 3.9
    assert card.capability in MULTIPROCESSORS


def test_roofline_of_a_matrix_product_and_of_a_softmax():
    a100 = CARDS["A100-SXM4-80GB"]
    n = 4096
    assert roofline(3 * 2 * n * n, 2 * n**3, a100, "bfloat16") == (2 * n**3 / 312e12, "arithmetic")
    assert roofline(2 * 4 * n * n, 5 * n * n, a100) == (8 * n * n / 2039e9, "memory")


def test_a_rate_that_a_card_lacks_is_told():
    with pytest.raises(ValueError, match="L4 has no float64 arithmetic; it has float32, tf32, bfloat16, int8"):
        roofline(1, 1, CARDS["L4"], "float64")
