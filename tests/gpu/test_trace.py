"""The trace counts what each access costs: numbers that can be worked out by hand."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("greenlet")

from numba import cuda

from gpu.kernel import kernel
from gpu.simulator import Simulator, examples
from gpu.simulator.cost import Request, conflict_ways, num_ideal_sectors, num_sectors

try:
    from gpu import ptx
except ImportError:  # plain numba: the simulator knows the module by its name only
    ptx = ModuleType("gpu.ptx")

ROOT = Path(__file__).parents[2]
LANES = np.arange(32)


def traced(k, grid, block, *arguments, shared=0, **options):
    machine = Simulator(trace=True, **options)
    arrays = [machine.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    k[grid, block, None, shared](*arrays)
    return machine.trace


def only(trace, array, kind):
    (row,) = [row for row in trace.table() if (row.array, row.kind) == (array, kind)]
    return row


def request(addresses, width=4, lanes=LANES):
    return Request(tuple(int(i) for i in lanes), tuple(int(a) for a in addresses), width)


# Costs.


@pytest.mark.parametrize(
    ("addresses", "width", "sectors", "ideal"),
    [
        (4 * LANES, 4, 4, 4),
        (4 * LANES[::-1], 4, 4, 4),  # the order of the lanes does not matter
        (4 * LANES + 4, 4, 5, 4),  # off by one element
        (128 * LANES, 4, 32, 4),
        (8 * LANES, 4, 8, 4),
        (0 * LANES, 4, 1, 1),
        (16 * LANES, 16, 16, 16),
        (LANES, 1, 1, 1),
        (2 * LANES + 30, 2, 3, 2),
        (8 * LANES + 24, 8, 9, 8),
    ],
)
def test_sectors(addresses, width, sectors, ideal):
    asked = request(addresses, width)
    assert (num_sectors(asked), num_ideal_sectors(asked)) == (sectors, ideal)


@pytest.mark.parametrize(
    ("addresses", "width", "ways"),
    [
        (4 * LANES, 4, 1),
        (128 * LANES, 4, 32),
        (132 * LANES, 4, 1),
        (8 * LANES, 4, 2),
        (0 * LANES, 4, 1),  # one word for all
        (4 * (LANES // 2), 4, 1),
        (LANES, 1, 1),  # four lanes share a word
        (4 * (LANES % 8) + 128 * (LANES // 8), 4, 4),
        (8 * LANES, 8, 1),  # in halves
        (16 * LANES, 16, 1),  # in quarters
        (32 * LANES, 16, 2),
        (128 * LANES, 16, 8),
        (144 * LANES, 16, 1),
    ],
)
def test_bank_conflicts(addresses, width, ways):
    assert conflict_ways(request(addresses, width)) == ways


# Kernels.


@pytest.mark.parametrize(
    ("name", "sectors", "ways"), [("coalesced", 4, 0), ("strided", 32, 0), ("conflict", 0, 32), ("padded", 0, 1)]
)
def test_the_examples_cost_what_they_should_teach(name, sectors, ways):
    example, block, access, _ = examples.EXAMPLES[name]
    row = examples.find(examples.traced(example, block), *access)
    assert (row.sectors / row.requests, row.worst_ways, row.ways) == (sectors, ways, ways)
    assert row.lanes == 32 and row.divergent == 0 and row.requests == example.threads // 32
    if sectors:
        assert row.ideal_sectors == 4 * row.requests


@kernel("float32[:], float32[:], int32", threads=64)
def wide(x, y, shift):
    tile = cuda.shared.array(256, np.float32)
    i = 4 * cuda.grid(1)
    a, b, c, d = ptx.load4(x, i)
    ptx.store4(tile, i, a, b, c, d)
    cuda.syncthreads()
    ptx.store4(y, i, a, b, c, tile[i + shift])


@pytest.mark.parametrize("seed", [None, 3])
def test_accesses_of_16_bytes(seed):
    trace = traced(wide, 1, 64, np.zeros(256, np.float32), np.zeros(256, np.float32), 1, seed=seed)
    load, store = only(trace, "x", "load"), only(trace, "tile", "store")
    assert (load.requests, load.sectors, load.ideal_sectors) == (2, 32, 32)
    assert (store.requests, store.worst_ways, store.sectors) == (2, 1, 0)
    assert only(trace, "tile", "load").worst_ways == 4  # one float every 16 bytes
    assert load.source == "ptx.load4(x, i)" and load.costliest.width == 16
    assert only(trace, "y", "store").sectors == 32


@kernel("float32[:], int32, int32", threads=96)
def branches(x, n, start):
    i = cuda.grid(1)
    if i >= n:
        return
    x[i] += 1
    cuda.syncwarp()
    if i % 2:
        x[i] = x[i - 1] + x[i]
    for k in range(start, 3):
        x[i + k] = k


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_requests_are_counted_by_warp_turn_and_place_with_the_lanes_that_take_part(seed):
    trace = traced(branches, 2, 96, np.zeros(200, np.float32), 168, 0, seed=seed)
    rows = [(r.source, r.kind, r.requests, round(r.lanes, 2), r.divergent) for r in trace.table()]
    # Of six warps four and a part of a fifth run: 8 of its lanes stay below 168, then only those are alive.
    assert rows == [
        ("x[i]", "load", 6, 28.0, 1),
        ("x[i]", "store", 6, 28.0, 1),
        ("x[i]", "store", 6, 14.0, 6),
        ("x[i - 1]", "load", 6, 14.0, 6),
        ("x[i]", "load", 6, 14.0, 6),
        ("x[i + k]", "store", 18, 28.0, 0),
    ]
    assert [r.column for r in trace.table()][2:5] == [8, 15, 26]
    last = trace.table()[-1]
    # Each full warp writes 4 sectors, and 5 where it is shifted; 8 lanes need 1, or 2.
    assert last.sectors == 5 * (4 + 5 + 5) + 1 + 2 + 2 and last.ideal_sectors == 3 * (5 * 4 + 1)


@kernel("float32[:], int32[:]", threads=32)
def two_launches(x, counts):
    t = cuda.threadIdx.x
    memory = cuda.shared.array(0, np.float32)
    upper = memory[32:]
    upper[t] = x[t] * x[31 - t]
    cuda.syncthreads()
    cuda.atomic.add(counts, t % 2, 1)


def test_launches_and_blocks_add_up_and_names_are_those_of_the_source():
    machine = Simulator(trace=True)
    x, counts = machine.array(np.ones(32, np.float32)), machine.array(np.zeros(2, np.int32))
    for _ in range(2):
        two_launches[3, 32, None, 256](x, counts)
    table = machine.trace.table()
    assert [(r.source, r.array, r.space, r.kind, r.requests) for r in table] == [
        ("upper[t]", "memory", "shared", "store", 6),
        ("x[t]", "x", "global", "load", 6),
        ("x[31 - t]", "x", "global", "load", 6),
        ("cuda.atomic.add(counts, t % 2, 1)", "counts", "global", "atomic", 6),
    ]
    assert table[0].costliest.addresses == tuple(range(128, 256, 4))
    assert list(machine.trace.barriers.values()) == [6]
    assert Simulator().trace is None


def test_the_printed_table_is_aligned_and_says_where():
    lines = str(examples.traced(examples.conflicting_transpose, (32, 32))).splitlines()
    head = ["place", "access", "memory", "kind", "requests", "lanes", "divergent", "sectors", "ideal", "ways", "worst"]
    assert lines[0].split() == head
    (row,) = [line for line in lines if "tile[j, i]" in line]
    assert re.fullmatch(r"examples.py:\d+  tile\[j, i\]  tile \(shared\)  load   +32 +32 +32 +32", row)
    assert len({len(line) for line in lines[1:5] if "shared" in line} | {len(lines[0])}) == 1
    assert re.fullmatch(r"examples.py:\d+  barriers passed: 1", lines[-1])


def test_tracing_changes_no_result_and_finds_the_same_errors():
    x = np.arange(200, dtype=np.float32)
    results = []
    for trace in (False, True):
        machine = Simulator(trace=trace)
        a = machine.array(x)
        branches[2, 96](a, 168, 0)
        results.append(a.numpy())
        with pytest.raises(RuntimeError, match="no element"):
            branches[2, 96](a, 200, 5 - 10)
    np.testing.assert_array_equal(*results)


# Pictures.


def test_pictures_are_drawn_small_and_without_an_error(tmp_path):
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, "-m", "gpu.simulator.examples", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "32" in done.stdout and "conflicting_transpose" in done.stdout
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sorted(sizes) == [f"gpu-{name}.png" for name in sorted(examples.EXAMPLES)]
    assert max(sizes.values()) < 150_000


def test_a_picture_shows_every_lane_once_and_says_what_it_costs():
    Figure = pytest.importorskip("matplotlib.figure").Figure
    from gpu.simulator.picture import draw_access

    trace = traced(wide, 1, 64, np.zeros(256, np.float32), np.zeros(256, np.float32), 0)
    for array, kind, says in (
        ("x", "load", "16 sectors of 32 bytes travel, not one more"),
        ("tile", "store", "no bank is asked for two words at once"),
        ("tile", "load", "is asked for 4 words, one after the other"),
    ):
        axes = Figure().add_subplot()
        draw_access(only(trace, array, kind), axes)
        texts = [text.get_text() for text in axes.texts]
        assert any(says in text for text in texts), texts
        shown = [text for text in texts if text.isdecimal()]
        assert {str(lane) for lane in LANES} <= set(shown)
