"""Do the checks of the CUDA kernels have teeth?  Take away a barrier, a guard, a mask, shift an index: who notices?

    python tests/kernel_mutation.py                 # every such mutant of every rung; some minutes
    python tests/kernel_mutation.py --file softmax  # of the files whose path contains this

Each mutant runs on small inputs in three ways, each in a process of its own:

    values      the emulator's fast mode, on one core: are the numbers right?  (a crash counts as noticed)
    checked     the emulator's checked mode: numbers, bounds, races, barriers, memory that nobody wrote
    simulator   the kernel as Python, for rungs without tensor cores

A mutant that none notices is a hole in the checks, or equal to the original for a reason that EXPLAINED gives.  The
exit status is 1 where fewer than 95% of the others are noticed.
"""

import argparse
import ast
import importlib
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
from mutants import Mutant, Source
from tqdm import tqdm

from gpu.emulator import Emulator
from gpu.simulator import Simulator
from minillm.ops import attention as attention_reference
from minillm.ops import softmax as softmax_reference

ROOT = Path(__file__).parents[1]
FAMILIES = ("softmax", "matmul", "attention")
TIMEOUT = 60  # seconds for one way
PASS_MARK = 95  # per cent
MACHINES = {
    "values": lambda: Emulator(cores=1),
    "checked": lambda: Emulator(checked=True, seed=1),
    "simulator": lambda: Simulator(seed=1),
}
MEETINGS = {"cuda.syncthreads", "cuda.syncwarp", "ptx.commit", "ptx.wait"}
WIDE = {"ptx.load4": 4, "ptx.store4": 4, "ptx.copy16": 8, "ptx.shared_address": 8}  # elements in 16 bytes
EXPLAINED = {  # (file, change) -> why it computes the same
    ("attention/tiled.py", "if {lane == 0 → True}:"): "every lane of the team writes the same number to the same place",
    (
        "matmul/tensor_cores.py",
        "ptx.copy16(tile, at, source, first if {inside → True} else U32(0), U32(16) if inside else U32(0))",
    ): "a copy of 0 bytes reads nothing, wherever it points",
    ("matmul/tensor_cores.py", "if {k < K → True}:"): "one more tile of zeros is brought, and nobody multiplies it",
}


def edits(source, function):
    """Every mutation of a kernel as (kind, start, end, new text)."""
    for node in ast.walk(function):
        match node:
            case ast.Expr(ast.Call(func)) if source.code(func) in MEETINGS:
                yield "barrier", *source.span(node), "pass"
            case ast.If(test) | ast.IfExp(test=test):
                yield "guard", *source.span(test), "True"
            case ast.BoolOp(ast.And(), values):
                for value in values:
                    yield "guard", *source.span(value), "True"
            case ast.Compare(left, [ast.Lt() | ast.GtE() as op], [right]):
                token = "<" if isinstance(op, ast.Lt) else ">="
                start = source.text.index(token, source.end(left), source.start(right))
                yield "bound", start, start + len(token), {"<": "<=", ">=": ">"}[token]
            case ast.Subscript(value, index) if not source.code(value).endswith((".shape", ".strides")):
                indices = index.elts if isinstance(index, ast.Tuple) else [index]
                for part in {0, len(indices) - 1}:
                    yield "index", *source.span(indices[part]), f"{source.code(indices[part])} + 1"
            case ast.Call(func, [_, index, *_]) if source.code(func) in WIDE:
                yield "index", *source.span(index), f"{source.code(index)} + {WIDE[source.code(func)]}"


def runs_on_the_gpu(function, source, inner):
    """Whether a function is a kernel or a part of one: by its decorator, or because a `build` makes kernels of it."""
    return function in inner or any(source.code(d).startswith(("kernel(", "device")) for d in function.decorator_list)


def mutants_of(path):
    """All mutants of the kernels and device functions in one file."""
    text = path.read_text(encoding="utf-8")
    source, found, tree = Source(text), {}, ast.parse(text)
    inner = [f for outer in tree.body if getattr(outer, "name", "") == "build" for f in outer.body]
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or not runs_on_the_gpu(function, source, inner):
            continue
        for kind, start, end, new in edits(source, function):
            first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
            change = f"{text[first:start].lstrip()}{{{text[start:end]} → {new}}}{text[end:last]}"
            mutated, line = text[:start] + new + text[end:], text.count("\n", 0, start) + 1
            name = path.relative_to(ROOT / "gpu").as_posix()
            found.setdefault(mutated, Mutant(name, line, kind, " ".join(change.split()), mutated))
    return sorted(found.values(), key=lambda m: m.line)


