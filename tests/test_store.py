"""The caching allocator: memory comes back when its last view is gone, and never while one is alive."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from minillm import store

BIG = (300, 100)  # 120,000 bytes in float32


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    store.clear()


def address(x):
    return x.__array_interface__["data"][0]


@pytest.mark.parametrize("shape", [(), (0,), (0, 7), (1,), (5, 33), BIG, (1 << 20,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_arrays_are_as_numpys_and_aligned(shape, dtype):
    x = store.zeros(shape, dtype)
    assert x.shape == shape
    assert x.dtype == dtype
    assert x.flags.c_contiguous
    assert x.flags.writeable
    assert address(x) % 64 == 0 or not x.size
    assert not x.any()


def test_memory_of_an_array_that_is_gone_serves_the_next():
    x = store.empty(BIG)
    place = address(x)
    del x
    assert address(store.empty(BIG)) == place


def test_memory_stays_while_any_view_lives():
    x = store.empty(BIG)
    x.fill(7)
    view = x.reshape(-1)[5:9][::2]
    del x
    other = store.empty(BIG)
    other.fill(0)
    assert view.tolist() == [7, 7]
    assert not np.shares_memory(view, other)


def test_two_arrays_alive_never_share():
    alive = [store.empty(BIG) for _ in range(20)]
    for number, x in enumerate(alive):
        x.fill(number)
    assert [x[0, 0] for x in alive] == list(range(20))
    assert [x[-1, -1] for x in alive] == list(range(20))


def test_the_second_step_takes_no_new_memory():
    def step():
        alive = [store.empty((n, 1000)) for n in range(100, 200, 7)]
        return sum(x.nbytes for x in alive)

    step()
    kept = sum(store.kept_bytes())
    for _ in range(5):
        step()
    assert sum(store.kept_bytes()) == kept


def test_varying_sizes_do_not_pile_up():
    for n in range(1000, 3000):
        store.empty((n, 100))
    used, free = store.kept_bytes()
    assert used == 0
    assert free <= store.SLACK * store.peak_bytes()


def test_the_count_follows_what_lives():
    before, _ = store.kept_bytes()
    x = store.empty(BIG)
    used, _ = store.kept_bytes()
    assert x.nbytes <= used - before <= 1.13 * x.nbytes + 64
    assert store.peak_bytes() >= used
    del x
    assert store.kept_bytes()[0] == before


@pytest.mark.parametrize("num_bytes", [1 << 16, (1 << 16) + 1, 1_234_567, (1 << 20) - 1, 1 << 24])
def test_a_block_is_at_most_an_eighth_larger(num_bytes):
    assert num_bytes + store.ALIGN <= store.size_class(num_bytes) <= num_bytes * 9 / 8 + store.ALIGN


def test_many_threads_never_get_the_same_block():
    errors = []

    def work(number):
        for _ in range(300):
            x = store.empty(BIG)
            x.fill(number)
            if not (x == number).all():
                errors.append(number)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
    assert store.kept_bytes()[0] == 0


OUTLIVED = """
import numba
from minillm import store

@numba.njit
def first(x):
    return x[0, 0]

kept = [store.empty((300, 100))]
functions = {"first": lambda: first(kept[0])}
functions["first"]()  # compiled code keeps its module, and so the array, until the very end
"""


def test_arrays_that_outlive_the_module_end_quietly():
    done = subprocess.run([sys.executable, "-c", OUTLIVED], capture_output=True, text=True, check=True)
    assert done.stderr == ""
