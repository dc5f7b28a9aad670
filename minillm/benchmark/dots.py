"""The ops in one picture: a line for each, a dot for each side's time, and the least time that the machine allows."""

from pathlib import Path

from minillm.benchmark.results import Results
from minillm.benchmark.roofline import GREY, marks_of
from minillm.benchmark.work import OpCall


def draw(results: Results, path: Path) -> None:
    """Microseconds to the right, in powers of ten; forward and backward of an op under each other."""
    from matplotlib.figure import Figure

    entries = results.entries
    figure = Figure(figsize=(8, 1.4 + 0.26 * len(entries)), layout="constrained")
    axes = figure.add_subplot(xlabel="microseconds", xscale="log")
    axes.set_title("Each op alone: time of one call, and its limit")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    names = []
    for y, entry in enumerate(entries):
        assert isinstance(entry.work, OpCall)
        names.append(f"{entry.work.name}  {'backward' if entry.work.backward else 'forward'}")
        limit, times = 1e6 * results.predicted(entry.work), [1e6 * s.median for s in entry.measured]
        axes.plot([min(limit, *times), max(limit, *times)], [y, y], color="#dddddd", linewidth=1.5, zorder=1)
        axes.plot([limit], [y], color=GREY, marker="|", markersize=11, markeredgewidth=2, zorder=2, linestyle="none",
                  label="" if y else "limit: memory, or products")  # fmt: skip
    for side, (mark, colour) in marks_of(s.side for e in entries for s in e.measured).items():
        own = [(1e6 * s.median, y) for y, entry in enumerate(entries) for s in entry.measured if s.side == side]
        across, down = zip(*own)
        axes.scatter(across, down, s=26, color=colour, marker=mark, label=side, zorder=3)
    for y in range(1, len(entries)):
        if entries[y].work.name != entries[y - 1].work.name:
            axes.axhline(y - 0.5, color="#eeeeee", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
