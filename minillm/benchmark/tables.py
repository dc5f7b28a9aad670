"""Results as tables for people: the prediction beside the measurement, and each side beside ours."""

from rich import box
from rich.table import Table

from minillm.benchmark import breakdown, scaling
from minillm.benchmark.race import Samples
from minillm.benchmark.results import Entry, Results, geometric_mean
from minillm.benchmark.work import Decoding, FineTuning, OpCall, Prefill, Training
from minillm.estimate import num_parameters

WHOLE = "the whole step"
Rows = list[list[str]]


def summary(results: Results) -> str:
    """The machine and its ceilings."""
    m, c = results.machine, results.ceilings
    return (
        f"{m['cpu']}: {m['threads']} of {m['cores']} cores in use, {m['blas']}\n"
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
        made.add_column(head, justify="left" if number < names else "right", no_wrap=number < names)
    for number, row in enumerate(rows):
        new = number + 1 < len(rows) and rows[number + 1][0] != row[0]
        made.add_row(*row, end_section=new)
    return made


def digits(x: float) -> str:
    """Three digits, or the whole number."""
    return f"{x:,.0f}" if x >= 100 else f"{x:#.3g}"


def mib(num_bytes: float) -> str:
    """In units of 2^20 bytes."""
    return digits(num_bytes / 2**20) if num_bytes else "0"


def train_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per config and side."""
    heads = ["", "side", "limit ms", "median ms", "best ms", "/ ours", "of limit", "peak MiB", "needed MiB"]
    rows = []
    for entry in results.entries:
        work = entry.work
        assert isinstance(work, Training)
        predicted = results.limit(entry)
        for s in entry.samples:
            times = [digits(1e3 * t) for t in (predicted, s.median, s.best)] if s.seconds else ["skipped", "", ""]
            memory = [digits(s.peak_mib), digits(work.memory / 2**20)] if s.seconds else ["", ""]
            rows.append([work.name, s.side, *times, *_against(results, entry, s), *memory])
    return heads, rows


def lora_rows(results: Results) -> tuple[list[str], Rows]:
    """Two rows per config, backend and way to fine-tune: what was predicted, and what was found."""
    heads = ["", "side", "", "trained", "state MiB", "peak, MiB below full", "time / full", "checkpoint MiB", "ms"]
    rows = []
    for entry in results.entries:
        work, full = entry.work, entry.samples[0]
        assert isinstance(work, FineTuning)
        for s in entry.samples:
            held, weighed = work.estimate(s.side), results.extra["weighed"][work.name][s.side]
            below, measured_below = work.memory_of(full.side) - work.memory_of(s.side), full.peak_mib - s.peak_mib
            predicted = [f"{held.trained:,}", mib(held.state_bytes), mib(below)]
            predicted += [f"{work.flops_of(s.side) / work.flops:.2f}", mib(work.checkpoint_of(s.side)), ""]
            measured = [f"{weighed['trained']:,}", mib(weighed["state"]), mib(measured_below * 2**20)]
            measured += [f"{s.ratio_to(full):.2f}", mib(weighed["checkpoint"]), digits(1e3 * s.median)]
            rows += [[work.name, s.side, "predicted", *predicted], [work.name, s.side, "measured", *measured]]
    return heads, rows


def token_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per shape, batch (in decoding) and side."""
    heads = ["", "batch", "side", "limit tok/s", "median", "best", "time / ours", "of limit", "same tokens"]
    rows = []
    for entry in results.entries:
        work = entry.work
        assert isinstance(work, Decoding | Prefill)
        predicted = results.limit(entry)
        batch = str(work.batch) if isinstance(work, Decoding) else "1"
        for s in entry.samples:
            seconds = (predicted, s.median, s.best) if s.seconds else ()
            rates = [digits(work.tokens / t) for t in seconds] or ["skipped", "", ""]
            same = ["yes" if s.agrees_with(entry.samples[0]) else "NO"] if s.seconds else [""]
            rows.append([work.name, batch, s.side, *rates, *_against(results, entry, s), *same])
    return heads, rows


def op_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per op and direction; a last one with the geometric mean of each side's ratio over all that it can do."""
    sides = [s.side for s in results.entries[0].samples]
    heads = ["µs", "", "limit", *sides, "of limit"]
    heads += [f"{side} / {sides[0]}" for side in sides[1:]]
    rows, ratios = [], {side: [] for side in sides[1:]}  # type: tuple[Rows, dict[str, list[float]]]
    for entry in results.entries:
        ours, predicted = entry.samples[0], results.limit(entry)
        cells = [digits(1e6 * predicted)]
        cells += [digits(1e6 * s.median) if s.seconds else "-" for s in entry.samples]
        cells.append(f"{results.share(entry, ours):.0%}")
        for s in entry.samples[1:]:
            if s.seconds:
                ratios[s.side].append(s.ratio_to(ours))
            cells.append(f"{s.ratio_to(ours):.2f}" if s.seconds else "-")
        assert isinstance(entry.work, OpCall)
        rows.append([entry.work.name, "bwd" if entry.work.backward else "fwd", *cells])
    means = [f"{geometric_mean(ratios[side]):.2f}" if ratios[side] else "-" for side in sides[1:]]
    rows.append(["all", "mean", *[""] * (2 + len(sides)), *means])
    return heads, rows


def scaling_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per size of both sweeps, and after each sweep the exponents of the laws that fit."""
    sides = [s.side for s in results.entries[0].measured]
    heads = ["", "", "N", "GFLOP", "limit ms", *(f"{side} ms" for side in sides), "of limit"]
    rows = []
    for name in (scaling.LENGTH, scaling.DEPTH):
        sweep = scaling.sweep_of(results, name)
        for _, entry in sweep:
            work, limit = entry.work, results.limit(entry)
            assert isinstance(work, Training)
            cells = [f"{num_parameters(work.model) / 1e6:.2f}M", digits(work.flops / 1e9), digits(1e3 * limit)]
            cells += [digits(1e3 * s.median) for s in entry.measured]
            rows.append([*work.name.split(), *cells, f"{results.share(entry, entry.measured[0]):.0%}"])
        xs = [x for x, _ in sweep]
        curves = [[results.limit(e) for _, e in sweep]]
        curves += [[e.measured[number].median for _, e in sweep] for number in range(len(sides))]
        law = "power of T" if name == scaling.LENGTH else "power of N"
        exponents = [f"{scaling.exponent(xs, ys):.2f}" if len(xs) > 1 else "-" for ys in curves]
        rows.append([name, law, "", "", *exponents, ""])
    return heads, rows


def profile_rows(results: Results) -> tuple[list[str], Rows]:
    """A row per op: milliseconds and share of the step on each backend, and how many times as fast the last is."""
    rows, backends = [], []  # type: tuple[Rows, list[str]]
    for config, found in results.extra["profile"].items():
        backends = list(found)
        steps = [breakdown.by_op(seconds) for seconds in found.values()]
        wholes = [sum(ops.values()) for ops in steps]
        for op in [*steps[0], WHOLE]:
            times = [ops.get(op, whole) for ops, whole in zip(steps, wholes)]
            cells = [text for t, whole in zip(times, wholes) for text in (digits(1e3 * t), f"{t / whole:.1%}")]
            rows.append([config, op, *cells, f"{times[0] / times[-1]:.1f}"])
    return ["", "", *(head for name in backends for head in (f"{name} ms", "share")), "times as fast"], rows


def _against(results: Results, entry: Entry, s: Samples) -> list[str]:
    """The ratio to our time, and the share of what the machine can do."""
    if not s.seconds:
        return ["", ""]
    ours = entry.samples[0]
    return [f"{s.ratio_to(ours):.2f}" if ours.seconds else "", f"{results.share(entry, s):.0%}"]


TABLES = {
    "train": (
        2,
        "One training step: forward, backward, clip, AdamW",
        "limit, predicted: the FLOPs of the matrix products (of attention the causal half) at the rate measured in\n"
        "the same round.  needed, predicted: weights, gradients, moments, activations.  peak: the whole process.",
        train_rows,
    ),
    "lora": (
        3,
        "One step of fine-tuning: all weights, or adapters beside frozen ones",
        "state: weights, gradient, moments.  peak: of the whole process; predicted, state, activations and a gradient\n"
        "for every further micro-batch.  time, predicted: the FLOPs of all matrix products.  Adapters gain less than\n"
        "that: products with A and B, so thin, run at a lower rate, and what is no product takes as long as before.",
        lora_rows,
    ),
    "decode": (
        3,
        "Decoding: greedy tokens after a prompt, whose own pass is not counted",
        "limit, predicted: the slower of reading all weights and the cache once a step, and of computing its products.",
        token_rows,
    ),
    "prefill": (
        3,
        "Prefill: one prompt at once",
        "limit, predicted: the slower of reading all weights once and of computing all products.",
        token_rows,
    ),
    "ops": (
        2,
        "The ops alone, on their benchmark inputs",
        "limit: inputs and outputs once at the measured bandwidth, or the FLOPs of linear and attention.  What fits\n"
        "into a cache can be faster.  mean: geometric, of the ratios.",
        op_rows,
    ),
    "scaling": (
        2,
        f"One training step of {scaling.TOKENS:,} tokens",
        "N: parameters.  limit: the FLOPs of all matrix products at the measured rate.\n"
        "power: b of the law  time = a x^b  that fits best.",
        scaling_rows,
    ),
    "profile": (
        2,
        "Where the time of one training step goes, on one thread",
        "Forward and backward of an op together; the optimizer as a whole.",
        profile_rows,
    ),
}  # names, title, note, rows
