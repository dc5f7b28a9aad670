"""Results as tables for people: the prediction beside the measurement, and each side beside ours."""

from rich import box
from rich.table import Table

from minillm.benchmark.race import Samples
from minillm.benchmark.results import Entry, Results, geometric_mean
from minillm.benchmark.work import Decoding, OpCall, Training

Rows = list[list[str]]


def summary(results: Results) -> str:
    """The machine and its ceilings."""
    m, c = results.machine, results.ceilings
    return (
        f"{m['cpu']}: {m['threads']} threads on {m['cores']} cores, {m['blas']}\n"
        f"ceilings: {c.gflops:,.0f} GFLOP/s and {c.bandwidth:,.1f} GB/s on all threads, "
        f"{c.one_thread_gflops:,.0f} GFLOP/s and {c.one_thread_bandwidth:,.1f} GB/s on one"
    )


def table(results: Results) -> Table:
    """The table of a command; ours is the first side of each piece of work."""
    names, title, note, rows_of = TABLES[results.command]
    heads, rows = rows_of(results)
    made = Table(
        title=title,
        caption=note,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for number, head in enumerate(heads):
        made.add_column(head, justify="left" if number < names else "right")
    for number, row in enumerate(rows):
        new = number + 1 < len(rows) and rows[number + 1][0] != row[0]
        made.add_row(*row, end_section=new)
    return made


def digits(x: float) -> str:
    """Three digits, or the whole number."""
    return f"{x:,.0f}" if x >= 100 else f"{x:#.3g}"


def train_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per config and side."""
    heads = ["", "side", "predicted ms", "median ms", "best ms", "/ ours", "of limit", "peak MiB", "predicted MiB"]
    rows = []
    for entry in results.entries:
        work = entry.work
        assert isinstance(work, Training)
        predicted = results.predicted(work)
        for s in entry.samples:
            times = [digits(1e3 * t) for t in (predicted, s.median, s.best)] if s.seconds else ["skipped", "", ""]
            memory = [digits(s.peak_mib), digits(work.memory / 2**20)] if s.seconds else ["", ""]
            rows.append([work.name, s.side, *times, *_against(entry, s, predicted), *memory])
    return heads, rows


def token_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per shape, batch (in decoding) and side."""
    heads = ["", "batch", "side", "predicted tokens/s", "median", "best", "time / ours", "of limit", "same tokens"]
    rows = []
    for entry in results.entries:
        work = entry.work
        assert not isinstance(work, OpCall)
        predicted = results.predicted(work)
        batch = str(work.batch) if isinstance(work, Decoding) else "1"
        for s in entry.samples:
            seconds = (predicted, s.median, s.best) if s.seconds else ()
            rates = [digits(work.tokens / t) for t in seconds] or ["skipped", "", ""]
            same = ["yes" if s.agrees_with(entry.samples[0]) else "NO"] if s.seconds else [""]
            rows.append([work.name, batch, s.side, *rates, *_against(entry, s, predicted), *same])
    return heads, rows


def op_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per op and direction; a last one with the geometric mean of each side's ratio over all that it can do."""
    sides = [s.side for s in results.entries[0].samples]
    heads = ["µs", "", "limit", *sides, "of limit"]
    heads += [f"{side} / {sides[0]}" for side in sides[1:]]
    rows, ratios = [], {side: [] for side in sides[1:]}  # type: tuple[Rows, dict[str, list[float]]]
    for entry in results.entries:
        ours, predicted = entry.samples[0], results.predicted(entry.work)
        cells = [digits(1e6 * predicted)]
        cells += [digits(1e6 * s.median) if s.seconds else "-" for s in entry.samples]
        cells.append(f"{predicted / ours.median:.0%}")
        for s in entry.samples[1:]:
            if s.seconds:
                ratios[s.side].append(s.ratio_to(ours))
            cells.append(f"{s.ratio_to(ours):.2f}" if s.seconds else "-")
        assert isinstance(entry.work, OpCall)
        rows.append([entry.work.name, "backward" if entry.work.backward else "forward", *cells])
    means = [f"{geometric_mean(ratios[side]):.2f}" if ratios[side] else "-" for side in sides[1:]]
    rows.append(["geometric mean", *[""] * (3 + len(sides)), *means])
    return heads, rows


def _against(entry: Entry, s: Samples, predicted: float) -> list[str]:
    """The ratio to our time, and the share of what the machine can do."""
    if not s.seconds:
        return ["", ""]
    ours = entry.samples[0]
    return [f"{s.ratio_to(ours):.2f}" if ours.seconds else "", f"{predicted / s.median:.0%}"]


TABLES = {
    "train": (
        2,
        "One training step: forward, backward, clip, AdamW",
        "predicted time: the FLOPs of all matrix products, of attention's only the causal half, at the measured rate.\n"
        "predicted memory: weights, gradients, moments, activations; measured: the process with its libraries.",
        train_rows,
    ),
    "decode": (
        3,
        "Decoding: greedy tokens after a prompt, whose own pass is not counted",
        "predicted: the slower of reading all weights and the cache once a step, and of computing its products.",
        token_rows,
    ),
    "prefill": (
        3,
        "Prefill: one prompt at once",
        "predicted: the slower of reading all weights once and of computing all products.",
        token_rows,
    ),
    "ops": (
        2,
        "The ops alone, on their benchmark inputs",
        "limit: inputs and outputs once at the measured bandwidth, or the FLOPs of linear and attention.  What fits\n"
        "into a cache can be faster than that.",
        op_rows,
    ),
}  # names, title, note, rows
