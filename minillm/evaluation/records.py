"""Records of an evaluation on disk, which count again without the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minillm.evaluation.exact_match import Answer
from minillm.evaluation.multiple_choice import Choice
from minillm.evaluation.pass_at_k import Samples
from minillm.evaluation.perplexity import Text
from minillm.evaluation.score import Record
from minillm.jsonl import read_rows, write_rows

KINDS = {"answer": Answer, "samples": Samples, "choice": Choice, "text": Text}


def write_records(path: Path, records: Sequence[Record]) -> None:
    """One JSON object a line: its kind, its fields, and `value` for the reader."""
    names = {kind: name for name, kind in KINDS.items()}
    write_rows(path, ({"kind": names[type(r)]} | r._asdict() | {"value": r.value} for r in records))  # type: ignore[attr-defined]


def read_records(path: Path) -> list[Any]:
    """The inverse of `write_records`; ValueError names file and line of a fault.  `value` is found anew."""
    return read_rows(path, _parse)


def _parse(row: Any) -> Any:
    if not isinstance(row, dict) or row.get("kind") not in KINDS:
        raise ValueError(f'not a record, which has a "kind": {", ".join(KINDS)}')
    kind = KINDS[row["kind"]]
    missing = [field for field in kind._fields if field not in row]  # type: ignore[attr-defined]
    if missing:
        raise ValueError(f"not a record: a {row['kind']} has {', '.join(missing)}")
    return kind(*(row[field] for field in kind._fields))  # type: ignore[attr-defined]
