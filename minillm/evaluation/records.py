"""Records of an evaluation on disk, which count again without the model; two of them compared, question by question."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minillm.atomic import write_atomically
from minillm.evaluation.exact_match import Record

FIELDS = ("task", "messages", "expected", "answer")


class Difference(NamedTuple):
    """How much more often B is right than A, on the same questions, with a 95% confidence interval."""

    mean: float
    low: float
    high: float
    num: int


def write_records(path: Path, records: Sequence[Record]) -> None:
    """One JSON object a line: the fields of Record, and `correct` for the reader."""
    rows = (json.dumps(r._asdict() | {"correct": r.correct}, ensure_ascii=False) for r in records)
    write_atomically(Path(path), "".join(row + "\n" for row in rows).encode())


def read_records(path: Path) -> list[Record]:
    """The inverse of `write_records`; ValueError names file and line of a fault.  `correct` is found anew."""
    records = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            records.append(Record(*(row[field] for field in FIELDS)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: not a record, which has {', '.join(FIELDS)}: {error!r}") from error
    return records


def compare(a: Sequence[Record], b: Sequence[Record]) -> Difference:
    """mean of d_i = [B right on i] - [A right on i],  +- 1.96 sqrt(var(d) / n): paired, so what both find hard cancels.

    ValueError unless both answered the same questions in the same order, at least two.
    """
    if [(r.messages, r.expected) for r in a] != [(r.messages, r.expected) for r in b]:
        raise ValueError("the two evaluations asked different questions; run both with the same data, seed and number")
    n = len(a)
    if n < 2:
        raise ValueError(f"a comparison needs at least two questions: got {n}")
    d = [y.correct - x.correct for x, y in zip(a, b)]
    mean = sum(d) / n
    spread = 1.96 * math.sqrt(sum((x - mean) ** 2 for x in d) / (n - 1) / n)
    return Difference(mean, mean - spread, mean + spread, n)
