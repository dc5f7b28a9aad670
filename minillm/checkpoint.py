"""Checkpoints: one safetensors file holds everything, and one rename puts it in place.

Model, moments, counters and generator states in a single file can never be of different steps, and a crash at any
moment leaves the last complete file under its name.  Nothing is pickled: reading a file runs no code from it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from minillm.atomic import write_atomically
from minillm.tree import Packed

KEY = "minillm"  # where our JSON lies in the file's metadata; one string, as safetensors shuffles the order of many
SHOWN = 10  # differences that an error lists


def save(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write `arrays` (any shapes, numeric dtypes up to 64 bits) and `meta` (what JSON can hold) to `path`, atomically.

    ValueError for a dtype or a meta value that cannot be stored, OSError when the disk refuses; `path` is then as it
    was.  Needs memory for two more copies of the arrays.
    """
    write_atomically(Path(path), _encode(arrays, meta))


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays (fresh and writable, sorted by name) and the meta that `save` was given.

    FileNotFoundError when there is none; ValueError when the file is damaged or was not written by `save`.
    """
    path = Path(path)
    if not path.is_file():
        others = sorted(other.name for other in path.parent.glob("*.safetensors"))
        hint = f"that folder has {', '.join(others)}" if others else "was the run saved, and is the folder right?"
        raise FileNotFoundError(f"no checkpoint at {path}; {hint}")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            meta = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (safetensors.SafetensorError, TypeError) as error:  # TypeError: a dtype that NumPy lacks
        raise ValueError(f"{path} is damaged, cut short or not a checkpoint: {error}") from error
    if KEY not in meta:
        raise ValueError(f"{path} is a safetensors file but not a checkpoint: its metadata has no {KEY!r} entry")
    try:
        return arrays, json.loads(meta[KEY])
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} has damaged metadata: {error}") from error


def copy_into(packed: Packed, arrays: Mapping[str, np.ndarray], prefix: str = "") -> None:
    """Copy each `arrays[prefix + name]` into the array `name` of `packed`, after `check_matches`: all or nothing."""
    check_matches(packed, arrays, prefix)
    for name, array in packed.named().items():
        array[...] = arrays[prefix + name]


def check_matches(packed: Packed, arrays: Mapping[str, np.ndarray], prefix: str = "") -> None:
    """ValueError that lists the differences unless the arrays named `prefix...` are exactly those of `packed`.

    Names, shapes and dtypes must agree.  Names that start otherwise belong to someone else and are not looked at.
    """
    expected = {prefix + name: array for name, array in packed.named().items()}
    found = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    faults = [f"{name} is missing" for name in expected.keys() - found.keys()]
    faults += [f"{name} is unexpected" for name in found.keys() - expected.keys()]
    faults += [
        f"{name} must be {want.dtype} {want.shape}: got {found[name].dtype} {found[name].shape}"
        for name, want in expected.items()
        if name in found and (want.shape, want.dtype) != (found[name].shape, found[name].dtype)
    ]
    if faults:
        more = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
        lines = "\n  ".join(sorted(faults)[:SHOWN] + more)
        raise ValueError(f"the arrays do not fit (saved with another config?):\n  {lines}")


def _encode(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bytes:
    """The bytes of the file."""
    # safetensors writes the raw memory of an array whatever its strides, so a transposed one would come back scrambled.
    dense = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        return safetensors.numpy.save(dense, {KEY: json.dumps(dict(meta))})
    except TypeError as error:
        raise ValueError(f"checkpoint meta must be what JSON can hold: {error}") from error
    except safetensors.SafetensorError as error:
        dtypes = {name: str(array.dtype) for name, array in dense.items()}
        raise ValueError(f"an array cannot be stored in safetensors: {error}; got {dtypes}") from error