# What is run: small sizes that are no multiples of any tile.


def close(got, expected, allowed):
    """Equal within `allowed` of the largest value, and NaN in the same places."""
    assert np.array_equal(np.isnan(got), np.isnan(expected)), "NaN where there should be none"
    scale = max(np.max(np.abs(np.nan_to_num(expected)), initial=0), 1e-30)
    assert np.max(np.abs(np.nan_to_num(got - expected)), initial=0) <= allowed * scale, "wrong numbers"


def softmax(package, rung, machine):
    """Rows of a few sizes, with masked ones among them."""
    r = np.random.default_rng(0)
    forward, backward = package.RUNGS[rung]
    for shape in ((5, 33), (3, 7), (2, 6), (2, 1032), (1, 1)):
        x, dp = (4 * r.standard_normal((2, *shape))).astype(np.float32)
        if shape[0] > 2:
            x[0], x[1, 1:] = -np.inf, -np.inf
        p, _ = softmax_reference.softmax_forward(x.astype(np.float64))
        close(forward(machine.array(x))[0].numpy(), p, 1e-5)
        p = p.astype(np.float32)
        dx = backward(machine.array(dp), machine.array(p)).numpy()
        close(dx, softmax_reference.softmax_backward(dp.astype(np.float64), p.astype(np.float64)), 1e-5)


def bf16(x):
    """Rounded to bfloat16, to nearest even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def matmul(package, rung, machine):
    """All four orientations, two sizes of them on top of what is in C, one of more than a block each way."""
    r = np.random.default_rng(0)
    sizes = [((33, 37, 20), 0.0), ((17, 70, 40), 0.5), ((9, 12, 0), 0.5), ((5, 8, 16), 0.0), ((130, 136, 72), 0.0)]
    for (M, N, K), beta in sizes[:4] if isinstance(machine, Simulator) else sizes:
        for flip_a, flip_b in ((False, False), (False, True), (True, False), (True, True)):
            if isinstance(machine, Simulator) and flip_a != flip_b:
                continue
            a, b = r.standard_normal((M, K)).astype(np.float32), r.standard_normal((K, N)).astype(np.float32)
            c = r.standard_normal((M, N)).astype(np.float32) if beta else np.full((M, N), np.nan, np.float32)
            on = [machine.array(m) for m in (a.T if flip_a else a, b.T if flip_b else b)]
            out = package.matmul(*on, flip_a, flip_b, 2.0, beta, machine.array(c), rung).numpy()
            if rung == "tensor_cores":
                a, b = bf16(a), bf16(b)
            close(out, 2 * (a.astype(np.float64) @ b) + (beta * c if beta else 0), 1e-5)


def attention(package, rung, machine):
    """Grouped heads, more keys than queries and fewer, documents and padding, a head size that fills no tile."""
    r = np.random.default_rng(0)
    allowed = 0.02 if rung == "tensor_cores" else 1e-4
    sizes = [
        (1, 5, 5, 2, 1, 8),
        (2, 3, 70, 2, 2, 16),
        (1, 70, 67, 1, 1, 16),
        (2, 77, 77, 4, 2, 40),
        (1, 9, 66, 1, 1, 5),
    ]
    for B, T, S, H, G, D in sizes[:2] if isinstance(machine, Simulator) else sizes:
        q, k, v = (r.standard_normal(s).astype(np.float32) for s in ((B, T, H, D), (B, S, G, D), (B, S, G, D)))
        choices = [None]
        if T == S:
            segments = np.sort(r.integers(0, 3, (B, S))).astype(np.int32)
            segments[:, -2:] = -1
            choices.append(segments)
        for segments in choices:
            on = [None if x is None else machine.array(x) for x in (q, k, v, segments)]
            y, _ = package.RUNGS[rung](*on)
            wide = [x if x is None or x.dtype != np.float32 else x.astype(np.float64) for x in (q, k, v, segments)]
            close(y.numpy(), attention_reference.attention_forward(*wide)[0], allowed)


PROBES = {"softmax": softmax, "matmul": matmul, "attention": attention}


def load(mutant):
    """The family's package, imported anew with the mutant in place of its file."""
    family = mutant.file.split("/")[0]
    for name in [n for n in sys.modules if n.startswith(f"gpu.{family}")]:
        del sys.modules[name]
    path = ROOT / "gpu" / mutant.file
    name = "gpu." + mutant.file.removesuffix(".py").replace("/", ".")
    importlib.import_module(f"gpu.{family}")  # so that the package's own imports are there
    for loaded in [n for n in sys.modules if n.startswith(f"gpu.{family}")]:
        del sys.modules[loaded]
    module = ModuleType(name)
    module.__file__, module.__package__ = str(path), f"gpu.{family}"
    package = importlib.util.module_from_spec(importlib.util.find_spec(f"gpu.{family}"))
    sys.modules[f"gpu.{family}"] = package
    sys.modules[name] = module
    exec(compile(mutant.text, str(path), "exec"), module.__dict__)
    setattr(package, name.rsplit(".", 1)[1], module)
    package.__spec__.loader.exec_module(package)
    return package


