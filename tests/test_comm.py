"""Collectives give every rank the same, correct answer, and a failing rank does not leave the others waiting."""

import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from minillm.comm import Solo, all_reduce, reduce_scatter, run_threads


def data(rank, shape=(6, 5)):
    return np.random.default_rng(rank).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_threads_sum_gather_and_scatter_in_order_of_rank(size):
    def work(comm):
        x = data(comm.rank)
        return all_reduce(comm, x), comm.all_gather(x), reduce_scatter(comm, x)

    results = run_threads(size, work)
    total = data(0).copy()
    for rank in range(1, size):
        total += data(rank)
    for rank, (summed, gathered, share) in enumerate(results):
        np.testing.assert_array_equal(summed, total)
        np.testing.assert_array_equal(gathered, np.stack([data(r) for r in range(size)]))
        np.testing.assert_array_equal(share, np.split(total, size)[rank])


def test_strided_and_empty_arrays_are_welcome_and_inputs_stay_untouched():
    def work(comm):
        x = data(comm.rank)
        before = x.copy()
        assert all_reduce(comm, x.T).shape == (5, 6)
        assert all_reduce(comm, x[:0]).shape == (0, 5)
        np.testing.assert_array_equal(x, before)
        return True

    assert run_threads(2, work) == [True, True]


def test_messages_between_two_ranks_arrive_in_order():
    def work(comm):
        other = 1 - comm.rank
        for i in range(3):
            comm.send(data(10 * comm.rank + i), other)
        return [comm.receive(other) for _ in range(3)]

    for rank, got in enumerate(run_threads(2, work)):
        for i, x in enumerate(got):
            np.testing.assert_array_equal(x, data(10 * (1 - rank) + i))


def test_a_failing_rank_releases_the_others_and_its_error_is_the_one_reported():
    def work(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("rank 1 broke")
        all_reduce(comm, data(0))

    with pytest.raises(ZeroDivisionError, match="rank 1 broke"):
        run_threads(3, work)


@pytest.mark.parametrize("other", [data(0, (6, 4)), data(0).astype(np.float64)])
def test_ranks_that_bring_different_arrays_are_told(other):
    with pytest.raises(ValueError, match="one shape and dtype"):
        run_threads(2, lambda comm: all_reduce(comm, [data(0), other][comm.rank]))


def test_alone_everything_is_the_identity():
    comm = Solo()
    np.testing.assert_array_equal(all_reduce(comm, data(3)), data(3))
    np.testing.assert_array_equal(reduce_scatter(comm, data(3)), data(3))
    comm.send(data(1), 0)
    np.testing.assert_array_equal(comm.receive(0), data(1))
    with pytest.raises(RuntimeError, match="nothing was sent"):
        comm.receive(0)
    with pytest.raises(ValueError, match=r"rank must be in \[0, 1\): got 1"):
        comm.send(data(1), 1)


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="6 rows do not divide evenly among 4 ranks"):
        run_threads(4, lambda comm: reduce_scatter(comm, data(0)))


MPI_PROGRAM = textwrap.dedent("""
    import numpy as np, sys
    from minillm.comm import Mpi, all_reduce, reduce_scatter
    comm = Mpi()
    x = np.full((4, 3), comm.rank + 1.0, np.float32)
    assert (all_reduce(comm, x) == 3).all() and reduce_scatter(comm, x).shape == (2, 3)
    big = np.random.default_rng(comm.rank).standard_normal(1 << 20)      # 8 MB: both send before either receives
    comm.send(big, 1 - comm.rank)
    assert (comm.receive(1 - comm.rank) == np.random.default_rng(1 - comm.rank).standard_normal(1 << 20)).all()
    try:
        all_reduce(comm, x if comm.rank else x.astype(np.float64))
    except ValueError as error:
        print("refused", comm.rank)
    if "fail" in sys.argv and comm.rank == 0:
        raise RuntimeError("rank 0 broke")
    if "fail" in sys.argv:
        all_reduce(comm, x)
""")


def mpirun(*arguments):
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launcher = os.path.join(os.path.dirname(sys.executable), "mpirun")
    launcher = launcher if os.path.exists(launcher) else shutil.which("mpirun")
    command = [launcher, "--oversubscribe", "-n", "2", sys.executable, "-m", "mpi4py", "-c", MPI_PROGRAM, *arguments]
    return subprocess.run(command, env=os.environ | allow, capture_output=True, text=True, timeout=60)


def test_processes_under_mpirun_do_the_same():
    pytest.importorskip("mpi4py")
    done = mpirun()
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[-2:] == ["refused 0", "refused 1"]


def test_a_failing_process_ends_all_of_them():
    pytest.importorskip("mpi4py")
    done = mpirun("fail")
    assert done.returncode != 0
    assert "rank 0 broke" in done.stderr
