"""How the time of a training step grows: with the length of the context, and with the number of parameters.

A law  seconds = a * x^b  is a straight line of slope b where both axes are logarithmic.  The FLOP count has a slope of
its own; time that grows more slowly has costs that do not grow, time that grows faster meets another limit.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minillm.benchmark.results import Entry, Results
from minillm.benchmark.roofline import GREY, marks_of
from minillm.benchmark.work import Training
from minillm.config import ModelConfig
from minillm.estimate import num_parameters

TOKENS = 2048  # of every step, however they are cut into rows
LENGTHS, DEPTHS = (64, 128, 256, 512, 1024), (2, 4, 6, 8, 12)
LENGTH, DEPTH = "context", "depth"  # the two sweeps


def sweeps(lengths: Sequence[int] = LENGTHS, depths: Sequence[int] = DEPTHS, tokens: int = TOKENS) -> list[Training]:
    """A model of depth 4 at every length, and rows of 128 tokens at every depth; always as many tokens."""

    def step(name: str, depth: int, T: int) -> Training:
        model = ModelConfig.of_depth(depth, family="gpt2", vocab_size=512, context_len=T)
        return Training(name, model, tokens // T, -(-tokens // T // 2))

    return [step(f"{LENGTH} {T}", 4, T) for T in lengths] + [step(f"{DEPTH} {d}", d, min(128, tokens)) for d in depths]


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """b of the law y = a x^b that fits best: the slope of a line through the logarithms."""
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def sweep_of(results: Results, name: str) -> list[tuple[float, Entry]]:
    """The entries of one sweep with what was varied: tokens of context, or parameters."""
    found: list[tuple[float, Entry]] = []
    for entry in results.entries:
        work = entry.work
        assert isinstance(work, Training)
        if work.name.split()[0] == name and entry.measured:
            found.append((work.model.context_len if name == LENGTH else num_parameters(work.model), entry))
    return found


def draw(results: Results, path: Path) -> None:
    """One panel for each sweep: every side's time, the limit, and the exponents."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle("How the time of a training step grows, and the power laws that fit")
    labels = {LENGTH: "context T (tokens)", DEPTH: "parameters N"}
    top: Any = None
    for number, (name, label) in enumerate(labels.items()):
        sweep = sweep_of(results, name)
        axes = figure.add_subplot(1, 2, number + 1, xlabel=label, ylabel="milliseconds", xscale="log", sharey=top)
        top = top or axes
        axes.set_yscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        _draw_sweep(axes, results, sweep, "T" if name == LENGTH else "N")
        xs = [x for x, _ in sweep]
        axes.set_xticks(xs, [f"{x:,.0f}" if name == LENGTH else f"{x / 1e6:.1f}M" for x in xs])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.legend(frameon=False, loc="upper left")
    low, high = top.get_ylim()
    top.set_ylim(low, high * 2.5)  # room for the legends
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_sweep(axes: Any, results: Results, sweep: list[tuple[float, Entry]], letter: str) -> None:
    xs = [x for x, _ in sweep]
    for side, (mark, colour) in marks_of(s.side for s in sweep[0][1].measured).items():
        medians = [1e3 * s.median for _, entry in sweep for s in entry.measured if s.side == side]
        label = f"{side}: {letter}$^{{{exponent(xs, medians):.2f}}}$"
        axes.plot(xs, medians, color=colour, marker=mark, markersize=5, label=label)
    limits = [1e3 * results.predicted(entry.work) for _, entry in sweep]
    label = f"the products' FLOPs at the measured rate: {letter}$^{{{exponent(xs, limits):.2f}}}$"
    axes.plot(xs, limits, color=GREY, linestyle="--", label=label)
