"""Several sides do the same work in turn, each in a process of its own; what comes out is every turn's seconds."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from minillm.benchmark.ceilings import Ceilings
from minillm.benchmark.work import Work

BURST = 0.25  # seconds: a turn lasts at least about this long, so that waking up and cold caches do not count
PAUSE = 0.02  # seconds between turns: some libraries' threads spin a few milliseconds before they sleep
REFEREE = "ceilings"  # the worker that measures the machine itself, once a round
SAME = 1e-3  # how far, relatively, the first losses of two sides may differ


@dataclass
class Samples:
    """One side's turns at one piece of work."""

    side: str
    seconds: list[float] = field(default_factory=list)
    """Of a step: the mean within each turn."""
    peak_mib: float = 0.0
    """The most memory its process ever held."""
    skipped: str = ""
    """Why it did not take part."""
    proof: Any = None
    """The result of its first step: a loss, tokens, or nothing."""

    @property
    def median(self) -> float:
        """Seconds of a typical step."""
        return median(self.seconds)

    @property
    def best(self) -> float:
        """Seconds of the least disturbed step."""
        return min(self.seconds)

    def ratio_to(self, other: "Samples") -> float:
        """How many times as long as the other: median over rounds, in each of which both took a turn."""
        return median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))

    def agrees_with(self, other: "Samples") -> bool:
        """Whether the first step's results are the same: tokens exactly, losses closely."""
        if isinstance(self.proof, float) and isinstance(other.proof, float):
            return math.isclose(self.proof, other.proof, rel_tol=SAME)
        return self.proof == other.proof


class Worker:
    """The process of one side; see worker.py for what it is told and answers."""

    def __init__(self, side: str, num_threads: int, module: str = "minillm.benchmark.worker") -> None:
        self.side = side
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, side, str(num_threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, text=True, bufsize=1,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends all
            env=os.environ | {"OMP_NUM_THREADS": str(num_threads), "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip

    def ask(self, **order: Any) -> dict[str, Any]:
        """Give an order and wait for the answer.  RuntimeError shows the worker's stderr if it died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self.process.wait()
            self.stderr.seek(0)
            raise RuntimeError(f"the worker of {self.side!r} ended with code {code}:\n{self.stderr.read().strip()}")
        return json.loads(answer)

    def kill(self) -> None:
        """End the process and those it started."""
        with suppress(ProcessLookupError):  # it ended before
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            with suppress(BrokenPipeError):  # an order that nobody read any more
                stream.close()  # type: ignore[union-attr]


@contextmanager
def workers(sides: Sequence[str], num_threads: int) -> Iterator[list[Worker]]:
    """One worker per side, and the referee last; all are gone at the end, whatever happens."""
    started: list[Worker] = []
    try:
        for side in (*sides, REFEREE):
            started.append(Worker(side, num_threads))  # noqa: PERF401  one by one: those before a failure are ended
        yield started
    finally:
        for worker in started:
            worker.kill()


def race(work: Work, started: Sequence[Worker], repeats: int, bar: Any) -> tuple[list[Samples], list[Ceilings]]:
    """Every side does `work` once a round; the order turns by one place each round.  `bar` is tqdm's.

    Rounds are numbered alike for all sides, so sample r of one pairs with sample r of another, and with what the
    machine could do in that round: other programs come and go.
    """
    *sides, referee = started
    samples = {worker.side: Samples(worker.side) for worker in sides}
    times: dict[Worker, int] = {}
    for worker in sides:
        bar.set_description(f"{work.name}: {worker.side} warms up")
        ready = worker.ask(prepare=asdict(work), kind=type(work).__name__)
        if "skip" in ready:
            samples[worker.side].skipped = ready["skip"]
            bar.update(repeats)
            continue
        samples[worker.side].proof = ready["proof"]
        times[worker] = max(1, math.ceil(BURST / max(ready["seconds"], 1e-7)))
    racing, rounds = list(times), []  # type: tuple[list[Worker], list[Ceilings]]
    bar.set_description(f"{work.name}: racing")
    for number in range(repeats if racing else 0):
        turn = number % len(racing)
        for worker in racing[turn:] + racing[:turn]:
            time.sleep(PAUSE)
            samples[worker.side].seconds.append(worker.ask(go=times[worker])["seconds"])
            bar.update()
        time.sleep(PAUSE)
        rounds.append(Ceilings(**referee.ask(ceilings=True)))
    for worker in racing:
        samples[worker.side].peak_mib = worker.ask(peak=True)["peak_mib"]
    return list(samples.values()), rounds