def rungs_of(mutant, package):
    """The rungs that a file's change can be seen in: its own, or all where it is shared."""
    stem = Path(mutant.file).stem
    return [stem] if stem in package.RUNGS else list(package.RUNGS)


def noticed(mutant, way):
    """What the given way says of the mutant, or None; in a process of its own, which may crash or hang."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(reader)
        message = ""
        try:
            package = load(mutant)
            for rung in rungs_of(mutant, package):
                PROBES[mutant.file.split("/")[0]](package, rung, MACHINES[way]())
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            if "not in the simulator" in message:
                message = "n/a"
        os.write(writer, message.encode()[:4000])
        os._exit(0)
    os.close(writer)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(TIMEOUT)
    with os.fdopen(reader) as pipe:
        message = pipe.read()
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return message or None


def main():
    """Every mutant, who noticed it, and the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", default="", help="only files whose path contains this")
    parser.add_argument("--kind", default="", help="only of this kind: barrier, guard, bound or index")
    parser.add_argument("--every", type=int, default=1, help="only every n-th mutant of each file")
    options = parser.parse_args()
    files = [p for family in FAMILIES for p in sorted((ROOT / "gpu" / family).glob("*.py"))]
    files = [p for p in files if options.file in p.relative_to(ROOT).as_posix()]
    chosen = [m for p in files for m in [m for m in mutants_of(p) if options.kind in m.kind][:: options.every]]
    began, table, survivors = time.monotonic(), {}, 0
    for path in files:  # the unchanged files pass
        name = path.relative_to(ROOT / "gpu").as_posix()
        whole = Mutant(name, 0, "", "", path.read_text(encoding="utf-8"))
        for way in MACHINES:
            if (said := noticed(whole, way)) and not said.startswith("n/a"):
                sys.exit(f"{name} unchanged, {way}: {said}")
    for mutant in tqdm(chosen, unit="mutant", disable=None):
        said = {way: noticed(mutant, way) for way in MACHINES}
        by = [way for way, text in said.items() if text and not text.startswith("n/a")]
        reason = EXPLAINED.get((mutant.file, mutant.change))
        row = table.setdefault((mutant.file, mutant.kind), Counter())
        row["mutants"] += 1
        row.update(by or (["explained"] if reason else ["SURVIVED"]))
        survivors += not by and not reason
        what = next((text for way, text in said.items() if way in by), reason or "no way noticed")
        tqdm.write(f"{','.join(by) or ('explained' if reason else 'SURVIVED'):26} {mutant.file}:{mutant.line} "
                   f"{mutant.kind}: {mutant.change}\n{'':27}{what.splitlines()[0][:150]}")  # fmt: skip
    columns = ("mutants", *MACHINES, "explained", "SURVIVED")
    print(f"\n{'file':28}{'kind':10}" + "".join(f"{c:>11}" for c in columns))
    for (file, kind), row in table.items():
        print(f"{file:28}{kind:10}" + "".join(f"{row[c]:11}" for c in columns))
    explained = sum(row["explained"] for row in table.values())
    score = 100 * (1 - survivors / max(1, len(chosen) - explained))
    print(f"{len(chosen)} mutants, {explained} explained; noticed {score:.1f}% of the others "
          f"in {time.monotonic() - began:.0f} s")  # fmt: skip
    sys.exit(score < PASS_MARK)


if __name__ == "__main__":
    main()
