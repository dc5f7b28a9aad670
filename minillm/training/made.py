"""What a teacher made for a run and left on disk: told by a note, so that no other teacher's is taken for it.

The note is written last.  Without it whatever lies there was not finished, and is made anew.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from minillm.atomic import write_atomically
from minillm.model.model import Model
from minillm.settings import to_mapping


def digest_of(teacher: Model, settings: Mapping[str, Any], texts: Iterable[bytes]) -> str:
    """16 hex digits of all that decides what is made: the teacher, the settings and what it reads."""
    told = json.dumps([to_mapping(teacher.config), dict(settings)], sort_keys=True)
    digest = hashlib.sha256(told.encode())
    digest.update(teacher.weights.vector.tobytes())
    for text in texts:
        digest.update(hashlib.sha256(text).digest())  # of equal length, so that borders count
    return digest.hexdigest()[:16]


def is_made(note: Path, digest: str) -> bool:
    """Whether it is there, whole.  ValueError if what is there is something else."""
    if not note.exists():
        return False
    try:
        found = json.loads(note.read_text(encoding="utf-8"))["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{note} is damaged; delete {note.parent}, and it is made anew") from error
    if found != digest:
        raise ValueError(
            f"{note.parent} was made by another teacher, from other data or with other settings than this run has; put "
            f"those back, or delete {note.parent}, and it is made anew"
        )
    return True


def write_note(note: Path, digest: str, settings: Mapping[str, Any]) -> None:
    """All is made.  settings: for whoever looks."""
    write_atomically(note, (json.dumps(dict(settings) | {"digest": digest}, indent=2) + "\n").encode())
