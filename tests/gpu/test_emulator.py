"""The emulator: what a GPU would do, and what it says where a kernel breaks a rule."""

import math

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from numba import cuda

from gpu import ptx
from gpu.emulator import Emulator
from gpu.emulator.fiber import architecture, switch_ir
from gpu.errors import KernelError
from gpu.kernel import device, kernel

F32, I32, U32 = np.float32, np.int32, np.uint32
FULL = U32(0xFFFFFFFF)


@pytest.fixture(params=["fast", "checked", "one core"])
def machine(request):
    return Emulator(checked=request.param == "checked", cores=1 if request.param == "one core" else 2)


def fault(made, *arguments, grid=1, block=64, shared=0, seed=0):
    """The message with which a checked launch ends."""
    machine = Emulator(checked=True, seed=seed)
    on = [machine.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    with pytest.raises(KernelError) as caught:
        made[grid, block, None, shared](*on)
    return str(caught.value)


# What runs.


@kernel("int32[:, :]", threads=24)
def who(out):
    i = cuda.threadIdx.x + 2 * (cuda.threadIdx.y + 3 * cuda.threadIdx.z)
    b = cuda.blockIdx.x + 3 * (cuda.blockIdx.y + 2 * cuda.blockIdx.z)
    out[b * 24 + i, 0] = cuda.blockIdx.x * 100 + cuda.blockIdx.y * 10 + cuda.blockIdx.z
    out[b * 24 + i, 1] = cuda.threadIdx.x * 100 + cuda.threadIdx.y * 10 + cuda.threadIdx.z
    out[b * 24 + i, 2] = cuda.gridDim.x * 100 + cuda.gridDim.y * 10 + cuda.gridDim.z
    out[b * 24 + i, 3] = cuda.blockDim.x * 100 + cuda.blockDim.y * 10 + cuda.blockDim.z
    out[b * 24 + i, 4] = cuda.laneid


def test_every_thread_of_a_grid_knows_who_it_is(machine):
    out = machine.array(np.full((12 * 24, 5), -1, I32))
    who[(3, 2, 2), (2, 3, 4)](out)
    got = out.numpy().reshape(2, 2, 3, 4, 3, 2, 5)  # block z, y, x, thread z, y, x
    z, y, x, tz, ty, tx = np.indices(got.shape[:-1])
    assert np.array_equal(got[..., 0], 100 * x + 10 * y + z)
    assert np.array_equal(got[..., 1], 100 * tx + 10 * ty + tz)
    assert (got[..., 2] == 322).all() and (got[..., 3] == 234).all()
    assert np.array_equal(got[..., 4], tx + 2 * ty + 6 * tz)


@kernel("float32[:], float32[:], int32[:]", threads=64)
def exchange(x, out, flags):
    t = cuda.threadIdx.x
    out[t] = cuda.shfl_sync(FULL, x[t], 5)
    out[t + 64] = cuda.shfl_up_sync(FULL, x[t], 3)
    out[t + 128] = cuda.shfl_down_sync(FULL, x[t], 7)
    out[t + 192] = cuda.shfl_xor_sync(FULL, x[t], 21)
    if t % 32 < 16:
        out[t + 256] = cuda.shfl_xor_sync(U32(0x0000FFFF), x[t], 1)
    else:
        out[t + 256] = cuda.shfl_sync(U32(0xFFFF0000), x[t], 31)
    flags[t] = cuda.ballot_sync(FULL, t % 3 == 0)
    flags[t + 64] = I32(cuda.any_sync(FULL, t == 40)) + 2 * I32(cuda.all_sync(FULL, t < 32))
    flags[t + 128] = cuda.match_any_sync(FULL, t % 5)
    flags[t + 192] = cuda.eq_sync(FULL, t < 64)


def test_warp_operations(machine):
    x = np.arange(64, dtype=F32)
    out, flags = machine.empty(320), machine.empty(256, I32)
    exchange[1, 64](machine.array(x), out, flags)
    out, flags = out.numpy().reshape(5, 2, 32), flags.numpy().reshape(4, 2, 32)
    lane, rows = np.arange(32), x.reshape(2, 32)
    for got, source in zip(
        out, (0 * lane + 5, np.where(lane < 3, lane, lane - 3), np.where(lane < 25, lane + 7, lane), lane ^ 21)
    ):
        assert np.array_equal(got, rows[:, source])
    assert np.array_equal(out[4], rows[:, np.where(lane < 16, lane ^ 1, 31)])
    for warp in range(2):
        t = 32 * warp + lane
        assert (flags[0, warp].view(U32) == np.sum((t % 3 == 0) * 2**lane)).all()
        assert (flags[1, warp] == (1 if warp else 2)).all()
        assert np.array_equal(flags[2, warp].view(U32), [np.sum((t % 5 == v % 5) * 2**lane) for v in t])
        assert (flags[3, warp] == 1).all()


@kernel("int32[:]", threads=96)
def votes(out):
    t = cuda.threadIdx.x
    out[t] = cuda.syncthreads_count(I32(t % 4 == 0))
    out[t + 96] = cuda.syncthreads_and(I32(t < 95))
    out[t + 192] = cuda.syncthreads_or(I32(t == 95))


def test_barriers_that_count(machine):
    out = machine.empty(288, I32)
    votes[1, 96](out)
    assert np.array_equal(out.numpy() != 0, np.repeat([True, False, True], 96))
    assert (out.numpy()[:96] == 24).all()


@kernel("int32[:], float32[:], uint32[:]", threads=64)
def together(counts, sums, most):
    i = cuda.grid(1)
    cuda.atomic.add(counts, 0, 1)
    cuda.atomic.add(sums, i % 2, F32(0.5))
    cuda.atomic.max(most, 0, U32(i))
    cuda.atomic.min(counts, 1, -I32(i))
    cuda.atomic.cas(counts, 2, 7, 9)
    cuda.atomic.exch(counts, 3, 5)


def test_atomics_over_blocks_on_several_cores(machine):
    counts, sums = machine.array(np.array([0, 0, 7, 0], I32)), machine.array(np.zeros(2, F32))
    most = machine.array(np.zeros(1, U32))
    together[50, 64](counts, sums, most)
    assert list(counts.numpy()) == [3200, -3199, 9, 5] and list(sums.numpy()) == [800, 800]
    assert list(most.numpy()) == [3199]


@device
def half_sum(x, y):
    return (x + y) * F32(0.5)


@kernel("float32[:], float64[:], float16[:], int8[:], float32, int32, float64, uint32", threads=32)
def types(single, double, half, byte, f, i, d, u):
    t = cuda.threadIdx.x
    single[t] = half_sum(single[t], f) + F32(i)
    double[t] += d
    half[t] = F32(half[t]) + F32(half[t])
    byte[t] = byte[t] + 1
    if t == 0:
        single[0] = F32(u)


def test_scalars_and_arrays_of_each_type(machine):
    n = np.arange(32)
    arrays = [machine.array(n.astype(t)) for t in (F32, np.float64, np.float16, np.int8)]
    types[1, 32](*arrays, 3.5, -7, math.pi, 4_000_000_000)
    single, double, half, byte = (a.numpy() for a in arrays)
    assert np.array_equal(single[1:], (n[1:] + F32(3.5)) / 2 - 7) and single[0] == 4e9
    assert np.array_equal(double, n + math.pi) and np.array_equal(half, 2 * n) and np.array_equal(byte, n + 1)


@kernel("float32[:], float32[:, :]", threads=32)
def functions(x, y):
    t = cuda.threadIdx.x
    v = x[t]
    y[0, t], y[1, t], y[2, t] = math.exp(v), math.log(v), math.sqrt(v)
    y[3, t], y[4, t], y[5, t] = math.sin(v), math.cos(v), math.tanh(v)
    y[6, t], y[7, t], y[8, t] = math.floor(v), math.pow(v, F32(1.5)), max(v, F32(2))
    y[9, t], y[10, t] = abs(-v), min(v, F32(3))


def test_mathematical_functions(machine):
    x = np.linspace(0.1, 9, 32).astype(F32)
    y = machine.empty((11, 32))
    functions[1, 32](machine.array(x), y)
    v = x.astype(np.float64)
    expected = [np.exp(v), np.log(v), np.sqrt(v), np.sin(v), np.cos(v), np.tanh(v), np.floor(v), v**1.5]
    np.testing.assert_allclose(y.numpy(), [*expected, np.maximum(v, 2), v, np.minimum(v, 3)], rtol=1e-6, atol=1e-7)


@kernel("float32[:], float32[:]", threads=64)
def reversed_by_block(x, y):
    fixed = cuda.shared.array(64, F32)
    free = cuda.shared.array(0, F32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    fixed[t] = x[i]
    free[t] = x[i]
    cuda.syncthreads()
    y[i] = fixed[63 - t] + free[63 - t]


def test_blocks_have_shared_memory_of_their_own(machine):
    x = np.arange(64 * 30, dtype=F32)
    y = machine.empty(x.size)
    reversed_by_block[30, 64, None, 256](machine.array(x), y)
    assert np.array_equal(y.numpy().reshape(30, 64), 2 * x.reshape(30, 64)[:, ::-1])


def test_an_empty_grid_does_nothing(machine):
    y = machine.array(np.ones(4, F32))
    reversed_by_block[0, 64, None, 256](y, y)
    assert (y.numpy() == 1).all()


# What is refused, in checked mode.


@kernel("float32[:], int32", threads=64)
def shifted(x, by):
    x[cuda.grid(1) + by] = F32(1)


def test_an_access_out_of_bounds_names_array_thread_and_line():
    text = fault(shifted, np.zeros(128, F32), 3, grid=2)
    assert "test_emulator.shifted, block (1, 0, 0), thread 6" in text and "test_emulator.py:" in text
    assert "writes 4 bytes out of bounds: element 1" in text and "of 'x', which has 128" in text


def test_after_a_fault_the_next_launch_is_as_new():
    machine = Emulator(checked=True)
    x = machine.array(np.zeros(64, F32))
    for _ in range(2):
        with pytest.raises(KernelError, match="out of bounds"):
            shifted[1, 64](x, 1)
        shifted[1, 64](x, 0)
        assert (x.numpy() == 1).all()


@kernel("float32[:], int32", threads=64)
def past_shared(x, by):
    a = cuda.shared.array(64, F32)
    b = cuda.shared.array(64, F32)
    t = cuda.threadIdx.x
    a[t + by], b[t] = x[t], x[t]
    cuda.syncthreads()
    x[t] = a[t] + b[t]


@pytest.mark.parametrize("by", [1, 64, -1])
def test_one_shared_array_does_not_run_over_into_the_next(by):
    # numba takes a negative index from the end, so -1 is a race there: thread 0 writes where thread 63 does not
    machine = Emulator(checked=True)
    if by > 0:
        assert "of a shared array of 256 bytes" in fault(past_shared, np.zeros(64, F32), by)
    else:
        past_shared[1, 64](machine.array(np.zeros(64, F32)), by)


@kernel("float32[:]", threads=64)
def dynamic_only(x):
    s = cuda.shared.array(0, F32)
    s[cuda.threadIdx.x] = x[cuda.threadIdx.x]


def test_dynamic_shared_memory_ends_where_the_launch_said():
    assert "byte 128 of a shared array of 128 bytes" in fault(dynamic_only, np.zeros(64, F32), shared=128, block=33)


@kernel("float32[:]", threads=64)
def misaligned(x):
    t = np.uint32(cuda.threadIdx.x)
    a, b, c, d = ptx.load4(x, t * U32(2))
    x[t] = a + b + c + d


def test_a_wide_load_off_its_boundary_is_refused():
    assert "no multiple of 16" in fault(misaligned, np.zeros(256, F32))


@kernel("float32[:], int32", threads=96)
def neighbour(x, with_barrier):
    s = cuda.shared.array(96, F32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    if with_barrier:
        cuda.syncthreads()
    x[t] = s[95 - t]


def test_a_missing_barrier_is_a_race_in_every_order():
    for seed in range(5):
        assert "no barrier lies between" in fault(neighbour, np.zeros(96, F32), 0, block=96, seed=seed)
    machine = Emulator(checked=True)
    x = machine.array(np.arange(96, dtype=F32))
    neighbour[1, 96](x, 1)
    assert np.array_equal(x.numpy(), np.arange(96)[::-1])


@kernel("float32[:], int32", threads=64)
def within_warp(x, meet):
    s = cuda.shared.array(64, F32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    if meet == 1:
        cuda.syncwarp()
    if meet == 2:
        cuda.syncwarp(U32(0x0000FFFF) if t % 32 < 16 else U32(0xFFFF0000))
    x[t] = s[t ^ 16]


def test_lanes_of_a_warp_need_to_meet_all_of_them():
    machine = Emulator(checked=True)
    x = machine.array(np.arange(64, dtype=F32))
    within_warp[1, 64](x, 1)
    assert np.array_equal(x.numpy(), np.arange(64) ^ 16)
    for meet in (0, 2):
        assert "no barrier lies between" in fault(within_warp, np.zeros(64, F32), meet)


@kernel("float32[:]", threads=64)
def both_write(x):
    s = cuda.shared.array(1, F32)
    s[0] = x[cuda.threadIdx.x]


def test_two_writers_of_one_place_race():
    assert "writes a byte of shared memory that thread" in fault(both_write, np.zeros(64, F32))


@kernel("float32[:]", threads=64)
def unwritten(x):
    s = cuda.shared.array(64, F32)
    x[cuda.threadIdx.x] = s[cuda.threadIdx.x]


def test_what_nobody_wrote_is_nan():
    machine = Emulator(checked=True)
    x = machine.array(np.zeros(64, F32))
    unwritten[1, 64](x)
    assert np.isnan(x.numpy()).all() and np.isnan(machine.empty(3).numpy()).all()


@kernel("float32[:], int32", threads=64)
def leaves(x, first):
    if cuda.threadIdx.x < first:
        return
    cuda.syncthreads()
    x[cuda.threadIdx.x] = F32(2)


def test_a_barrier_that_some_threads_never_reach():
    text = fault(leaves, np.zeros(64, F32), 33)
    assert "threads 0-32 have returned; threads 33-63 wait at test_emulator.py:" in text and "(syncthreads)" in text


@kernel("float32[:]", threads=64)
def two_barriers(x):
    if cuda.threadIdx.x % 2:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    x[0] = F32(1)


def test_threads_at_two_barriers_do_not_meet():
    assert "not all threads reach the same barrier" in fault(two_barriers, np.zeros(64, F32))


@kernel("float32[:]", threads=64)
def deadlocked(x):
    t = cuda.threadIdx.x
    if t < 16:
        x[t] = cuda.shfl_xor_sync(FULL, x[t], 1)
    else:
        cuda.syncthreads()


@pytest.mark.parametrize("checked", [False, True])
def test_a_deadlock_ends_and_says_who_waits_where(checked):
    machine = Emulator(checked=checked)
    with pytest.raises(
        KernelError, match=r"deadlock.*threads 0-15 wait at .*shfl_sync.*threads 16-63 wait at .*syncth"
    ):
        deadlocked[1, 64](machine.array(np.zeros(64, F32)))


@kernel("float32[:], uint32, int32", threads=64)
def asks(x, mask, distance):
    t = cuda.threadIdx.x
    if t < 8:
        x[t] = cuda.shfl_xor_sync(mask, x[t], distance)


def test_warp_operations_stay_within_their_mask():
    assert "asks for a value of a lane that has returned" in fault(asks, np.zeros(64, F32), 0xFF, 8)
    assert "asks for a value of a lane that has returned" in fault(asks, np.zeros(64, F32), 0xFFFFFFFF, 8)
    assert "does not name this lane" in fault(asks, np.zeros(64, F32), 0x0F, 1)


@kernel("float32[:]", threads=64)
def endless(x):
    while x[0] >= F32(0):
        x[1] += F32(1)


def test_a_loop_that_does_not_end_ends():
    assert "a loop that does not end" in fault(endless, np.zeros(64, F32))


@kernel("int32[:]", threads=32)
def masks(out):
    out[0] = cuda.activemask()


def test_what_cannot_be_emulated_says_so():
    with pytest.raises(NotImplementedError, match="pass the mask you mean"):
        masks[1, 32](Emulator().array(np.zeros(1, I32)))


# The machine under it.


def test_a_processor_whose_stacks_it_cannot_switch_is_refused():
    assert "ret" in switch_ir(architecture("arm64")) and architecture("AMD64") == architecture("x86_64")
    with pytest.raises(NotImplementedError, match="not on riscv64: use the simulator"):
        architecture("riscv64")


def test_arguments_are_checked_before_the_launch():
    machine = Emulator()
    x = machine.array(np.zeros(4, F32))
    with pytest.raises(ValueError, match="argument 'x' must be float32\\[:\\], got float64 of shape"):
        shifted[1, 4](machine.array(np.zeros(4)), 0)
    with pytest.raises(ValueError, match="must be an array on a machine"):
        shifted[1, 4](np.zeros(4, F32), 0)
    with pytest.raises(ValueError, match="takes 2 arguments"):
        shifted[1, 4](x)
    with pytest.raises(ValueError, match="at most 64"):
        shifted[1, 65](x, 0)
    with pytest.raises(ValueError, match="put what is long into x"):
        shifted[(1, 65_536), 4](x, 0)
    with pytest.raises(ValueError, match="live on one machine, they live on 2"):
        reversed_by_block[1, 64, None, 256](x, Emulator().array(np.zeros(4, F32)))
    with pytest.raises(ValueError, match="a block has at most"):
        shifted[1, 4, None, 1 << 20](x, 0)
    with pytest.raises((ValueError, OverflowError), match=r"fit|large|bounds"):
        shifted[1, 4](x, 2**40)
