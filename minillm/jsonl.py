"""JSON Lines: one JSON value a line, faults named by file and line."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from minillm.atomic import write_atomically

T = TypeVar("T")


def read_rows(path: Path, parse: Callable[[Any], T]) -> list[T]:
    """parse(value) of each line that is not blank.  ValueError names file and line of the first fault."""
    path, rows = Path(path), []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}; convert it first") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(parse(json.loads(line)))
        except (ValueError, RecursionError) as error:  # what json finds is a ValueError too
            raise ValueError(f"{path}:{number}: {error}") from error
    return rows


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """The file is there whole or not at all."""
    write_atomically(Path(path), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
