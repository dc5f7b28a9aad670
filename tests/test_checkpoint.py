"""Checkpoints: what goes in comes out, and no crash costs the last good one."""

import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy

from minillm import checkpoint
from minillm.checkpoint import check_matches, copy_into, load, save
from minillm.tree import Tree, pack

META = {
    "step": 3,
    "loss": float("inf"),
    "state": {"inc": 2**127 + 1},
    "order": [2, 0],
    "text": 'naïve "x"\n',
    "no": None,
}


def arrays_of(number):
    """A few arrays that all tell `number`."""
    a = np.full((5, 3), number, np.float32)
    return {"weights.a": a, "mean.a": np.full(7, number), "ids": np.full(2, number, np.int64)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "model.safetensors"


def test_arrays_and_meta_come_back_as_they_were(path):
    rng = np.random.default_rng(7)
    arrays = {
        "z": rng.standard_normal((5, 33)).astype(np.float32),
        "float64": rng.standard_normal(3),
        "half": rng.standard_normal(3).astype(np.float16),
        "bits": rng.integers(0, 2**64, 4, np.uint64),
        "bool": np.array([True, False, True]),
        "special": np.array([np.nan, np.inf, -0.0], np.float32),
        "empty": np.zeros((0, 3)),
        "scalar": np.array(3.5),
    }
    save(path, arrays, META)
    got, meta = load(path)
    assert meta == META
    assert list(got) == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array, strict=True)
    assert np.signbit(got["special"][2])


@pytest.mark.parametrize(
    "change", [np.asfortranarray, np.transpose, lambda a: a[:, ::2], lambda a: a[::-1], lambda a: a.astype(">f4")]
)
def test_strided_and_foreign_endian_arrays_come_back_as_they_were(path, change):
    array = change(np.arange(15, dtype=np.float32).reshape(5, 3))
    save(path, {"a": array}, {})
    np.testing.assert_array_equal(load(path)[0]["a"], array)


def test_canary_safetensors_itself_scrambles_strided_arrays():
    """If this fails, safetensors has mended it and the copy in `save` can go."""
    array = np.arange(6.0).reshape(2, 3).T
    assert (safetensors.numpy.load(safetensors.numpy.save({"a": array}))["a"] != array).any()


def test_loaded_arrays_are_writable_and_no_longer_tied_to_the_file(path):
    save(path, arrays_of(1), {})
    arrays, _ = load(path)
    save(path, arrays_of(2), {})
    arrays["mean.a"] += 1
    assert (arrays["mean.a"] == 2).all()
    assert (arrays["weights.a"] == 1).all()
    assert (load(path)[0]["mean.a"] == 2).all()


def test_the_same_state_gives_the_same_bytes(path):
    save(path, arrays_of(1), META)
    first = path.read_bytes()
    save(path, arrays_of(1), META)
    assert path.read_bytes() == first


def test_nothing_else_lies_in_the_folder_and_the_file_has_ordinary_permissions(path):
    save(path, arrays_of(1), META)
    assert os.listdir(path.parent) == [path.name]
    (path.parent / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "other").stat().st_mode)


def test_a_missing_file_is_told_with_a_hint(path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*model\.safetensors; was the run saved"):
        load(path)
    save(path, {}, {})
    with pytest.raises(FileNotFoundError, match=r"that folder has model\.safetensors"):
        load(path.with_name("modle.safetensors"))
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        load(path.parent)


def test_a_file_cut_short_anywhere_is_refused(path):
    save(path, arrays_of(1), META)
    data = path.read_bytes()
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match="is damaged, cut short or not a checkpoint"):
            load(path)
    path.write_bytes(data + b"x")
    with pytest.raises(ValueError, match="is damaged, cut short or not a checkpoint"):
        load(path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 a zip, or a pickle", b"\x80\x04." * 100, b"{}" * 20])
def test_a_file_that_is_no_safetensors_is_refused(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match="is damaged, cut short or not a checkpoint"):
        load(tmp_path / "x")


@pytest.mark.parametrize(("meta", "message"), [
    (None, "no 'minillm' entry"), ({"format": "pt"}, "no 'minillm' entry"), ({"minillm": "{"}, "damaged metadata"),
])  # fmt: skip
def test_safetensors_from_elsewhere_is_refused(tmp_path, meta, message):
    (tmp_path / "x").write_bytes(safetensors.numpy.save({"a": np.ones(2)}, meta))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "x")


def test_a_dtype_that_numpy_lacks_is_refused(tmp_path):
    header = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match=r"not a checkpoint: .*bfloat16"):
        load(tmp_path / "x")


def test_what_cannot_be_stored_is_told_and_the_old_file_stays(path):
    save(path, arrays_of(1), {"step": 1})
    with pytest.raises(ValueError, match=r"meta must be what JSON can hold: .*ndarray"):
        save(path, arrays_of(2), {"step": np.ones(2)})
    with pytest.raises(ValueError, match=r"cannot be stored in safetensors: .*'names': '<U1'"):
        save(path, {"names": np.array(["x"])}, {})
    assert load(path)[1] == {"step": 1}


