"""The simulator runs kernels as a GPU would, and says where one breaks a rule."""

from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("greenlet")

from numba import cuda, float32

from gpu.errors import KernelError
from gpu.kernel import device, kernel
from gpu.simulator import Simulator

try:
    from gpu import ptx
except ImportError:  # plain numba: the simulator knows the module by its name only
    ptx = ModuleType("gpu.ptx")

FULL = 0xFFFFFFFF
SEEDS = (None, 0, 1)


def launched(k, grid, block, *arguments, shared=0, **options):
    """The arrays after a launch in a simulator."""
    machine = Simulator(**options)
    arrays = [machine.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    k[grid, block, None, shared](*arrays)
    results = [a.numpy() for a, given in zip(arrays, arguments) if isinstance(given, np.ndarray)]
    return results[0] if len(results) == 1 else results


def error(k, grid, block, *arguments, **options):
    with pytest.raises(KernelError) as raised:
        launched(k, grid, block, *arguments, **options)
    return str(raised.value)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# Grids, blocks, device functions.


@kernel("int32[:, :, :, :], int32", threads=64)
def coordinates(out, n):
    x, y, z = cuda.grid(3)
    gx, gy, _ = cuda.gridsize(3)
    if x < n:
        out[z, y, x, 0] = x + gx * (y + gy * z)
        out[z, y, x, 1] = cuda.laneid
        out[z, y, x, 2] = (
            cuda.threadIdx.x
            + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
            + 1000 * cuda.blockIdx.y
        )
        out[z, y, x, 3] = cuda.gridDim.x + 10 * cuda.gridDim.y + 100 * cuda.gridDim.z


def test_threads_of_a_3d_grid_know_where_they_are():
    out = launched(coordinates, (2, 3, 2), (5, 4, 3), zeros(6, 12, 10, 4, dtype=np.int32) - 1, 9)
    z, y, x = np.mgrid[:6, :12, :10]
    thread = x % 5 + 5 * (y % 4 + 4 * (z % 3))
    expected = np.stack([x + 10 * (y + 12 * z), thread % 32, thread + 1000 * (y // 4), np.full_like(x, 232)], -1)
    expected[:, :, 9] = -1
    np.testing.assert_array_equal(out, expected)


@device
def squared(x):
    return x * x


@device
def fourth(x):
    return squared(squared(x))


def scaled_kernel(factor, function):
    @kernel("float32[:]", threads=32)
    def scaled(x):
        i = cuda.grid(1)
        x[i] = factor * function(x[i])

    return scaled


def test_closures_and_device_functions_that_call_each_other_are_found():
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(launched(scaled_kernel(np.float32(3), fourth), 1, 8, x), 3 * x**4)


@device
def lane_plus(x):
    return x + cuda.laneid


@kernel("int32[:]", threads=64)
def asks_its_lane(x):
    x[cuda.grid(1)] = lane_plus(100)


def test_a_device_function_sees_the_thread_that_calls_it():
    np.testing.assert_array_equal(launched(asks_its_lane, 1, 40, zeros(40, dtype=np.int32)), 100 + np.arange(40) % 32)


@kernel("float32[:], float32, int32, uint32", threads=1)
def kinds_of_scalars(out, f, i, u):
    out[0] = f * f  # float32: infinity, silently
    out[1] = (i * i) >> 32  # 64 bits, as numba computes
    out[2] = u * u  # unsigned: wraps


def test_scalars_compute_as_numba_computes_and_hardware_is_silent():
    out = launched(kinds_of_scalars, 1, 1, zeros(3), 1e30, 1 << 20, 1 << 16)
    np.testing.assert_array_equal(out, [np.inf, 256, 0])


# Warp operations against a NumPy model.


@kernel("int32[:, :], int32[:], int32", threads=96)
def warp_operations(out, x, n):
    i = cuda.grid(1)
    out[i, 0] = cuda.shfl_sync(FULL, x[i], n)
    out[i, 1] = cuda.shfl_up_sync(FULL, x[i], n)
    out[i, 2] = cuda.shfl_down_sync(FULL, x[i], n)
    out[i, 3] = cuda.shfl_xor_sync(FULL, x[i], n)
    out[i, 4] = cuda.any_sync(FULL, x[i] == 3)
    out[i, 5] = cuda.all_sync(FULL, x[i] < 7)
    out[i, 6] = cuda.ballot_sync(FULL, x[i] > 3)
    out[i, 7] = cuda.match_any_sync(FULL, x[i])
    out[i, 8] = cuda.popc(cuda.activemask())
    out[i, 9] = cuda.ballot_sync(FULL, x[i] > 3) < 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [0, 1, 5, 16, 31])
def test_every_warp_operation_equals_its_numpy_model(n, seed):
    x = np.random.default_rng(n).integers(0, 8, 96).astype(np.int32)
    x[:32] %= 3
    out = launched(warp_operations, 1, 96, zeros(96, 10, dtype=np.int32), x, n, seed=seed)[0]
    lane = np.arange(32)
    for warp in range(3):
        v, got = x[32 * warp :][:32], out[32 * warp :][:32].T
        np.testing.assert_array_equal(got[0], np.full(32, v[n]))
        np.testing.assert_array_equal(got[1], np.where(lane >= n, v[lane - n], v))
        np.testing.assert_array_equal(got[2], np.where(lane + n < 32, v[(lane + n) % 32], v))
        np.testing.assert_array_equal(got[3], v[lane ^ n])
        assert set(got[4]) == {int((v == 3).any())} and set(got[5]) == {int((v < 7).all())}
        bits = (np.uint32(1) << lane.astype(np.uint32)).astype(np.uint32)
        assert set(got[6]) == {int(np.sum(bits[v > 3], dtype=np.uint32).view(np.int32))}
        same = [np.sum(bits[v == w], dtype=np.uint32).view(np.int32) for w in v]
        np.testing.assert_array_equal(got[7], same)
        assert set(got[8]) == {32} and set(got[9]) == {int(v[31] > 3)}


@kernel("int32[:]", threads=32)
def halves(out):
    lane = cuda.laneid
    if lane < 16:
        out[lane] = cuda.shfl_sync(0x0000FFFF, lane, 5) + 1000 * cuda.popc(cuda.activemask())
    else:
        out[lane] = cuda.shfl_xor_sync(0xFFFF0000, lane, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_halves_of_a_warp_may_do_different_operations(seed):
    lane = np.arange(32)
    np.testing.assert_array_equal(
        launched(halves, 1, 32, zeros(32, dtype=np.int32), seed=seed), np.where(lane < 16, 16005, lane ^ 1)
    )


@kernel("int32[:]", threads=32)
def active_in_a_branch(out):
    lane = cuda.laneid
    if lane < 10:
        out[lane] = cuda.activemask()
    cuda.syncwarp()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_active_lanes_are_those_that_are_in_a_branch_together(seed):
    out = launched(active_in_a_branch, 1, 32, zeros(32, dtype=np.int32), seed=seed)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 10, 0x3FF, 0))


@kernel("int32[:], int32, int32", threads=32)
def some_return(out, alive, source):
    lane = cuda.laneid
    if lane >= alive:
        return
    out[lane] = cuda.shfl_sync(FULL, lane + 7, source)


def test_lanes_that_returned_are_not_waited_for_but_not_read():
    np.testing.assert_array_equal(launched(some_return, 1, 32, zeros(32, dtype=np.int32), 9, 8)[:9], 15)
    message = error(some_return, 1, 32, zeros(32, dtype=np.int32), 9, 9)
    assert "reads the value of lane 9" in message and "`out[lane] = cuda.shfl_sync" in message
    assert "lane 30" in error(some_return, 1, 20, zeros(32, dtype=np.int32), 32, 30)  # there are but 20


@kernel("int32[:], int32", threads=32)
def mask_without_me(out, mask):
    out[cuda.laneid] = cuda.shfl_sync(mask, 1, 0)


def test_a_lane_must_be_in_its_own_mask():
    message = error(mask_without_me, 1, 32, zeros(32, dtype=np.int32), 0x7FFFFFFF)
    assert "lane 31 calls shfl_sync with mask 0x7fffffff" in message and "thread (31, 0, 0)" in message


@kernel("int32[:]", threads=32)
def masks_that_differ(out):
    lane = cuda.laneid
    mask = 0xFF if lane < 4 else 0xFFFFFFFF
    out[lane] = cuda.shfl_sync(mask, lane, 0)


def test_lanes_that_name_each_other_with_different_masks_are_stuck():
    message = error(masks_that_differ, 1, 32, zeros(32, dtype=np.int32))
    assert "stuck: threads 0-3 wait at test_simulator.py:" in message
    assert "(shfl_sync with mask 0x000000ff), threads 4-31 wait at" in message


@kernel("int32[:]", threads=1)
def bit_functions(out):
    out[0] = cuda.popc(np.uint32(0xF0F0))
    out[1] = cuda.clz(np.int32(1))
    out[2] = cuda.ffs(np.int32(8))
    out[3] = cuda.ffs(0)
    out[4] = cuda.brev(np.uint32(1)) >> 31
    out[5] = cuda.clz(np.int64(1))
    out[6] = cuda.selp(out[0] > 3, 5, 6)
    out[7] = cuda.fma(2, 3, 4)
    out[8] = cuda.popc(-1)


def test_bits():
    np.testing.assert_array_equal(
        launched(bit_functions, 1, 1, zeros(9, dtype=np.int32)), [8, 31, 4, 0, 1, 63, 5, 10, 32]
    )


# Barriers.


@kernel("int32[:]", threads=1024)
def sum_of_block(out):
    shared = cuda.shared.array(1024, np.int32)
    t = cuda.threadIdx.x
    shared[t] = t
    cuda.syncthreads()
    total = 0
    for i in range(cuda.blockDim.x):
        total += shared[i]
    out[t] = total


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [1, 31, 33, 100])
def test_blocks_need_no_multiple_of_32_threads(threads, seed):
    out = launched(sum_of_block, 1, threads, zeros(threads, dtype=np.int32), seed=seed)
    np.testing.assert_array_equal(out, threads * (threads - 1) // 2)


@kernel("int32[:, :], int32", threads=128)
def barriers_that_vote(out, n):
    t = cuda.threadIdx.x
    out[t, 0] = cuda.syncthreads_count(t < n)
    out[t, 1] = cuda.syncthreads_and(t < n)
    out[t, 2] = cuda.syncthreads_or(t < n)


@pytest.mark.parametrize("n", [0, 40, 70])
def test_barriers_that_vote_tell_every_thread(n):
    out = launched(barriers_that_vote, 1, 70, zeros(70, 3, dtype=np.int32), n)
    np.testing.assert_array_equal(out, np.tile([n, int(n == 70), int(n > 0)], (70, 1)))


@kernel("int32", threads=64)
def unused(n):
    pass


@kernel("int32[:], int32", threads=96)
def divergent_barrier(out, kind):
    t = cuda.threadIdx.x
    if kind == 0 and t >= 32:
        return
    if kind == 1 and t % 2:
        cuda.syncthreads()
    if kind == 2 and t == 40:
        cuda.syncwarp()
    cuda.syncthreads()
    out[t] = 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_that_some_threads_miss_is_an_error_that_says_who_waits_where(seed):
    out = zeros(96, dtype=np.int32)
    message = error(divergent_barrier, (1, 2), 64, out, 0, seed=seed)
    assert "test_simulator.divergent_barrier, block (0, " in message
    assert "threads 0-31 wait at test_simulator.py:" in message
    assert "(syncthreads), threads 32-63 have returned" in message
    message = error(divergent_barrier, 1, 4, out, 1, seed=seed)
    assert "threads 0, 2 wait at" in message and "threads 1, 3 wait at" in message
    message = error(divergent_barrier, 1, 96, out, 2, seed=seed)
    assert "threads 40 wait at" in message and "(syncwarp with mask 0xffffffff)" in message
    np.testing.assert_array_equal(launched(divergent_barrier, 1, 96, out, 3, seed=seed), 1)


@kernel("int32[:], int32[:]", threads=64)
def locked(lock, total):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    total[0] = total[0] + 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lock_is_handed_on_and_one_that_nobody_opens_is_an_error(seed, monkeypatch):
    lock, total = launched(locked, 2, 64, zeros(1, dtype=np.int32), zeros(1, dtype=np.int32), seed=seed)
    assert (lock[0], total[0]) == (0, 128)
    monkeypatch.setattr("gpu.simulator.block.MAX_SPINS", 100)
    assert "wait for ever" in error(locked, 1, 2, zeros(1, dtype=np.int32) + 1, zeros(1, dtype=np.int32), seed=seed)


# Memory.


@kernel("float32[:, :], int32, int32, int32", threads=32)
def touches(x, space, i, j):
    tile = cuda.shared.array((4, 8), float32)
    mine = cuda.local.array((4, 8), np.float32)
    if cuda.threadIdx.x == 3:
        if space == 0:
            x[i, j] = 1
        elif space == 1:
            tile[i, j] = 1
        elif space == 2:
            mine[i, j] += 1
        elif space == 3:
            ptx.load4(x, 8 * i + j)
        else:
            cuda.atomic.add(x, (i, j), 1)


@pytest.mark.parametrize("where", [(-1, 0), (0, -1), (4, 0), (0, 8), (3, 9)])
@pytest.mark.parametrize(
    ("space", "name"),
    [(0, "global array 'x'"), (1, "shared array 'tile'"), (2, "local array 'mine'"), (3, "'x'"), (4, "'x'")],
)
def test_an_element_that_is_not_there_is_an_error_that_says_where(space, name, where):
    if space == 3 and 0 <= 8 * where[0] + where[1] <= 28:
        return  # a flat index knows no rows
    message = error(touches, (1, 1, 2), (8, 4), zeros(4, 8), space, *where)
    assert f"{name} of shape (4, 8) has no element" in message
    assert "test_simulator.touches, block (0, 0, 0), thread (3, 0, 0), test_simulator.py:" in message
    if space != 3:
        assert f"[{where[0]}, {where[1]}]" in message


@kernel("float32[:, :], float32[:], int32", threads=1)
def odd_indices(x, y, kind):
    if kind == 0:
        y[0] = x[np.int8(3), np.uint8(200)]  # 3 * 256 + 200 would wrap
    elif kind == 1:
        row = x[2]
        part = row[10:20]
        part[3] = 5
        y[0] = part.shape[0] + len(row)
    elif kind == 2:
        y[0] = x[1.5, 0]
    elif kind == 3:
        y[0] = x[0, 0, 0]
    elif kind == 4:
        x[0] = 1
    elif kind == 5:
        y[0] = x[2][256]
    else:
        y[0] = x[:, 3][0]


def test_small_integers_and_parts_of_arrays_find_the_right_element():
    x = np.arange(4 * 256, dtype=np.float32).reshape(4, 256)
    assert launched(odd_indices, 1, 1, x, zeros(1), 0)[1] == x[3, 200]
    changed, y = launched(odd_indices, 1, 1, x, zeros(1), 1)
    assert np.argwhere(changed != x).tolist() == [[2, 13]] and changed[2, 13] == 5 and y[0] == 266


@pytest.mark.parametrize(
    ("kind", "says"),
    [(2, "an index is an integer"), (3, "has 2 dimensions"), (4, "one element at a time"), (5, "has no element [256]"),
     (6, "not contiguous")],
)  # fmt: skip
def test_an_index_that_numba_would_refuse_is_an_error(kind, says):
    assert says in error(odd_indices, 1, 1, zeros(4, 256), zeros(1), kind)


@kernel("float32[:], int32[:], int32[:]", threads=32)
def reads_before_writing(f, i, b):
    # fmt: off
    x, y = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.int32)
    # fmt: on
    z = cuda.local.array(2, np.int32)
    t = cuda.threadIdx.x
    f[t], i[t], b[t] = x[t], y[t], z[1]
    x[t] = 1


def test_memory_is_poisoned_in_every_block_and_two_arrays_on_one_line_are_two():
    f, i, b = launched(reads_before_writing, 2, 32, zeros(32), zeros(32, dtype=np.int32), zeros(32, dtype=np.int32))
    assert np.isnan(f).all() and (i == -1).all() and (b == -1).all()


@kernel("float32[:], int32", threads=32)
def dynamic(out, n):
    floats = cuda.shared.array(0, np.float32)
    ints = cuda.shared.array(shape=0, dtype=np.int32)[n:]
    t = cuda.threadIdx.x
    floats[t] = t / 2
    ints[t] = 3 * t
    cuda.syncthreads()
    out[t] = floats[t ^ 1] + ints[t ^ 1]


def test_dynamic_shared_memory_is_one_memory_of_the_size_of_the_launch():
    t = np.arange(32) ^ 1
    np.testing.assert_array_equal(launched(dynamic, 1, 32, zeros(32), 32, shared=256), t / 2 + 3 * t)
    assert "of shape (31,) has no element [31]" in error(dynamic, 1, 32, zeros(32), 32, shared=252)
    assert "race on shared memory" in error(dynamic, 1, 32, zeros(32), 31, shared=256)


@kernel("int32[:]", threads=32)
def too_much(out):
    a = cuda.shared.array((64, 128), np.float32)
    b = cuda.shared.array((64, 65), np.float32)
    out[0] = a.size + b.size


def test_more_than_48_kilobytes_of_static_shared_memory_is_an_error():
    assert "49408 bytes of static shared memory with 'b'" in error(too_much, 1, 1, zeros(1, dtype=np.int32))


@kernel("int8[:], uint32[:], float32[:]", threads=1)
def casts(a, b, c):
    a[0] = 300
    a[1] = -129
    a[2] = 200
    b[0] = -1
    b[1] = 1 << 33 | 5
    c[0] = 1 / 3


def test_what_is_stored_is_cast_to_the_arrays_type_and_integers_wrap():
    a, b, c = launched(casts, 1, 1, zeros(3, dtype=np.int8), zeros(2, dtype=np.uint32), zeros(1))
    assert a.tolist() == [44, 127, -56] and b.tolist() == [2**32 - 1, 5] and c[0] == np.float32(1 / 3)


TABLE = np.array([3, 1, 4, 1, 5], np.int32)


@kernel("int32[:], int32", threads=8)
def constants(out, write):
    table = cuda.const.array_like(TABLE)
    out[cuda.threadIdx.x] = table[cuda.threadIdx.x]
    if write:
        table[0] = 1


def test_constant_memory_is_read_only_and_has_bounds():
    np.testing.assert_array_equal(launched(constants, 1, 5, zeros(8, dtype=np.int32), 0)[:5], TABLE)
    assert "constant array 'table' of shape (5,) has no element [5]" in error(
        constants, 1, 6, zeros(8, dtype=np.int32), 0
    )
    assert "read-only" in error(constants, 1, 1, zeros(8, dtype=np.int32), 1)


@kernel("int32[:], float32[:]", threads=96)
def atomics(x, f):
    counts = cuda.shared.array(4, np.int32)
    t = cuda.threadIdx.x
    if t < 4:
        counts[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(counts, t % 4, 1)
    cuda.syncthreads()
    if t < 4:
        x[t] = counts[t]
    cuda.atomic.max(x, 4, t)
    cuda.atomic.min(x, 5, -t)
    cuda.atomic.sub(x, 6, 1)
    cuda.atomic.or_(x, 7, 1 << t % 8)
    cuda.atomic.and_(x, 8, ~(1 << t % 8))
    cuda.atomic.cas(x, 9, 5, 7)
    cuda.atomic.add(f, 0, np.float32(0.5))


@pytest.mark.parametrize("seed", SEEDS)
def test_atomic_operations_lose_nothing(seed):
    x = zeros(10, dtype=np.int32)
    x[8], x[9] = 0x1FF, 3
    x, f = launched(atomics, 1, 96, x, zeros(1), seed=seed)
    assert x.tolist() == [24, 24, 24, 24, 95, -95, -96, 255, 256, 3] and f[0] == 48


# Races.


@kernel("float32[:], int32", threads=64)
def reversed_through_shared(x, barriers):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    for _ in range(2):
        tile[t] = x[t]
        if barriers & 1:
            cuda.syncthreads()
        x[t] = tile[cuda.blockDim.x - 1 - t]
        if barriers & 2:
            cuda.syncthreads()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_removed_barrier_is_a_race_between_warps_and_inside_one(seed):
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(launched(reversed_through_shared, 1, 64, x, 3, seed=seed), x)
    for threads in (64, 32):
        for barriers in (0, 1, 2):
            message = error(reversed_through_shared, 1, threads, x[:threads], barriers, seed=seed)
            assert "race on shared memory: thread" in message and " tile[" in message
            assert ("no syncthreads" if threads == 64 else "no syncwarp") in message
    launched(reversed_through_shared, 1, 64, x, 0, seed=seed, races=False)  # nobody looks


@kernel("int32[:], int32", threads=64)
def scan(x, sync):
    """Inclusive sums of each warp (Hillis and Steele)."""
    s = cuda.shared.array(64, np.int32)
    t, lane = cuda.threadIdx.x, cuda.laneid
    s[t] = x[t]
    cuda.syncwarp()
    d = 1
    while d < 32:
        below = s[t - d] if lane >= d else 0
        if sync & 1:
            cuda.syncwarp()
        s[t] += below
        if sync & 2:
            cuda.syncwarp()
        d *= 2
    x[t] = s[t]


@pytest.mark.parametrize("seed", SEEDS)
def test_syncwarp_orders_a_warp_and_no_more(seed):
    x = np.arange(64, dtype=np.int32) % 7
    expected = np.cumsum(x.reshape(2, 32), axis=1).reshape(-1)
    np.testing.assert_array_equal(launched(scan, 1, 64, x, 3, seed=seed), expected)
    for sync in (0, 1, 2):
        assert "race on shared memory" in error(scan, 1, 64, x, sync, seed=seed)


@kernel("int32[:], int32", threads=64)
def warp_to_warp(x, kind):
    s = cuda.shared.array(2, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = 1
    cuda.syncwarp()
    if kind == 0 and t == 32:
        x[0] = s[0]
    if kind == 1 and t == 40:
        cuda.atomic.add(s, 0, 1)
    if kind == 2:
        cuda.atomic.add(s, 1, 1)
        if t == 63:
            x[0] = s[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_syncwarp_does_not_order_two_warps_nor_do_atomics_order_reads(kind, seed):
    assert "race on shared memory" in error(warp_to_warp, 1, 64, zeros(1, dtype=np.int32), kind, seed=seed)


@kernel("int32[:], int32, int32, int32", threads=64)
def read_then_written(x, first, second, writer):
    s = cuda.shared.array(2, np.int32)
    t = cuda.threadIdx.x
    if t in (first, second):
        x[t] = s[1]
    if t == writer:
        s[1] = 1


@pytest.mark.parametrize(
    ("first", "second", "writer", "who"),
    [
        (0, 0, 40, "thread 40 writes s[1], which thread 0 read"),
        (1, 2, 2, "thread 2 writes s[1], which several threads of warp 0 read"),
        (1, 2, 40, "thread 40 writes s[1], which several threads of warp 0 read"),
        (1, 40, 40, "thread 40 writes s[1], which threads of several warps read"),
        (5, 5, 5, None),
    ],
)
def test_writing_what_others_have_read_is_a_race(first, second, writer, who):
    x = zeros(64, dtype=np.int32)
    if who is None:
        launched(read_then_written, 1, 64, x, first, second, writer)
    else:
        assert who in error(read_then_written, 1, 64, x, first, second, writer)


# PTX, errors, names.


@kernel("float32[:, :], int32[:], int32", threads=4)
def ptx_operations(x, n, kind):
    t = cuda.threadIdx.x
    tile = cuda.shared.array((4, 4), np.float32)
    if kind == 0:
        a, b, c, d = ptx.load4(x, 4 * t)
        ptx.store4(tile, 4 * t, d, c, b, a)
        cuda.syncthreads()
        a, b, c, d = ptx.load4(tile, 4 * ((t + 1) % 4))
        ptx.store4(x, 4 * t, a, b, c, ptx.exp2(d))
        n[t] = ptx.dp4a(n[t], -2, 5)
    elif kind == 1:
        ptx.load4(x, 4 * t + 2)
    elif kind == 2:
        ptx.mma_bf16(0)
    elif kind == 3:
        ptx.store4(tile, 4 * t, 1, 2, 3, 4)
        ptx.load4(tile, 4 * (t ^ 1))
    else:
        x[0, 0] = ptx.divide(np.float32(1), np.float32(0))


def test_ptx_has_a_python_twin():
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    n = np.array([1, 0x01FF7F80, -1, 0x02020202], np.int32)
    got, m = launched(ptx_operations, 1, 4, x, n, 0)
    expected = np.roll(x, -1, axis=0)[:, ::-1].copy()
    expected[:, 3] = np.exp2(expected[:, 3])
    np.testing.assert_array_equal(got, expected)
    ours, minus_two = n.view(np.int8).reshape(4, 4).astype(int), np.array([-2, -1, -1, -1])
    np.testing.assert_array_equal(m, ours @ minus_two + 5)
    assert launched(ptx_operations, 1, 1, x, n, 4)[0][0, 0] == np.inf


def test_ptx_operations_that_hardware_refuses_are_errors():
    x, n = zeros(4, 4), zeros(4, dtype=np.int32)
    assert "element 2 is not at a multiple of 16 bytes" in error(ptx_operations, 1, 1, x, n, 1)
    assert "run in the emulator" in error(ptx_operations, 1, 1, x, n, 2)
    assert "race on shared memory" in error(ptx_operations, 1, 2, x, n, 3)


def test_the_twin_has_only_names_that_ptx_has():
    import gpu.simulator.ptx as twin

    pytest.importorskip("numba.cuda.extending")
    names = [name for name, value in vars(twin).items() if getattr(value, "__module__", "") == twin.__name__]
    assert {"load4", "store4", "exp2", "divide", "dp4a"} <= set(names)
    assert [name for name in names if name[0] != "_" and not hasattr(ptx, name)] == []


@kernel("float32[:], int32", threads=64)
def fails(x, kind):
    if cuda.grid(1) == 37:
        if kind == 0:
            x[0] = 1 // (kind * 2)
        cuda.no_such_thing()
    cuda.syncthreads()


def test_an_exception_says_where_and_keeps_the_original():
    with pytest.raises(
        KernelError, match=r"block \(1, 0, 0\), thread \(5, 0, 0\), test_simulator.py:\d+ `x\[0\] = 1 //"
    ) as raised:
        launched(fails, 2, 32, zeros(1), 0)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert "the simulator has no cuda.no_such_thing" in error(fails, 1, 64, zeros(1), 1)


@kernel("int32[:]", threads=4)
def order(out):
    out[cuda.atomic.add(out, 4, 1)] = cuda.grid(1)


@pytest.mark.parametrize(("blocks", "threads"), [(1, 4), (4, 1)])
def test_a_seed_fixes_an_order_and_seeds_differ(blocks, threads):
    def order_of(seed):
        return launched(order, blocks, threads, zeros(5, dtype=np.int32), seed=seed)[:4].tolist()

    assert order_of(None) == [0, 1, 2, 3] and order_of(5) == order_of(5)
    assert len({tuple(order_of(seed)) for seed in range(10)}) > 3
