"""One pool: everything is done once and in order, whoever does it, and a failure reaches the caller."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from minillm import threads


@pytest.fixture(autouse=True)
def two_threads():
    before = threads.num_threads()
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before)


@pytest.mark.parametrize("num", [1, 2, 5])
@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 50])
def test_results_come_in_order_whatever_the_number_of_threads(num, num_items):
    threads.set_num_threads(num)
    assert threads.run_all(lambda x: x * x, iter(range(num_items))) == [x * x for x in range(num_items)]


def test_two_pieces_run_at_the_same_time():
    meeting = threading.Barrier(2)
    assert sorted(threads.run_all(lambda _: meeting.wait(10), range(2))) == [0, 1]


def test_a_slow_piece_does_not_hold_up_the_others():
    done = []

    def work(item):
        if item == 0:
            time.sleep(0.2)
        done.append(item)

    threads.run_all(work, range(10))
    assert done[-1] == 0


def test_work_inside_a_piece_stays_on_its_thread():
    def inner(_):
        return threading.get_ident()

    def outer(_):
        return threading.get_ident(), set(threads.run_all(inner, range(4)))

    for outside, inside in threads.run_all(outer, range(3)):
        assert inside == {outside}
    assert not threads.is_busy()


@pytest.mark.parametrize("bad", range(4))
def test_an_error_reaches_the_caller_and_the_pool_lives_on(bad):
    def work(item):
        time.sleep(0.01)
        if item == bad:
            raise KeyError(item)
        return item

    with pytest.raises(KeyError):
        threads.run_all(work, range(4))
    assert not threads.is_busy()
    assert threads.run_all(lambda x: x, range(4)) == [0, 1, 2, 3]


def test_after_an_error_no_further_piece_begins():
    begun = []

    def work(item):
        begun.append(item)
        raise KeyError(item)

    with pytest.raises(KeyError):
        threads.run_all(work, range(100))
    assert len(begun) <= 2


def test_blas_is_held_to_one_thread():
    np.ones((4, 4)) @ np.ones((4, 4))
    threads.set_num_threads(2)
    assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {1}


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="0 for one per core"):
        threads.set_num_threads(-1)


@pytest.mark.parametrize("num", [1, 2, 4])
def test_together_all_ranks_are_there_at_once(num):
    threads.set_num_threads(num)
    meeting, ranks = threading.Barrier(num), []

    def work(rank, size):
        meeting.wait(10)
        ranks.append((rank, size))

    threads.together(work, most=8)
    assert sorted(ranks) == [(rank, num) for rank in range(num)]


def test_together_never_uses_more_than_asked_and_one_inside_a_piece():
    threads.set_num_threads(4)
    sizes = []
    threads.together(lambda rank, size: sizes.append(size), most=2)
    threads.run_all(lambda _: threads.together(lambda rank, size: sizes.append(size), most=4), range(2))
    assert sizes == [2, 2, 1, 1]


def test_groups_of_several_callers_take_turns():
    threads.set_num_threads(3)
    barriers = [threading.Barrier(3) for _ in range(6)]

    def call(number):
        threads.together(lambda rank, size: barriers[number].wait(10), most=3)

    callers = [threading.Thread(target=call, args=(n,)) for n in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert not any(caller.is_alive() for caller in callers)
    assert not any(barrier.broken for barrier in barriers)
