"""The gate: each rule fires on a kernel that breaks it and not on a good one; every kernel keeps its budget."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.bindings.nvjitlink")

from numba import cuda

from gpu import budgets, gate, ptx, report
from gpu.kernel import Claims, kernel

KERNELS = report.all_kernels()
BOTH = pytest.mark.parametrize("capability", gate.ARCHITECTURES, ids=gate.architecture)


def machine_code():
    from cuda.pathfinder import find_nvidia_binary_utility

    return find_nvidia_binary_utility("nvdisasm") is not None


needs_machine_code = pytest.mark.skipif(not machine_code(), reason=gate.NO_DISASSEMBLER)


def line_of(broken, text):
    """ "test_gate.py:20" for the line of a kernel's code with this text."""
    import inspect

    lines, start = inspect.getsourcelines(broken.function)
    return f"test_gate.py:{start + next(i for i, line in enumerate(lines) if text in line)}"


# Kernels that keep all rules.


@kernel("float32[:], float32[:], uint32", threads=256, claims=Claims(wide=True))
def halve(x, y, n):
    i = np.uint32(4) * (np.uint32(cuda.blockIdx.x) * np.uint32(256) + np.uint32(cuda.threadIdx.x))
    if i < n:
        a, b, c, d = ptx.load4(x, i)
        half = np.float32(0.5)
        ptx.store4(y, i, a * half, b * half, c * half, d * half)


@kernel("uint32[:], float32[:]", threads=32, claims=Claims(tensor=True, asynchronous=True))
def square(a, c):
    tile = cuda.shared.array(128, np.uint32, 16)
    lane = np.uint32(cuda.threadIdx.x)
    ptx.copy16(tile, np.uint32(4) * lane, a, np.uint32(4) * lane, np.uint32(16))
    ptx.commit()
    ptx.wait(0)
    cuda.syncthreads()
    w, x = tile[lane], tile[lane + np.uint32(32)]
    y, z = tile[lane + np.uint32(64)], tile[lane + np.uint32(96)]
    zero = np.float32(0)
    p, q, r, s = ptx.mma_bf16(w, x, y, z, w, x, zero, zero, zero, zero)
    c[lane] = p + q + r + s


# Kernels that break one each.


@kernel("float32[:]", threads=256)
def tenth(x):
    i = cuda.grid(1)
    x[i] = x[i] * 0.1


@kernel("float32[:], int32", threads=256)
def mean(x, n):
    i = cuda.grid(1)
    x[i] = x[i] / n


@kernel("int32[:], int32", threads=256)
def histogram(x, n):
    counts = cuda.local.array(16, np.int32)
    for k in range(16):
        counts[k] = 0
    for k in range(n):
        counts[x[k] & 15] += 1
    for k in range(16):
        x[k] = counts[k]


@kernel("float32[:], float32[:]", threads=1024, blocks=2)
def outer(x, y):
    """64 sums a thread, and at most 32 registers."""
    i = np.uint32(cuda.threadIdx.x)
    sums = cuda.local.array((8, 8), np.float32)
    for r in range(8):
        for c in range(8):
            sums[r, c] = np.float32(0)
    for k in range(64):
        for r in range(8):
            for c in range(8):
                sums[r, c] += x[k * 8 + r] * y[k * 8 + c]
    for r in range(8):
        for c in range(8):
            x[i + np.uint32(r * 8 + c)] = sums[r, c]


@kernel("float32[:]", threads=256, blocks=5)
def hoard(x):
    tile = cuda.shared.array((96, 128), np.float32)
    i = np.uint32(cuda.threadIdx.x)
    tile[i & np.uint32(63), i & np.uint32(127)] = x[i]
    cuda.syncthreads()
    x[i] = tile[i & np.uint32(31), i & np.uint32(127)]


@kernel("float32[:]", threads=256)
def greedy(x):
    """More static shared memory than 48 KiB."""
    tile = cuda.shared.array((97, 128), np.float32)
    i = np.uint32(cuda.threadIdx.x)
    tile[i & np.uint32(63), i & np.uint32(127)] = x[i]
    cuda.syncthreads()
    x[i] = tile[i & np.uint32(31), i & np.uint32(127)]


