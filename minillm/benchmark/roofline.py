"""The roofline: what was measured, under the two ceilings of the machine (Williams, Waterman & Patterson 2009).

Across: FLOPs per byte that must move.  Up: FLOPs per second.  Left of the ridge memory is the limit, right of it the
products are.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minillm.benchmark.results import Results
from minillm.benchmark.work import COMPILED, EAGER, Decoding, OpCall, Training
from minillm.plotting import ACCENT, FLOOR, INK

PEERS = {EAGER: ("s", ACCENT), COMPILED: ("^", FLOOR)}
OURS = (("o", INK), ("D", "#7a5c99"), ("v", "#8a6d3b"))  # the backends, in the order of the results
GREY = "#666666"
TITLES = {"train": "Training steps", "decode": "Decoding", "prefill": "Prefill", "ops": "Ops with matrix products"}
GAP = 9  # pixels between a mark and its label
DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))  # where a label may stand


class Point(NamedTuple):
    """One side at one piece of work."""

    label: str
    side: str
    intensity: float
    """FLOPs per byte."""
    gflops: float


def points(results: Results) -> list[Point]:
    """Everything measured that has matrix products."""
    return [
        Point(name_of(e.work), s.side, e.work.flops / e.work.bytes, e.work.flops / s.median / 1e9)
        for e in results.entries
        for s in e.measured
        if e.work.flops
    ]


def name_of(work: Any) -> str:
    """What a reader calls it."""
    if isinstance(work, OpCall):
        return f"{work.name} {'backward' if work.backward else 'forward'}"
    if isinstance(work, Training):
        return f"config {work.name}"
    return f"{work.name}, batch {work.batch}" if isinstance(work, Decoding) else work.name


def marks_of(sides: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Mark and colour of each side: peers have the same in every picture."""
    backends = iter(OURS * 3)
    return {side: PEERS[side] if side in PEERS else next(backends) for side in dict.fromkeys(sides)}


def draw(results: Results, path: Path) -> None:
    """The picture: one label for each piece of work, one mark for each side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    found, c = points(results), results.ceilings
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="arithmetic intensity (FLOPs per byte)", ylabel="GFLOP/s", xscale="log")
    axes.set_yscale("log")
    axes.set_title(f"{TITLES[results.command]} on {_threads(results)}, under the machine's two ceilings")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    ridge = c.gflops / c.bandwidth
    intensities = [p.intensity for p in found] + [ridge]
    low, high = min(intensities) / 3, max(intensities) * 5
    bottom = min([p.gflops for p in found] + [low * c.bandwidth]) / 2
    axes.set(xlim=(low, high), ylim=(bottom, c.gflops * 2.5))
    axes.plot([low, ridge, high], [low * c.bandwidth, c.gflops, c.gflops], color=GREY, linewidth=1.5)
    axes.fill_between([low, ridge, high], [low * c.bandwidth, c.gflops, c.gflops], c.gflops * 9, color=GREY, alpha=0.07)
    for side, (mark, color) in marks_of([p.side for p in found]).items():
        own = [p for p in found if p.side == side]
        axes.scatter([p.intensity for p in own], [p.gflops for p in own], 40, color, marker=mark, label=side, zorder=3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, loc="lower right")
    figure.draw_without_rendering()  # settles where everything lies, which the labels must know
    _name_ceilings(axes, c.gflops, c.bandwidth, low, ridge, high)
    _place_labels(axes, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _threads(results: Results) -> str:
    number = results.machine["threads"]
    return "one thread" if number == 1 else f"{number} threads"


def _name_ceilings(axes: Any, gflops: float, bandwidth: float, low: float, ridge: float, high: float) -> None:
    """Each ceiling's name along its line, above it."""
    (x0, y0), (x1, y1) = axes.transData.transform([(low, low * bandwidth), (ridge, gflops)])
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    style = {"color": GREY, "fontsize": 9, "rotation_mode": "anchor", "textcoords": "offset points"}
    along = low * (ridge / low) ** 0.3
    axes.annotate(f"memory: {bandwidth:,.1f} GB/s", (along, along * bandwidth), (-3, 4), rotation=angle, **style)
    axes.annotate(f"products: {gflops:,.0f} GFLOP/s", (high, gflops), (-4, 5), ha="right", **style)


def _place_labels(axes: Any, found: Sequence[Point]) -> None:
    """A label beside one of its work's marks, where it covers neither a mark, nor a line, nor another label.

    The nearest free place wins; where none is free near by, a thin line leads from the label to its mark.
    """
    pixels = {p: axes.transData.transform((p.intensity, p.gflops)) for p in found}
    taken = [_around(x, y, 6, 6) for x, y in pixels.values()]
    taken.append(axes.get_legend().get_window_extent())
    for text in dict.fromkeys(p.label for p in found):
        marks = [pixels[p] for p in found if p.label == text]
        note = axes.text(0, 0, text, fontsize=8.5, ha="center", va="center")
        width, height = note.get_window_extent().width, note.get_window_extent().height
        places = [
            (distance, x + dx * (distance + width / 2), y + dy * (distance + height / 2), x, y)
            for distance in range(GAP, 12 * GAP, GAP // 2)
            for dx, dy in DIRECTIONS
            for x, y in marks
        ]
        free = (place for place in places if _is_free(axes, *place[1:3], width, height, taken))
        distance, x, y, mark_x, mark_y = next(free, places[0])
        note.set_position(axes.transData.inverted().transform((x, y)))
        taken.append(_around(x, y, width / 2 + 2, height / 2 + 1))
        if distance > 2 * GAP:
            ends = axes.transData.inverted().transform([(x, y), (mark_x, mark_y)])
            axes.plot(*zip(*ends), color=GREY, linewidth=0.5, zorder=1)
            note.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})


def _around(x: float, y: float, half_width: float, half_height: float) -> Any:
    from matplotlib.transforms import Bbox

    return Bbox([[x - half_width, y - half_height], [x + half_width, y + half_height]])


def _is_free(axes: Any, x: float, y: float, width: float, height: float, taken: Sequence[Any]) -> bool:
    """Whether a label centred there is inside the picture, below the roof, and covers nothing."""
    box, frame = _around(x, y, width / 2 + 2, height / 2 + 1), axes.get_window_extent()
    corner_x, corner_y = axes.transData.inverted().transform((box.x0, box.y1))  # the roof rises to the right
    (left, _, _), (low, _, top) = axes.lines[0].get_data()
    below = corner_y < min(top, low * corner_x / left)
    inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0
    return inside and below and not any(box.overlaps(other) for other in taken)
