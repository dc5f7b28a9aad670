"""`python -m gpu.bench` where there is no GPU: predictions, and the same numbers from every machine."""

import json

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

import gpu
from gpu.bench import __main__ as command
from gpu.bench import timing
from gpu.bench.speed import compare
from gpu.bench.work import full_size, matmul_work, small, softmax_work
from gpu.cards import CARDS
from gpu.emulator import Emulator

A100 = CARDS["A100-SXM4-40GB"]
without_gpu = pytest.mark.skipif(gpu.missing() is None, reason="there is a GPU")


def test_limits_are_bytes_over_bandwidth_or_flops_over_rate():
    forward, backward = softmax_work(1000, 1000)
    assert forward.limit(A100) == (8e6 / 1555e9, "memory") and backward.limit(A100) == (12e6 / 1555e9, "memory")
    product = matmul_work(1000, 2000, 3000)[0]
    assert product.limit(A100) == (2 * 6e9 / 19.5e12, "arithmetic")
    assert product.nbytes == 4 * (3e6 + 6e6 + 2e6)


@without_gpu
def test_without_a_card_it_predicts_and_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["bench", "--json", str(tmp_path / "limits.json")])
    command.main()
    printed = capsys.readouterr().out
    assert "nothing is timed" in printed and "A100-SXM4-40GB" in printed
    figures = json.loads((tmp_path / "limits.json").read_text())
    assert set(figures) == {work.name for work in full_size()}
    assert all(seconds > 0 for limits in figures.values() for seconds, _ in limits.values())


def test_the_check_before_the_timing_notices_a_wrong_kernel(monkeypatch):
    works = small()[:2]
    monkeypatch.setattr(timing, "small", lambda: works)
    timing.check_all(Emulator())
    wrong = works[0].rungs["online"]
    works[0].rungs["online"] = lambda x: wrong(x.machine.array(x.numpy() + np.eye(*x.shape, dtype=np.float32)))
    with pytest.raises(RuntimeError, match="online: off by"):
        timing.check_all(Emulator())


def test_the_same_kernel_runs_everywhere():
    seconds = compare(size=16, rounds=1)
    assert next(iter(seconds)) == "numba's simulator" and len(seconds) == 6
    with pytest.raises(ValueError, match="a multiple of 16, got 20"):
        compare(size=20)