@needs_machine_code
@BOTH
@pytest.mark.parametrize("good", [halve, square], ids=lambda k: k.function.__name__)
def test_a_good_kernel_has_no_findings(good, capability):
    used = gate.resources(good, capability)
    assert gate.findings(good, used) == []
    assert 0 < used.registers < 64 and used.stack == 0 == used.spills


@needs_machine_code
@BOTH
@pytest.mark.parametrize(("bad", "text"), [(tenth, "0.1"), (mean, "/ n")], ids=["literal", "divisor"])
def test_float64_is_found_with_its_line(bad, text, capability):
    (finding,) = gate.findings(bad, gate.resources(bad, capability))
    assert finding.startswith("float64: ") and line_of(bad, text) in finding
    assert "F2F.F32.F64" in finding and "np.float32(0.5)" in finding


@needs_machine_code
@BOTH
def test_a_local_array_with_an_unknown_index_is_found(capability):
    used = gate.resources(histogram, capability)
    (finding,) = gate.findings(histogram, used)
    assert used.stack == 64, "16 int32"
    assert finding.startswith("64 bytes of stack, 0 allowed: ") and "LDL" in finding and "STL" in finding
    assert line_of(histogram, "counts[x") in finding


@BOTH
def test_a_claimed_stack_is_allowed(capability):
    allowed = replace(histogram, claims=Claims(stack=64))
    assert gate.findings(allowed, gate.resources(allowed, capability)) == []
    short = replace(histogram, claims=Claims(stack=60))
    assert len(gate.findings(short, gate.resources(short, capability))) == 1


@BOTH
def test_spills_are_found(capability):
    used = gate.resources(outer, capability)
    (finding,) = gate.findings(outer, used)
    assert used.registers <= 32 and used.spill_stores > 0 and used.spill_loads > 0
    assert "spilled" in finding and "threads=1024 or blocks=2" in finding


@BOTH
def test_blocks_that_do_not_fit_are_found(capability):
    used = gate.resources(hoard, capability)
    (finding,) = gate.findings(hoard, used)
    assert used.static_shared == 96 * 128 * 4, "also on sm_90, whose cubin counts the driver's 1024 bytes too"
    assert "blocks=5" in finding and "limited by shared" in finding


@needs_machine_code
@BOTH
@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        ("wide", ["16-byte load", "16-byte store"]),
        ("tensor", ["tensor-core"]),
        ("asynchronous", ["asynchronous copy"]),
    ],
)
def test_a_broken_promise_is_found(claim, missing, capability):
    plain = replace(tenth, claims=Claims(**{claim: True}))
    found = [f for f in gate.findings(plain, gate.resources(plain, capability)) if f.startswith(f"claims {claim}")]
    assert len(found) == len(missing) and all(m in f for m, f in zip(missing, found))


def test_float64_opcodes_are_told_from_others():
    import re

    double = "DFMA DADD DMUL.RZ DSETP.MAX.AND DMNMX F2F.F64.F32 F2F.F32.F64 I2F.F64.S64 F2I.F64.TRUNC MUFU.RCP64H"
    assert all(re.match(gate.FLOAT64, opcode) for opcode in double.split())
    single = "FFMA LDG.E.64 LDG.E.64.CONSTANT IMAD.WIDE.U32 DEPBAR.LE MUFU.RCP F2F.BF16.F32 SHF.R.S64 I2F.S64 F2FP.BF16"
    assert not any(re.match(gate.FLOAT64, opcode) for opcode in single.split())


def test_without_nvdisasm_resources_still_come_and_it_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_binary_utility", lambda name: None)
    used = gate.resources.__wrapped__(tenth, (8, 0))
    assert used.instructions is None and used.registers > 0 and gate.findings(tenth, used) == []
    monkeypatch.setattr(gate, "resources", gate.resources.__wrapped__)
    monkeypatch.setattr(report, "all_kernels", lambda: {"halve": halve})
    monkeypatch.setattr(budgets, "BUDGETS", tmp_path / "budgets.toml")
    report.main(["--record"])
    assert gate.NO_DISASSEMBLER in " ".join(capsys.readouterr().out.split())


