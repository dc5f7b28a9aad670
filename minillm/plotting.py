"""Pictures of a run.  matplotlib is loaded only when something is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INK, ACCENT, FLOOR = "#4878a8", "#c8553d", "#3a7d44"
COLOURS = (INK, ACCENT, FLOOR, "#b8a037", "#7d5a9b", "#777777")


def draw_loss(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Training and validation loss by step, with the entropy floor where it is known."""
    figure, axes = _figure("step", "loss (nats per token)")
    train = [(r["step"], r["loss"]) for r in rows if r.get("loss") is not None]
    val = [(r["step"], r["val_loss"]) for r in rows if "val_loss" in r]
    floors = [r["floor"] for r in rows if r.get("floor") is not None]
    if train:
        axes.plot(*zip(*train), color=INK, linewidth=0.8, alpha=0.7, label="training batch")
    if val:
        axes.plot(*zip(*val), color=ACCENT, marker="o", markersize=4, label=f"validation: {val[-1][1]:.3f} at the end")
    if floors:
        label = f"entropy floor: {floors[-1]:.3f}, the best any model can do"
        axes.axhline(floors[-1], color=FLOOR, linestyle="--", label=label)
    values = [loss for _, loss in train + val]
    if values and min(values) > 0 and max(values) > 4 * min(values):
        axes.set_yscale("log")
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10) if min(values + floors) * 0.8 <= t <= max(values) * 1.2]
        axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def draw_gradient_norm(rows: Sequence[dict[str, Any]], path: Path, clip_norm: float = 0.0) -> None:
    """Gradient norm before clipping, by step; skipped steps are marked."""
    figure, axes = _figure("step", "gradient norm (before clipping)")
    steps = [(r["step"], r["norm"]) for r in rows if r.get("norm") is not None]
    if steps:
        axes.plot(*zip(*steps), color=INK, linewidth=0.8)
        axes.set_yscale("log")
    for row in rows:
        if row.get("skipped"):
            axes.axvline(row["step"], color=ACCENT, linewidth=0.8)
    if clip_norm:
        axes.axhline(clip_norm, color=ACCENT, linestyle="--", linewidth=1, label=f"clipped to {clip_norm:g}")
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def draw_validation(runs: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Validation loss by step of several runs, given by the rows of their metrics."""
    figure, axes = _figure("step", "validation loss (nats per token)")
    for number, (name, rows) in enumerate(runs.items()):
        points = [(r["step"], r["val_loss"]) for r in rows if "val_loss" in r]
        if points:
            label = f"{name}: {points[-1][1]:.3f} at the end"
            axes.plot(*zip(*points), color=COLOURS[number % len(COLOURS)], marker="o", markersize=4, label=label)
    axes.set_yscale("log")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def draw_scores(runs: Mapping[str, Mapping[str, Any]], path: Path, what: str) -> None:
    """Bars by task, a colour for each run, with two standard errors either way.

    runs: run -> task -> (mean, standard error, ...).  what: of what the mean is, `right` for shares of right answers.
    """
    tasks = list(dict.fromkeys(task for run in runs.values() for task in run))
    figure, axes = _figure("", what, height=1.2 + 0.13 * len(tasks) * (len(runs) + 1))
    thickness = 0.8 / len(runs)
    for number, (name, run) in enumerate(runs.items()):
        known = [i for i, task in enumerate(tasks) if task in run]
        places = [i + (number - (len(runs) - 1) / 2) * thickness for i in known]
        means, errors = ([run[tasks[i]][field] for i in known] for field in (0, 1))
        axes.barh(places, means, thickness, xerr=[2 * e for e in errors], color=COLOURS[number % len(COLOURS)],
                  error_kw={"elinewidth": 0.8}, label=name)  # fmt: skip
    axes.set_yticks(range(len(tasks)), tasks)
    axes.invert_yaxis()
    axes.set(xlabel=f"{what}, and two standard errors", ylabel="")
    if what == "right":
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter("{x:.0%}")
    figure.legend(loc="outside lower center", frameon=False, ncols=2 if len(runs) < 5 else 3)
    figure.savefig(path, dpi=150)


def draw_sizes(points: Mapping[str, tuple[float, float]], path: Path) -> None:
    """Perplexity by size, a point for each way of keeping a model: name -> (MiB, perplexity)."""
    figure, axes = _figure("MiB", "perplexity", height=4.5)
    for number, (name, (size, value)) in enumerate(points.items()):
        axes.plot(size, value, "o", color=COLOURS[number % len(COLOURS)], label=f"{name}: {value:.2f}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def _figure(xlabel: str, ylabel: str, height: float = 4) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes
