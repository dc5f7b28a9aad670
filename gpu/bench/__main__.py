"""`python -m gpu.bench`: check every rung, then time it beside the card's limits and PyTorch.

python -m gpu.bench                what the card does; without one, what the named cards could do at most
python -m gpu.bench --simulators   the same kernel without a GPU: numba's simulator, ours, the emulator
python -m gpu.bench --json FILE    the figures as JSON as well
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.table import Table

import gpu
from gpu.bench.speed import compare
from gpu.bench.work import Work, console, full_size
from gpu.cards import CARDS

SHOWN = ("A100-SXM4-40GB", "H100-SXM5-80GB", "RTX-4090")


def predict(works: list[Work]) -> Table:
    """The least time on some cards, from bytes and FLOPs alone."""
    table = Table(title="Predicted: the least time on a card (ms), and what decides")
    for column in ("work", "MB", "GFLOP", *SHOWN):
        table.add_column(column, justify="left" if column == "work" else "right")
    for work in works:
        limits = [work.limit(CARDS[name]) for name in SHOWN]
        cells = [f"{1e3 * seconds:.3f} {bound}" for seconds, bound in limits]
        table.add_row(work.name, f"{work.nbytes / 1e6:,.0f}", f"{work.flops / 1e9:,.1f}", *cells)
    return table


def simulators() -> dict[str, float]:
    """Print the speed of the ways to run a kernel without a GPU."""
    seconds = compare()
    table = Table(title="Tiled matrix product, 64 x 64 x 64, without a GPU")
    for column in ("way", "ms", "times numba's"):
        table.add_column(column, justify="left" if column == "way" else "right")
    first = next(iter(seconds.values()))
    for name, took in seconds.items():
        table.add_row(name, f"{1e3 * took:,.1f}", f"{first / took:,.0f}")
    console().print(table)
    return seconds


def card() -> list[dict[str, Any]]:
    """Check and time on the GPU."""
    from gpu.bench.timing import check_all, time_all

    check_all()
    return time_all(full_size())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulators", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures: Any
    if options.simulators:
        figures = simulators()
    elif lacking := gpu.missing():
        print(f"{lacking}.\nSo nothing is timed; these are the limits that a run on a card will be held against.\n")
        works = full_size()
        console().print(predict(works))
        figures = {w.name: {name: w.limit(c) for name, c in CARDS.items()} for w in works}
    else:
        figures = card()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