def test_what_the_assembler_refuses_is_told():
    with pytest.raises(RuntimeError, match=r"greedy does not compile for sm_80: (?s:.)*too much shared data"):
        gate.resources(greedy, (8, 0))


def test_shared_arrays_are_added_up_with_their_alignment():
    text = ".shared .align 4 .b8 a[12];\n.visible .shared .align 16 .b8 b[32];\n.extern .shared .align 8 .b8 c[];"
    assert gate.static_shared(text) == 16 + 32


# Budgets.


@BOTH
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_clean_and_within_its_budget(name, capability):
    used = gate.resources(KERNELS[name], capability)
    allowed = budgets.read_budgets(budgets.BUDGETS)
    wrong = gate.findings(KERNELS[name], used) + budgets.over_budget(name, KERNELS[name], used, allowed)
    assert not wrong, "\n".join(wrong)


def test_every_budget_has_a_kernel():
    allowed = budgets.read_budgets(budgets.BUDGETS)
    for capability in gate.ARCHITECTURES:
        strays = set(allowed.get(gate.architecture(capability), {})) - set(KERNELS)
        assert not strays, "no such kernels any more; run `python -m gpu.report --record`"


def test_budgets_are_of_the_installed_compilers():
    if other := budgets.other_compilers(budgets.read_budgets(budgets.BUDGETS)):
        pytest.skip(f"budgets allow {budgets.ALLOWANCE} registers more, because {other}")


@pytest.fixture
def recorded(tmp_path):
    """Budgets of `halve`, written and read."""
    used = gate.resources(halve, (8, 0))
    budgets.write_budgets({"sm_80": {"halve": budgets.spent(halve, used)}}, tmp_path / "budgets.toml")
    return used, budgets.read_budgets(tmp_path / "budgets.toml")


def test_a_kernel_is_within_the_budget_it_was_recorded_with(recorded):
    used, allowed = recorded
    assert budgets.over_budget("halve", halve, used, allowed) == []


@pytest.mark.parametrize("what", ["registers", "stack", "spills", "shared"])
def test_a_broken_budget_is_noticed(recorded, what):
    used, allowed = recorded
    allowed["sm_80"]["halve"][what] -= 1
    (finding,) = budgets.over_budget("halve", halve, used, allowed)
    assert f" {what}, budget {allowed['sm_80']['halve'][what]};" in finding


def test_a_kernel_without_a_budget_is_noticed(recorded):
    used, allowed = recorded
    (finding,) = budgets.over_budget("other", halve, used, allowed)
    assert finding.startswith("it has no budget")


@pytest.mark.parametrize(("more", "found"), [(8, 0), (9, 1)])
def test_another_compiler_may_take_eight_registers_more(recorded, more, found):
    used, allowed = recorded
    allowed["compilers"]["nvidia-nvjitlink"] = "13.0.1"
    findings = budgets.over_budget("halve", halve, replace(used, registers=used.registers + more), allowed)
    assert len(findings) == found
    assert all("was 13.0.1" in f for f in findings)
    stack = budgets.over_budget("halve", halve, replace(used, stack=8), allowed)
    assert len(stack) == 1, "the allowance is for registers only"


# The report.

