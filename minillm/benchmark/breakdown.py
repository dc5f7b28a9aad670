"""Where the time of one training step goes: op by op, on one thread, before and after the ops are made fast.

The model takes its ops from a namespace, so a namespace of the same functions with a clock around each is enough.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from minillm import backend
from minillm.benchmark.ours import model_of, optimizer_of, random_ids
from minillm.benchmark.results import Results
from minillm.benchmark.work import Training
from minillm.datasets.sampler import Batch
from minillm.plotting import ACCENT, FLOOR, INK
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient, split_rows

OPTIMIZER, BETWEEN = "optimizer", "Python between ops"
OTHER, SMALL = "other ops", 0.015  # ops that take less than this share of every step are drawn as one
PALETTE = (INK, ACCENT, FLOOR, "#d9a441", "#7a5c99", "#5aa5a5", "#b07a5a", "#9a9a4a", "#c98bb0")
REST = {OPTIMIZER: "#8c8c8c", BETWEEN: "#c4c4c4", OTHER: "#dddddd"}
Seconds = dict[str, float]  # by function


class Clock:
    """Adds up the seconds spent in each function it is put around."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}

    def around(self, name: str, function: Callable) -> Callable:
        """The same function, timed as `name`."""

        def timed(*inputs: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*inputs, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return timed

    def around_all(self, ops: Any) -> SimpleNamespace:
        """A backend with every function timed."""
        return SimpleNamespace(**{name: self.around(name, getattr(ops, name)) for name in ops.__all__})


class Profile:
    """One training step on one backend, ready to be taken apart."""

    def __init__(self, work: Training, name: str) -> None:
        self.work, self.clock = work, Clock()
        self.model = model_of(work.model, self.clock.around_all(backend.load(name)))
        self.grads = self.model.weights.zeros_like()
        self.batch = Batch(*random_ids(work.model, 2, work.batch, work.model.context_len))
        optimizer = optimizer_of(replace(self.model, ops=backend.load(name)))  # timed whole, not op by op
        self.step_optimizer = self.clock.around(OPTIMIZER, optimizer.step)

    def step(self) -> Seconds:
        """Seconds by function; what is in none of them is Python: the model's, and the training step's."""
        self.clock.seconds.clear()
        began = time.perf_counter()
        mean_gradient(self.model, split_rows(self.batch, self.work.micro), self.grads, next_token)
        self.step_optimizer(self.grads)
        whole = time.perf_counter() - began
        return self.clock.seconds | {BETWEEN: whole - sum(self.clock.seconds.values())}


def profile(work: Training, backends: Sequence[str], repeats: int, bar: Any) -> dict[str, Seconds]:
    """Median seconds by function, for each backend in turn.  Call it with one thread."""
    profiles = {name: Profile(work, name) for name in backends}
    taken: dict[str, list[Seconds]] = {name: [] for name in backends}
    for number in range(repeats + 1):
        for name, one in profiles.items():
            bar.set_description(f"{work.name}: {name}")
            seconds = one.step()
            if number:  # the first warms up
                taken[name].append(seconds)
            bar.update()
    return {name: {f: median(s[f] for s in steps) for f in steps[0]} for name, steps in taken.items()}


def by_op(seconds: Seconds) -> Seconds:
    """Forward and backward of an op together, the longest first."""
    grouped: Seconds = {}
    for function, value in seconds.items():
        op = function.removesuffix("_forward").removesuffix("_backward")
        grouped[op] = grouped.get(op, 0.0) + value
    return dict(sorted(grouped.items(), key=lambda item: -item[1]))


def draw(results: Results, path: Path) -> None:
    """A panel for each config, a bar for each backend, cut into ops; each piece with its name where there is room."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    profiles = {c: {b: by_op(s) for b, s in found.items()} for c, found in results.extra["profile"].items()}
    large = _large([ops for found in profiles.values() for ops in found.values()])
    colours = dict(zip([op for op in large if op not in REST], PALETTE * 2)) | REST
    num_bars = [len(found) for found in profiles.values()]
    figure = Figure(figsize=(10, 0.9 + 0.7 * len(profiles) + 0.75 * sum(num_bars)), layout="constrained")
    panels = figure.subplots(len(profiles), squeeze=False, height_ratios=num_bars)[:, 0]
    figure.suptitle("Where the time of a training step goes, on one thread")
    for axes, (config, found) in zip(panels, profiles.items()):
        axes.set_title(f"config {config}", loc="left", fontsize=10)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        _draw_bars(axes, {name: _merge_small(ops, large) for name, ops in found.items()}, colours)
    panels[-1].set_xlabel("milliseconds")
    handles = [Patch(color=colour) for colour in colours.values()]
    figure.legend(handles, list(colours), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_bars(axes: Any, found: dict[str, Seconds], colours: dict[str, str]) -> None:
    """One bar for each backend; pieces in the order of `colours`."""
    longest = 1e3 * max(sum(ops.values()) for ops in found.values())
    for y, ops in enumerate(found.values()):
        left = 0.0
        for op, colour in colours.items():
            width = 1e3 * ops.get(op, 0.0)
            axes.barh(y, width, 0.65, left, color=colour, edgecolor="white", linewidth=0.8)
            if width > 0.0085 * longest * len(op):
                ink = "black" if op in REST else "white"
                text = f"{op}\n{width:,.0f}"
                axes.text(left + width / 2, y, text, ha="center", va="center", fontsize=8, color=ink)
            left += width
        axes.text(left + 0.008 * longest, y, f"{left:,.0f} ms", va="center")
    axes.set_yticks(range(len(found)), list(found))
    axes.set(xlim=(0, 1.1 * longest), ylim=(len(found) - 0.5, -0.5))


def _large(steps: Sequence[Seconds]) -> list[str]:
    """The ops that take a visible share of some step, the largest share first."""
    shares: Seconds = {}
    for ops in steps:
        for op, seconds in ops.items():
            shares[op] = max(shares.get(op, 0.0), seconds / sum(ops.values()))
    return sorted((op for op, share in shares.items() if share > SMALL), key=lambda op: -shares[op])


def _merge_small(ops: Seconds, large: Sequence[str]) -> Seconds:
    kept = {op: s for op, s in ops.items() if op in large or op in REST}
    return kept | {OTHER: sum(ops.values()) - sum(kept.values())}
