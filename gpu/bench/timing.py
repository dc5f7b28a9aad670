"""On a card: check every rung against the reference, then time it with the card's own clock, in turns with PyTorch.

Limits are measured in the same run, not taken from a datasheet: how fast PyTorch copies memory, and how fast cuBLAS
multiplies large matrices.  Each figure is the median of rounds in which every contestant has its turn.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table

from gpu.array import Machine
from gpu.bench.work import Work, console, put, small
from gpu.device import Device

ROUNDS, REPEATS = 20, 5


def check_all(machine: Machine | None = None) -> None:
    """Every rung on small sizes that fill no tile.  RuntimeError names the first that is wrong."""
    machine = machine or Device()
    for work in small():
        inputs = work.inputs(np.random.default_rng(0))
        expected = work.reference(*inputs)
        scale = np.max(np.abs(expected))
        for name, rung in work.rungs.items():
            error = np.max(np.abs(rung(*put(machine, inputs, work.kind)).numpy() - expected)) / scale
            if not error <= work.tolerance:
                raise RuntimeError(f"{work.name}, {name}: off by {error:.2e} of the largest value")
            print(f"{work.name:40}{name:14}right: off by {error:.1e}, {work.tolerance:.1e} allowed")


def time_all(works: list[Work]) -> list[dict[str, Any]]:
    """Time each rung and PyTorch; print a table; return its rows."""
    device, torch = Device(), _torch()
    bandwidth, rates = ceilings(torch) if torch else (device.bandwidth, {})
    measured = "".join(f", {kind} {rate / 1e12:.1f} TFLOP/s" for kind, rate in rates.items())
    print(f"\n{device.name}: copies {bandwidth / 1e9:,.0f} GB/s{measured}")
    rows: list[dict[str, Any]] = []
    for work in works:
        inputs = work.inputs(np.random.default_rng(0))
        on = put(device, inputs, work.kind)
        contestants: dict[str, Callable[[], Any]] = {n: partial(f, *on) for n, f in work.rungs.items()}
        if torch:
            tensors = [torch.from_numpy(x).cuda() for x in inputs]
            contestants["PyTorch"] = partial(work.peer, torch, *tensors)
        least = max(work.nbytes / bandwidth, work.flops / rates.get(work.kind, np.inf))
        times = race(device, contestants)
        for name, took in times.items():
            peer = times.get("PyTorch")
            rows.append({"work": work.name, "by": name, "ms": 1e3 * took, "of limit": least / took,
                         "PyTorch's time / ours": peer / took if peer else None})  # fmt: skip
    show(rows)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """The figures as a table."""
    table = Table(title="Medians; the limit is measured in this run")
    for column in rows[0]:
        table.add_column(column, justify="left" if column in ("work", "by") else "right")
    for work, by, ms, share, ratio in (row.values() for row in rows):
        table.add_row(work, by, f"{ms:.3f}", f"{share:.0%}", f"{ratio:.2f}" if ratio else "-")
    console().print(table)


def race(device: Device, contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each, over rounds in which each has its turn."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()  # compile
    for _ in range(ROUNDS):
        for name, run in contestants.items():
            device.synchronize()
            start = device.event()
            for _ in range(REPEATS):
                run()
            times[name].append(device.seconds(start, device.event()) / REPEATS)
    return {name: statistics.median(t) for name, t in times.items()}


def ceilings(torch: Any) -> tuple[float, dict[str, float]]:
    """Bytes a second of a copy, FLOPs a second of cuBLAS in float32 (no TF32) and bfloat16."""
    device = Device()
    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    bandwidth = 8 * x.numel() / race(device, {"copy": lambda: y.copy_(x)})["copy"]
    rates, n = {}, 8192
    for kind in ("float32", "bfloat16"):
        a, b = (torch.randn(n, n, dtype=getattr(torch, kind), device="cuda") for _ in range(2))
        rates[kind] = 2 * n**3 / race(device, {"matmul": partial(torch.matmul, a, b)})["matmul"]
    return bandwidth, rates


def _torch() -> Any:
    """PyTorch, if it is there and sees the card."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None