SHOP = """
from numba import cuda

from gpu.kernel import kernel

def made(step):
    @kernel("float32[:]", threads=32)
    def touch(x):
        x[step * cuda.threadIdx.x] = x[0]
    return touch

tiles = {8: made(8), 16: made(16)}
pair = (tiles[8], made(3))

@kernel("float32[:]", threads=32)
def alone(x):
    x[0] = x[1]
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A package with kernels in a module, in a dict and in a tuple, and a benchmark that must not be imported."""
    (tmp_path / "shop/inner/bench").mkdir(parents=True)
    (tmp_path / "shop/__init__.py").write_text("")
    (tmp_path / "shop/inner/__init__.py").write_text("from shop.inner.desk import alone\n")
    (tmp_path / "shop/inner/desk.py").write_text(SHOP)
    (tmp_path / "shop/inner/bench/__init__.py").write_text("raise AssertionError('a benchmark was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    import shop

    yield shop
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


def test_kernels_are_found_wherever_a_module_keeps_them(shop):
    inside = "shop.inner.desk."
    assert list(report.all_kernels(shop)) == [
        f"{inside}alone",
        f"{inside}touch[16]",
        f"{inside}touch[8]",
        f"{inside}touch[pair[1]]",
    ]


def test_two_kernels_of_one_name_are_refused(shop):
    shop.inner = __import__("shop.inner.desk").inner
    shop.inner.desk.other = {16: shop.inner.desk.made(5)}
    with pytest.raises(ValueError, match=r"two kernels are called shop\.inner\.desk\.touch\[16\]"):
        report.all_kernels(shop)


@pytest.fixture
def reported(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "all_kernels", lambda: {"a.halve": halve, "b.hoard": hoard, "c.square": square})
    monkeypatch.setattr(budgets, "BUDGETS", tmp_path / "budgets.toml")


@needs_machine_code
def test_the_report_records_shows_and_judges(reported, capsys):
    assert report.main(["--kernel", "halve"]) == 1, "no budget yet"
    assert report.main(["--record", "--kernel", "halve"]) == 0
    assert report.main(["--kernel", "square"]) == 1, "only what was named"
    assert report.main(["--record", "--kernel", "square"]) == 0
    assert report.main(["--kernel", "halve"]) == 0, "what was recorded before stays"
    assert report.main([]) == 1, "hoard has findings"
    text = capsys.readouterr().out
    assert "a.halve on sm_80 and sm_90: it has no budget" in text
    assert "b.hoard on sm_80: blocks=5 should fit" in " ".join(text.split())


def test_another_compiler_makes_the_report_record_all_and_drop_what_is_gone(reported):
    old = {"sm_80": {"a.halve": {"registers": 1, "stack": 0, "spills": 0, "shared": 0}, "gone": {"registers": 1}}}
    budgets.write_budgets(old, budgets.BUDGETS)
    report.main(["--record", "--kernel", "square"])
    kept = budgets.read_budgets(budgets.BUDGETS)["sm_80"]
    assert kept["a.halve"]["registers"] == 1 and set(kept) == {"a.halve", "c.square"}
    text = budgets.BUDGETS.read_text().replace(budgets.compilers()["nvidia-nvvm"], "13.0.0")
    budgets.BUDGETS.write_text(text)
    report.main(["--record", "--kernel", "square"])
    fresh = budgets.read_budgets(budgets.BUDGETS)["sm_80"]
    assert fresh["a.halve"]["registers"] > 1 and set(fresh) == {"a.halve", "b.hoard", "c.square"}


@needs_machine_code
def test_the_report_is_also_json(reported, capsys):
    report.main(["--record"])
    capsys.readouterr()
    assert report.main(["--json", "--kernel", "square"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["architecture"], second["architecture"]) == ("sm_80", "sm_90")
    assert first["tensor"] == first["instructions"]["HMMA.16816.F32.BF16"] == 1
    assert first["asynchronous"] == 1 and first["wide"] == 1, "the asynchronous copy is of 16 bytes"
    assert first["static_shared"] == 512 and first["limits"] == ["blocks"]


def test_a_kernel_that_does_not_compile_is_named(monkeypatch):
    monkeypatch.setattr(report, "all_kernels", lambda: {"greedy": greedy})
    with pytest.raises(SystemExit, match=r"greedy does not compile for sm_80: "):
        report.main([])


def test_a_name_that_no_kernel_has_is_told(reported):
    with pytest.raises(SystemExit, match=r"no kernel has 'none' in its name; there are: a\.halve, b\.hoard"):
        report.main(["--kernel", "none"])
