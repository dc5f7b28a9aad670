"""Blocks of small integers: what each type stands for, by hand and beside the `gguf` package."""

import numpy as np
import pytest

from minillm.interop.blocks import BLOCKS, NUMBER, from_blocks, to_blocks

WRITTEN = ["F32", "F16", "Q8_0"]


def raw_blocks(name, count, seed=0):
    """Random bytes, with scales of a usual size: any other bits of a float16 might be NaN."""
    generator = np.random.default_rng(seed)
    kind = BLOCKS[NUMBER[name]]
    if name in ("F32", "F16"):
        return generator.standard_normal(count).astype({"F32": "<f4", "F16": "<f2"}[name]).view(np.uint8)
    if name == "BF16":
        return (generator.standard_normal(count).astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8)
    raw = generator.integers(0, 256, (count, kind.bytes), np.uint8)
    for at in {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}.get(name, (0,)):
        raw[:, at : at + 2] = generator.normal(0, 0.1, (count, 1)).astype("<f2").view(np.uint8)
    return raw.reshape(-1)


@pytest.mark.parametrize("name", NUMBER)
def test_every_type_stands_for_what_the_peer_reads(name):
    quants = pytest.importorskip("gguf").quants
    raw = raw_blocks(name, 60)
    kind = getattr(pytest.importorskip("gguf").GGMLQuantizationType, name)
    want = quants.dequantize(raw.reshape(6, -1), kind).reshape(-1)
    got = from_blocks(raw, name)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


def test_a_block_of_four_bits_by_hand():
    raw = np.zeros(20, np.uint8)
    raw[:4] = np.array([0.5, -1], "<f2").view(np.uint8)
    raw[4], raw[19] = 0x73, 0xF0
    want = np.full(32, -1.0)
    want[0], want[16], want[31] = 3 * 0.5 - 1, 7 * 0.5 - 1, 15 * 0.5 - 1
    np.testing.assert_array_equal(from_blocks(raw, "Q4_1"), want)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_comes_back_to_within_half_a_step(name):
    x = np.random.default_rng(0).standard_normal(96) * np.repeat([1, 1e-3, 0], 32)
    x = x.astype(np.float32)
    got = from_blocks(to_blocks(x, name), name)
    largest = np.abs(x).reshape(3, 32).max(axis=1).repeat(32)
    bound = {"F32": 0, "F16": 2.0**-11, "Q8_0": 0.5 / 127 + 2.0**-11}[name]  # a scale is a float16
    assert (np.abs(got - x) <= bound * largest + 1e-7 * (name == "F16")).all()


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_are_the_peers_bytes(name):
    gguf = pytest.importorskip("gguf")
    x = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    want = gguf.quants.quantize(x, getattr(gguf.GGMLQuantizationType, name))
    assert to_blocks(x, name).tobytes() == want.tobytes()


def test_other_types_cannot_be_written():
    with pytest.raises(ValueError, match="as F32, F16, Q8_0: got Q4_K"):
        to_blocks(np.zeros(256, np.float32), "Q4_K")
