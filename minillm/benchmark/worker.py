"""One side, in a process of its own:  python -m minillm.benchmark.worker SIDE THREADS

Two libraries' thread pools in one process would fight for the cores; here they take turns.  Orders come as lines of
JSON on stdin, where an idle worker sleeps; each gets one line back.

    {"prepare": {...}, "kind": "Training"}   make the work's runner and warm it up; answers its proof and seconds a step
    {"go": 3}                                do it 3 times; answers the mean seconds
    {"ceilings": true}                       answers what the machine can do at this moment
    {"peak": true}                           answers the most memory this process ever held, in MiB

What a side cannot do it answers with {"skip": reason}.  Any other failure ends the process with a traceback on stderr.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minillm import threads
from minillm.benchmark.ceilings import Probe
from minillm.benchmark.work import COMPILED, EAGER, KINDS, Unavailable
from minillm.settings import from_mapping

WARM_UP = 3  # steps: compilers compile at the first, and at the second if a shape changed
WARM_SECONDS = 4.0  # the third is left out when two took longer
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in a unit of ru_maxrss


class Performer:
    """What a worker holds between orders."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.step: Callable[[], tuple[float, Any]] | None = None

    def prepare(self, kind: str, values: dict[str, Any]) -> dict[str, Any]:
        """Make the runner, warm it up."""
        self.step = None  # the work before gives its memory back first
        work: Any = from_mapping(KINDS[kind], values)
        try:
            self.step = _runner(work, self.side)
            began, done = time.perf_counter(), [self.step(), self.step()]
            while len(done) < WARM_UP and time.perf_counter() - began < WARM_SECONDS:
                done.append(self.step())
        except Unavailable as reason:
            return {"skip": str(reason)}
        return {"proof": done[0][1], "seconds": done[-1][0]}

    def go(self, times: int) -> dict[str, Any]:
        """Mean seconds of `times` steps."""
        assert self.step is not None, "go before prepare"
        return {"seconds": sum(self.step()[0] for _ in range(times)) / times}


def _runner(work: Any, side: str) -> Callable[[], tuple[float, Any]]:
    if side in (EAGER, COMPILED):
        from minillm.benchmark import peer

        return peer.runner(work, side)
    from minillm.benchmark import ours

    return ours.runner(work, side)


def peak_mib() -> float:
    """The most memory this process ever held, its libraries included.

    Linux's ru_maxrss begins at the size of the parent that started the process, so its own table is read instead.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / 2**20


def main(side: str, num_threads: int) -> None:
    """Obey orders until stdin ends, which it also does when the parent dies."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    threads.set_num_threads(num_threads)
    performer, probe = Performer(side), None
    for line in sys.stdin:
        order = json.loads(line)
        if "prepare" in order:
            answer = performer.prepare(order["kind"], order["prepare"])
        elif "go" in order:
            answer = performer.go(order["go"])
        elif "ceilings" in order:
            probe = Probe() if probe is None else probe
            answer = asdict(probe.measure(repeats=1))
        else:
            answer = {"peak_mib": peak_mib()}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
