"""Pictures of what one warp asks of memory.  matplotlib is loaded only when something is drawn."""

from pathlib import Path
from typing import Any

from gpu.simulator.cost import BANKS, SECTOR, WORD, Request, num_ideal_sectors, num_sectors, words_by_bank
from gpu.simulator.trace import Row

LINE = BANKS * WORD  # bytes in a row of the picture: 128, four sectors, or once across all banks
CELL, SQUASH = 0.29, 0.82  # inches; how much lower than wide a cell is
FETCHED, CONFLICT, MEMORY, INK = "#f3d9a4", "#f2a99a", "#ececea", "#222222"


def draw_access(row: Row, target: Any, title: str = "") -> None:
    """The costliest request of `row`: memory as a grid of words, each wanted word with its lane's number and colour.

    target: a path to save to, or axes of matplotlib to draw into.
    """
    lines = _lines(row.costliest)
    if not isinstance(target, str | Path):
        _draw(target, row, lines, title)
        return
    from matplotlib.figure import Figure

    columns, rows = BANKS + 4.6, len(lines) + 6.2
    figure = Figure(figsize=(columns * CELL, rows * CELL * SQUASH))
    axes = figure.add_axes((3.6 / columns, 2.1 / rows, BANKS / columns, len(lines) / rows))
    _draw(axes, row, lines, title)
    figure.savefig(target, dpi=110)


def _lines(request: Request) -> list[int]:
    """The rows of 128 bytes in which something is wanted."""
    touched = {(a + at) // LINE for a in request.addresses for at in range(0, request.width, WORD)}
    return sorted(touched)


def _draw(axes: Any, row: Row, lines: list[int], title: str) -> None:
    heights = {line: i for i, line in enumerate(lines)}
    axes.set(xlim=(0, BANKS), ylim=(len(lines), 0), xticks=[], aspect="auto")
    axes.set_yticks([i + 0.5 for i in range(len(lines))], [f"byte {line * LINE:,}" for line in lines], fontsize=8)
    axes.tick_params(length=0, colors="#666666")
    for side in axes.spines.values():
        side.set_visible(False)
    words = _lanes_of_words(row.costliest)
    wanted = {(word % BANKS, heights[word * WORD // LINE]): lanes for word, lanes in words.items()}
    if row.space == "global":
        _sectors(axes, set(wanted), len(lines))
    else:
        _banks(axes, {bank for (_, bank), asked in words_by_bank(row.costliest).items() if len(asked) > 1}, len(lines))
    for (x, y), lanes in wanted.items():
        _cell(axes, x, y, lanes)
    axes.text(0, -2.7, title or f"{row.place}   {row.source}", fontsize=13, weight="bold", color=INK)
    axes.text(0, -1.4, _verdict(row), fontsize=10.5, color=INK)
    _legend(axes, row, len(lines))


def _lanes_of_words(request: Request) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for lane, address in zip(request.lanes, request.addresses):
        for word in range(address // WORD, (address + request.width - 1) // WORD + 1):
            found.setdefault(word, []).append(lane)
    return found


def _cell(axes: Any, x: int, y: int, lanes: list[int]) -> None:
    from matplotlib import colormaps

    colour = colormaps["viridis"](0.08 + 0.92 * lanes[0] / BANKS)
    axes.add_patch(_box(x + 0.06, y + 0.08, 0.88, 0.84, facecolor=colour))
    text = str(lanes[0]) if len(lanes) == 1 else f"{len(lanes)}x"
    dark = lanes[0] > 20
    axes.text(x + 0.5, y + 0.53, text, ha="center", va="center", fontsize=8, color=INK if dark else "white")


def _box(x: float, y: float, width: float, height: float, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, **({"linewidth": 0} | style))


def _sectors(axes: Any, wanted: set[tuple[int, int]], num_lines: int) -> None:
    """Four sectors in each row; those that travel stand out."""
    words = SECTOR // WORD
    travelling = {(x // words, y) for x, y in wanted}
    for y in range(num_lines):
        for x in range(BANKS):
            colour = FETCHED if (x // words, y) in travelling else MEMORY
            axes.add_patch(_box(x + 0.03, y + 0.04, 0.94, 0.92, facecolor=colour))
    for s, y in travelling:
        outline = _box(s * words + 0.02, y + 0.03, words - 0.04, 0.94, fill=False, edgecolor="#a8741a", linewidth=1.2)
        axes.add_patch(outline)
    for s in range(LINE // SECTOR):
        axes.text((s + 0.5) * words, -0.25, "32 bytes", ha="center", fontsize=8, color="#666666")


def _banks(axes: Any, conflicts: set[int], num_lines: int) -> None:
    """Banks are columns; those that must serve several words stand out."""
    for x in range(BANKS):
        axes.add_patch(_box(x + 0.03, 0, 0.94, num_lines, facecolor=CONFLICT if x in conflicts else MEMORY))
        axes.text(x + 0.5, -0.25, str(x), ha="center", fontsize=8, color="#666666")
    for y in range(1, num_lines):
        axes.plot((0, BANKS), (y, y), color="white", linewidth=0.8, zorder=1)
    axes.text(-0.2, -0.25, "bank", ha="right", fontsize=8, color="#666666")


def _verdict(row: Row) -> str:
    lanes = len(row.costliest.lanes)
    verb = {"load": "read", "store": "write", "atomic": "update"}[row.kind]
    begin = f"{lanes} lanes of one warp {verb} {row.costliest.width} bytes each:"
    if row.space == "shared":
        (_, bank), asked = max(words_by_bank(row.costliest).items(), key=lambda item: len(item[1]))
        if len(asked) == 1:
            return f"{begin} no bank is asked for two words at once"
        return f"{begin} bank {bank} is asked for {len(asked)} words, one after the other: {len(asked)} times as long"
    sectors, ideal = num_sectors(row.costliest), num_ideal_sectors(row.costliest)
    end = "not one more than needed" if sectors == ideal else f"{ideal} would hold what is wanted"
    return f"{begin} {sectors} sectors of 32 bytes travel, {end}"


def _legend(axes: Any, row: Row, num_lines: int) -> None:
    from matplotlib import colormaps

    entries: list[tuple[Any, str]] = [(colormaps["viridis"](0.45), "wanted, with the lane's number")]
    if row.space == "global":
        if num_sectors(row.costliest) > num_ideal_sectors(row.costliest):
            entries.append((FETCHED, "travels, wanted by nobody"))
    elif row.worst_ways > 1:
        entries.append((CONFLICT, "bank with a conflict"))
    if row.space == "shared" or num_sectors(row.costliest) < num_lines * LINE // SECTOR:
        entries.append((MEMORY, "memory that is left alone"))
    for i, (colour, text) in enumerate(entries):
        x = i * 10.8
        axes.add_patch(_box(x, num_lines + 0.65, 0.8, 0.8, facecolor=colour, clip_on=False))
        axes.text(x + 1.1, num_lines + 1.08, text, va="center", fontsize=9, color=INK)
