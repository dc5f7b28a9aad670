"""`python -m gpu.report`: what every kernel uses on each architecture, and what is wrong with it.

python -m gpu.report                     the table; exit status 1 where a kernel has findings or exceeds its budget
python -m gpu.report --kernel softmax    kernels with this in their name
python -m gpu.report --json              the same and all instruction counts, as JSON
python -m gpu.report --record            make what they use now their budget (gpu/budgets.toml)
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

import gpu
from gpu import budgets, gate
from gpu.kernel import Kernel

NO_KERNELS_IN = {
    "__main__",
    "bench",
    "device",
    "emulator",
    "report",
    "simulator",
}  # modules that are not looked through
PIPE_WIDTH = 150  # columns where the output is no terminal


def all_kernels(package: ModuleType = gpu) -> dict[str, Kernel]:
    """Every kernel in the package's modules, by name: module attributes, and members of their dicts, tuples and lists.

    Kernels of one name (those a function makes for several tile sizes) get their key or attribute in brackets.
    """
    found: dict[int, tuple[Kernel, str]] = {}
    for module in _modules(package):
        for attribute, value in vars(module).items():
            for label, member in _members(attribute, value):
                if isinstance(member, Kernel):
                    found.setdefault(id(member), (member, label))
    times = Counter(kernel.name for kernel, _ in found.values())
    named: dict[str, Kernel] = {}
    for kernel, label in found.values():
        name = kernel.name if times[kernel.name] == 1 else f"{kernel.name}[{label}]"
        if name in named:
            raise ValueError(f"two kernels are called {name}: give their functions names, or put them into one dict")
        named[name] = kernel
    return dict(sorted(named.items()))


def measure(kernels: dict[str, Kernel]) -> list[dict[str, Any]]:
    """One record for each kernel and architecture: what it uses, how often each instruction stands, what is wrong."""
    allowed = budgets.read_budgets(budgets.BUDGETS)
    records = []
    for name, kernel in kernels.items():
        for capability in gate.ARCHITECTURES:
            used = gate.resources(kernel, capability)
            full = used.occupancy(kernel)
            records.append(
                {
                    "kernel": name,
                    "architecture": gate.architecture(capability),
                    "registers": used.registers,
                    "static_shared": used.static_shared,
                    "dynamic_shared": kernel.shared,
                    "stack": used.stack,
                    "spills": used.spills,
                    "threads": kernel.threads,
                    "blocks": full.blocks,
                    "occupancy": full.fraction,
                    "limits": list(full.limits),
                    "tensor": used.count(gate.TENSOR),
                    "wide": used.count(gate.WIDE_LOAD) + used.count(gate.WIDE_STORE),
                    "asynchronous": used.count(gate.ASYNCHRONOUS),
                    "instructions": used.instructions,
                    "findings": gate.findings(kernel, used) + budgets.over_budget(name, kernel, used, allowed),
                }
            )
    return records


def record(wanted: dict[str, Kernel], kernels: dict[str, Kernel]) -> None:
    """Make what the wanted kernels use their budgets; with the compilers of the last record, the other budgets stay."""
    old = budgets.read_budgets(budgets.BUDGETS)
    if budgets.other_compilers(old):
        wanted = kernels
    numbers = {}
    for capability in gate.ARCHITECTURES:
        arch = gate.architecture(capability)
        numbers[arch] = {name: used for name, used in old.get(arch, {}).items() if name in kernels}
        numbers[arch] |= {name: budgets.spent(k, gate.resources(k, capability)) for name, k in wanted.items()}
    budgets.write_budgets(numbers, budgets.BUDGETS)


def show(records: list[dict[str, Any]], console: Console) -> None:
    """Print the table, and below it the findings in full."""
    table = Table("kernel", "arch", box=None, pad_edge=False, header_style="bold")
    for title in ("registers", "shared", "stack", "spills", "blocks", "occupancy"):
        table.add_column(title, justify="right")
    table.add_column("limited by")
    for title in ("tensor", "wide", "async", "findings"):
        table.add_column(title, justify="right")
    for r in records:
        shared = f"{r['static_shared']}+{r['dynamic_shared']}"
        numbers = [r["registers"], shared, r["stack"], r["spills"], r["blocks"], f"{r['occupancy']:.0%}"]
        counts = [r["tensor"], r["wide"], r["asynchronous"], len(r["findings"])]
        row = [r["kernel"], r["architecture"], *numbers, ", ".join(r["limits"]), *counts]
        table.add_row(*map(str, row), style="red" if r["findings"] else None)
    console.print(table)
    console.print("registers, stack, spills: of a thread; shared: static + dynamic bytes of a block")
    architectures: dict[tuple[str, str], list[str]] = {}
    for r in records:
        for finding in r["findings"]:
            architectures.setdefault((r["kernel"], finding), []).append(r["architecture"])
    for (kernel, finding), names in architectures.items():
        console.print(f"{kernel} on {' and '.join(names)}: {finding}", markup=False, highlight=False)
    if any(r["instructions"] is None for r in records):
        console.print(gate.NO_DISASSEMBLER)
    if other := budgets.other_compilers(budgets.read_budgets(budgets.BUDGETS)):
        console.print(f"budgets allow {budgets.ALLOWANCE} registers more, because {other}")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.report", description="What every kernel uses.")
    parser.add_argument("--kernel", default="", metavar="NAME", help="only kernels with NAME in their name")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", action="store_true", help="make what the kernels use now their budget")
    chosen = parser.parse_args(arguments)
    if find_spec("numba_cuda") is None:
        sys.exit(gpu.missing())
    kernels = all_kernels()
    wanted = {name: kernel for name, kernel in kernels.items() if chosen.kernel in name}
    if not wanted:
        sys.exit(f"no kernel has {chosen.kernel!r} in its name; there are: {', '.join(kernels) or 'none'}")
    try:
        if chosen.record:
            record(wanted, kernels)
        records = measure(wanted)
    except RuntimeError as error:
        sys.exit(str(error))
    if chosen.json:
        print(json.dumps(records, indent=1))
    else:
        show(records, Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH))
    return int(any(r["findings"] for r in records))


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """The package and all modules below it but those that hold no kernels."""
    yield package
    for found in iter_modules(getattr(package, "__path__", ()), package.__name__ + "."):
        if found.name.rsplit(".", 1)[-1] not in NO_KERNELS_IN:
            yield from _modules(import_module(found.name))


def _members(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), member) for key, member in value.items())
    elif isinstance(value, tuple | list):
        yield from ((f"{label}[{i}]", member) for i, member in enumerate(value))
    else:
        yield label, value


if __name__ == "__main__":
    sys.exit(main())