@pytest.mark.parametrize("broken", ["os.fsync", "os.replace", "safetensors.numpy.save"])
def test_an_error_at_any_stage_leaves_the_last_good_file_and_no_rubbish(path, monkeypatch, broken):
    save(path, arrays_of(1), {"step": 1})

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broken, fail)
        with pytest.raises(OSError, match="No space left"):
            save(path, arrays_of(2), {"step": 2})
    assert os.listdir(path.parent) == [path.name]
    assert load(path)[1] == {"step": 1}
    assert (load(path)[0]["mean.a"] == 1).all()
    save(path, arrays_of(2), {"step": 2})
    assert load(path)[1] == {"step": 2}


def test_bytes_reach_the_disk_before_the_rename_and_the_folder_after(path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def note_sync(handle):
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        events.append("folder" if is_folder else f"{os.fstat(handle).st_size} bytes")
        fsync(handle)

    monkeypatch.setattr("os.fsync", note_sync)
    monkeypatch.setattr("os.replace", lambda a, b: (events.append("rename"), replace(a, b)))
    save(path, arrays_of(1), {})
    assert events == [f"{path.stat().st_size} bytes", "rename", "folder"]


def test_a_stale_temporary_file_is_never_loaded_and_the_next_save_clears_it(path):
    save(path, arrays_of(1), {"step": 1})
    stale = path.with_name(path.name + ".tmp")
    stale.write_bytes(b"half a checkpoint" * 1000)
    assert load(path)[1] == {"step": 1}
    save(path, arrays_of(2), {"step": 2})
    assert os.listdir(path.parent) == [path.name]
    assert load(path)[1] == {"step": 2}


KILLED = """
import sys, numpy as np
from pathlib import Path
from minillm.checkpoint import save
for number in range(1, 10**9):
    save(Path(sys.argv[1]), {name: np.full(100_000, number) for name in "abc"}, {"step": number})
    print(number, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_run_killed_at_any_moment_leaves_a_complete_file(path):
    reached = 0
    for num_saves, delay in ((1, 0.0), (2, 0.002), (3, 0.005), (1, 0.011), (2, 0.017)):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        told = [int(child.stdout.readline()) for _ in range(num_saves)][-1]  # so many saves are done
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        told = max([told, *map(int, child.communicate()[0].split())])
        arrays, meta = load(path)
        assert meta["step"] >= told
        assert all((array == meta["step"]).all() for array in arrays.values()), "arrays of different steps in one file"
        reached = max(reached, meta["step"])
    assert reached > 1, "never killed after a second save: the test proves nothing"


SHAPES = Tree(embed=(5, 3), blocks=[Tree(weight=(2, 3)), Tree(weight=(2, 3))])


def stored(prefix=""):
    shapes = {"embed": (5, 3), "blocks.0.weight": (2, 3), "blocks.1.weight": (2, 3)}
    return {prefix + name: np.full(shape, 4, np.float32) for name, shape in shapes.items()}


def test_copy_into_fills_every_array_and_no_padding():
    packed = pack(SHAPES)
    copy_into(packed, stored("weights.") | {"mean.embed": np.ones(9)}, "weights.")
    assert all((array == 4).all() for array in packed.named().values())
    assert packed.vector.sum() == 4 * packed.num_parameters


@pytest.mark.parametrize(("change", "message"), [
    ({"embed": None}, "embed is missing"),
    ({"extra": np.ones(1)}, "extra is unexpected"),
    ({"blocks.1.weight": np.ones((3, 2), np.float32)}, r".*1.weight must be float32 \(2, 3\): got float32 \(3, 2\)"),
    ({"blocks.1.weight": np.ones((1, 3), np.float32)}, r".*1.weight must be float32 \(2, 3\): got float32 \(1, 3\)"),
    ({"embed": np.ones((5, 3))}, r"embed must be float32 \(5, 3\): got float64 \(5, 3\)"),
])  # fmt: skip
def test_copy_into_refuses_what_does_not_fit_and_then_changes_nothing(change, message):
    packed = pack(SHAPES)
    arrays = {name: array for name, array in (stored() | change).items() if array is not None}
    with pytest.raises(ValueError, match=rf"saved with another config\?\):\n  {message}"):
        copy_into(packed, arrays)
    assert not packed.vector.any()


def test_all_faults_are_listed_but_not_without_end():
    with pytest.raises(
        ValueError, match=r"\n  blocks.0.weight is missing\n  .*1.weight is missing\n  embed is missing$"
    ):
        check_matches(pack(SHAPES), {})
    many = {f"extra{i}": np.ones(1) for i in range(50)}
    with pytest.raises(ValueError, match="and 40 more") as error:
        check_matches(pack(SHAPES), stored() | many)
    assert len(str(error.value).splitlines()) == checkpoint.SHOWN + 2


def test_a_tied_array_is_stored_once_and_stays_tied_after_loading(path):
    packed = pack(Tree(SHAPES, head=None))
    packed.tree.head = packed.tree.embed
    packed.tree.embed[...] = 3
    save(path, packed.named(), {})
    arrays, _ = load(path)
    assert "head" not in arrays
    packed.vector[...] = 0
    copy_into(packed, arrays)
    assert (packed.tree.head == 3).all()
    assert packed.tree.head is packed.tree.embed
