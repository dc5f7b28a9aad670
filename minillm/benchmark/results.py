"""What a benchmark found, and the machine it was found on: everything that the tables show, as one JSON file."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from minillm import threads
from minillm.atomic import write_atomically
from minillm.benchmark.ceilings import Ceilings
from minillm.benchmark.race import Samples
from minillm.benchmark.work import KINDS, FineTuning, Training, Work
from minillm.settings import from_mapping

LIBRARIES = ("numpy", "numba", "torch")


@dataclass
class Entry:
    """One piece of work and every side's samples; ours is the first."""

    work: Work
    samples: list[Samples]
    rounds: list[Ceilings] = field(default_factory=list)
    """What the machine could do in each round."""

    @property
    def measured(self) -> list[Samples]:
        """The sides that took part."""
        return [s for s in self.samples if s.seconds]


@dataclass
class Results:
    """A whole command's outcome."""

    command: str
    ceilings: Ceilings
    entries: list[Entry] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """Whatever else a command found, in plain values."""
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def predicted(self, work: Work) -> float:
        """The least seconds this machine needs for one step of `work`; training is bound by its products alone."""
        return _least(self.ceilings, work)

    def limit(self, entry: Entry) -> float:
        """The same, for what the machine could do in a typical round: it is not always as fast as at its best."""
        return median(_least(c, entry.work) for c in entry.rounds) if entry.rounds else self.predicted(entry.work)

    def share(self, entry: Entry, side: Samples) -> float:
        """Limit / measured, both of the same round; of a typical round."""
        if not entry.rounds:
            return self.predicted(entry.work) / side.median
        return median(_least(c, entry.work) / s for c, s in zip(entry.rounds, side.seconds, strict=True))

    def save(self, path: Path) -> None:
        """Write everything as JSON; `load` undoes it."""
        values = {
            "command": self.command, "date": self.date, "machine": self.machine, "ceilings": asdict(self.ceilings),
            "entries": [self._entry(entry) for entry in self.entries], "extra": self.extra,
        }  # fmt: skip
        write_atomically(path, (json.dumps(values, indent=1) + "\n").encode())

    def _entry(self, entry: Entry) -> dict[str, Any]:
        work = entry.work
        prediction = {"flops": work.flops, "bytes": work.bytes, "seconds": self.predicted(work)}
        samples = [asdict(s) | ({"median": s.median, "best": s.best} if s.seconds else {}) for s in entry.samples]
        return {
            "kind": type(work).__name__, "work": asdict(work), "predicted": prediction, "samples": samples,
            "rounds": [asdict(c) for c in entry.rounds],
        }  # fmt: skip


def load(path: Path) -> Results:
    """What `save` wrote."""
    values = json.loads(path.read_text(encoding="utf-8"))
    entries = []
    for entry in values["entries"]:
        samples = [{k: v for k, v in s.items() if k not in ("median", "best")} for s in entry["samples"]]
        work: Any = from_mapping(KINDS[entry["kind"]], entry["work"])
        rounds = [Ceilings(**c) for c in entry["rounds"]]
        entries.append(Entry(work, [Samples(**s) for s in samples], rounds))
    ceilings = Ceilings(**values["ceilings"])
    return Results(values["command"], ceilings, entries, values["extra"], values["machine"], values["date"])


def _least(ceilings: Ceilings, work: Work) -> float:
    return ceilings.seconds(work.flops, 0 if isinstance(work, Training | FineTuning) else work.bytes)


def machine() -> dict[str, Any]:
    """What the numbers depend on: the processor, the cores and threads in use, the versions."""
    versions: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": _cpu_model(), "cores": threads.available_cores(), "threads": threads.num_threads(),
        "blas": _blas(), "system": platform.platform(), "python": platform.python_version(), **versions,
    }  # fmt: skip


def geometric_mean(numbers: Sequence[float]) -> float:
    """The mean of ratios: one that is doubled and one that is halved cancel."""
    return float(np.exp(np.mean(np.log(numbers))))


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _blas() -> str:
    """The library that multiplies NumPy's matrices."""
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{found['name']} {found['version']}"
