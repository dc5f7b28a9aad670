"""Writing a file so that a crash at any moment leaves the old one or the new one, whole."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at `path`, making its folder if need be.  OSError when the disk refuses; `path` is as it was.

    The bytes go to `<path>.tmp` and reach the disk before the rename; what an earlier crash left there is overwritten.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else the rename may reach the disk before the bytes do
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Bring a rename in `folder` to the disk.  Windows cannot open a folder and needs no such thing."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
