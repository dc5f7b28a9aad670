"""Machine code kept on disk by numba, under a key that cannot be stale."""

import hashlib
from pathlib import Path
from typing import Any


def fingerprint(*folders: Path) -> str:
    """Of the source of every Python file in the folders.  numba itself looks only at a function's own file, not at its
    callees'."""
    sources = [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()


def keep(compiled: Any, stamp: str) -> Any:
    """Let a numba function or callback keep its machine code, beside its source or in the user's cache folder.

    The key is numba's version, the processor, and `stamp`.  Returns `compiled`.
    """
    compiled.enable_caching()
    compiled._cache._cache_file._source_stamp = stamp
    return compiled
