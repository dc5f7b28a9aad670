"""GGUF files: ours and the `gguf` package's, read by both; and files that nobody should believe."""

import struct

import numpy as np
import pytest

from minillm.interop import gguf as reader
from minillm.interop.blocks import BLOCKS, NUMBER
from minillm.interop.gguf import read_gguf
from minillm.interop.gguf_writer import write_gguf

METADATA = {
    "general.architecture": "llama", "count": 7, "share": 0.5, "yes": True, "no": False,
    "words": ["a", "", "ü🙂"], "kinds": np.array([1, 3, -2]),
}  # fmt: skip


def arrays(seed=0):
    generator = np.random.default_rng(seed)
    shapes = {"matrix": (3, 64), "narrow": (5, 7), "vector": (64,)}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(("kind", "bound"), [("F32", 0), ("F16", 2e-3), ("Q8_0", 2e-2)])
def test_what_is_written_is_read_again(path, kind, bound):
    write_gguf(path, METADATA, arrays(), kind)
    file = read_gguf(path)
    assert file.metadata.keys() == METADATA.keys()
    assert all(np.array_equal(file.metadata[key], METADATA[key]) for key in METADATA)
    assert file.tensors["matrix"].kind.name == kind
    assert file.tensors["narrow"].kind.name == ("F32" if kind == "Q8_0" else kind)  # rows of 7 make no blocks
    assert file.tensors["vector"].kind.name == "F32"
    for name, array in arrays().items():
        assert np.abs(file.tensors[name].array() - array).max() <= bound
        assert file.tensors[name].shape == array.shape


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_the_peer_reads_ours(path, kind):
    gguf = pytest.importorskip("gguf")
    write_gguf(path, METADATA, arrays(), kind)
    theirs = gguf.GGUFReader(path)
    assert theirs.fields["general.architecture"].contents() == "llama"
    assert [theirs.fields[key].contents() for key in ("count", "share", "yes", "words", "kinds")] == [
        7, 0.5, True, METADATA["words"], [1, 3, -2],
    ]  # fmt: skip
    ours = read_gguf(path)
    for tensor in theirs.tensors:
        assert tuple(tensor.shape[::-1]) == ours.tensors[tensor.name].shape
        assert tensor.data.tobytes() == ours.tensors[tensor.name].raw.tobytes()


@pytest.mark.parametrize("name", sorted(NUMBER))
def test_we_read_the_peers(path, name):
    gguf = pytest.importorskip("gguf")
    kind, block = getattr(gguf.GGMLQuantizationType, name), BLOCKS[NUMBER[name]]
    raw = np.random.default_rng(0).integers(0, 100, (3, 512 // block.size * block.bytes), np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("words", ["one", "two"])
    writer.add_tensor("first", np.ones((5, 3), np.float32))
    writer.add_tensor("tensor", raw, raw_dtype=kind)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    file = read_gguf(path)
    assert file.metadata["words"] == ["one", "two"]
    assert file.metadata["numbers"].tolist() == [1, 2, 3]
    assert file.tensors["tensor"].shape == (3, 512)
    want = gguf.quants.dequantize(raw, kind)
    np.testing.assert_allclose(file.tensors["tensor"].array(), want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


def string(text):
    return struct.pack("<Q", len(text)) + text


def info(name=b"x", dimensions=(32,), kind=0, offset=0):
    return string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def file_of(entries=(), infos=(), data=256, version=3, magic=b"GGUF", counts=None):
    tensors, pairs = counts or (len(infos), len(entries))
    head = magic + struct.pack("<IQQ", version, tensors, pairs) + b"".join(entries) + b"".join(infos)
    return head + bytes(-len(head) % 32 + data)


def entry(key, kind, value=b""):
    return string(key) + struct.pack("<I", kind) + value


HUGE = 1 << 62
WRONG = {
    "begin with GGUF": file_of(magic=b"GGML"),
    "its version is 9": file_of(version=9),
    "hold 4611686018427387904 entries": file_of(counts=(0, HUGE)),
    "hold 4611686018427387904 tensors": file_of(counts=(HUGE, 0)),
    "4611686018427387904 bytes are wanted": file_of([struct.pack("<Q", HUGE)]),
    "of type 77, which is unknown": file_of([entry(b"k", 77, bytes(8))]),
    "an array of type 9 cannot": file_of([entry(b"k", 9, struct.pack("<IQ", 9, 1))]),
    "4611686018427387904 strings": file_of([entry(b"k", 9, struct.pack("<IQ", 8, HUGE))]),
    "18446744073709551612 bytes are wanted": file_of([entry(b"k", 9, struct.pack("<IQ", 4, HUGE - 1))]),
    "entry 'k' occurs twice": file_of([entry(b"k", 4, bytes(4))] * 2),
    "can't decode byte 0xff": file_of([entry(b"\xff", 4, bytes(4))]),
    "a power of 2 of at least 8: got 0": file_of([entry(b"general.alignment", 4, bytes(4))]),
    "a power of 2 of at least 8: got 'x'": file_of([entry(b"general.alignment", 8, string(b"x"))]),
    "has 5 dimensions": file_of(infos=[info(dimensions=(1,) * 5)]),
    "has 0 dimensions": file_of(infos=[info(dimensions=())]),
    "of type 99; understood are F32": file_of(infos=[info(kind=99)]),
    "rows of whole blocks of 32": file_of(infos=[info(dimensions=(33,), kind=8)]),
    r"of \(0,\)": file_of(infos=[info(dimensions=(0,))]),
    "is it cut off": file_of(infos=[info(dimensions=(65,))]),
    "ends at byte": file_of(infos=[info(dimensions=(HUGE, HUGE))]),
    "tensor 'x' occurs twice": file_of(infos=[info(), info(offset=128)]),
    "not aligned": file_of(infos=[info(offset=8)]),
    "in another's place": file_of(infos=[info(), info(b"y", offset=96)]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_a_file_says_is_checked_before_it_is_used(path, message):
    path.write_bytes(WRONG[message])
    with pytest.raises(ValueError, match=message) as error:
        read_gguf(path)
    assert str(path) in str(error.value)


def test_a_file_cut_anywhere_is_refused(path):
    write_gguf(path, METADATA, arrays(), "F32")
    whole = path.read_bytes()
    for length in range(0, len(whole) - 31, 5):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.gguf"):
            read_gguf(path)


def test_strings_are_counted(path, monkeypatch):
    monkeypatch.setattr(reader, "MOST_STRINGS", 5)
    write_gguf(path, METADATA, {})
    with pytest.raises(ValueError, match="more than 5 strings"):
        read_gguf(path)


def test_an_entry_must_be_there_and_of_its_type(path):
    write_gguf(path, METADATA, {})
    file = read_gguf(path)
    assert file.get("count", int) == 7
    assert file.get("absent", int, 3) == 3
    for key, message in {"absent": "no entry 'absent'", "share": "unexpected type", "yes": "unexpected type"}.items():
        with pytest.raises(ValueError, match=message):
            file.get(key, int)
