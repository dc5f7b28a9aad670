"""What each kernel may use, recorded in `budgets.toml`, so that no change makes one heavier unnoticed.

The numbers depend on two compilers; where they are of other versions than when the budgets were recorded, a kernel may
take a few registers more.
"""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu.gate import Resources, architecture
from gpu.kernel import Kernel

BUDGETS = Path(__file__).with_name("budgets.toml")
COMPILERS = ("nvidia-nvjitlink", "nvidia-nvvm")  # PTX to machine code, and LLVM to PTX
ALLOWANCE = 8  # registers more where a compiler is another: the step in which registers are handed out


def read_budgets(file: Path) -> dict[str, Any]:
    """What each kernel used when last recorded: {"sm_80": {kernel: {"registers": ..., ...}}, "compilers": {...}}."""
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def write_budgets(numbers: dict[str, dict[str, dict[str, int]]], file: Path) -> None:
    """Record these numbers, {"sm_80": {kernel: `spent`}}, and the compilers that gave them."""
    lines = ["# What each kernel may use; recorded by `python -m gpu.report --record`.", "[compilers]"]
    lines += [f'{package} = "{number}"' for package, number in compilers().items()]
    for arch, kernels in numbers.items():
        lines += ["", f"[{arch}]"]
        for name, used in sorted(kernels.items()):
            lines.append(f'"{name}" = {{ {", ".join(f"{what} = {n}" for what, n in used.items())} }}')
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def spent(kernel: Kernel, used: Resources) -> dict[str, int]:
    """What has a budget: registers of a thread, bytes of its stack and spills, bytes of shared memory of a block."""
    shared = used.static_shared + kernel.shared
    return {"registers": used.registers, "stack": used.stack, "spills": used.spills, "shared": shared}


def over_budget(name: str, kernel: Kernel, used: Resources, budgets: dict[str, Any]) -> list[str]:
    """Where the kernel uses more than recorded; an empty list where it does not."""
    budget = budgets.get(architecture(used.capability), {}).get(name)
    if budget is None:
        return ["it has no budget; record one with `python -m gpu.report --record`"]
    other = other_compilers(budgets)
    return [
        f"{n} {what}, budget {budget[what]}{f' and {ALLOWANCE} more, because {other}' if allowed else ''}; "
        "if that is worth it, record it with `python -m gpu.report --record`"
        for what, n in spent(kernel, used).items()
        for allowed in [ALLOWANCE if other and what == "registers" else 0]
        if n > budget[what] + allowed
    ]


def other_compilers(budgets: dict[str, Any]) -> str:
    """Which compilers differ from those of the budgets, in words; empty where none does, or nothing is recorded."""
    recorded = budgets.get("compilers", compilers())
    return ", ".join(
        f"{package} is {number}, was {recorded.get(package, 'unknown')}"
        for package, number in compilers().items()
        if number != recorded.get(package)
    )


def compilers() -> dict[str, str]:
    """Versions of the packages that decide how many registers a kernel gets."""
    return {package: _version(package) for package in COMPILERS}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed from PyPI"
