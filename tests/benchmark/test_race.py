"""Workers: what they answer, that all sides do the same work, and what happens when one dies."""

import os
import time
from pathlib import Path

import pytest
from tqdm import tqdm

from minillm.backend import BACKENDS
from minillm.benchmark import race as race_module
from minillm.benchmark.ceilings import Ceilings
from minillm.benchmark.race import Samples, Worker, race, workers
from minillm.benchmark.work import COMPILED, EAGER, Decoding, OpCall, Prefill, Training
from minillm.config import ModelConfig

GPT2 = ModelConfig("gpt2", vocab_size=31, context_len=8, num_layers=2, num_heads=2, channels=16)
LLAMA = ModelConfig(vocab_size=31, context_len=24, num_layers=2, num_heads=4, num_kv_heads=2, channels=32)
WORKS = [
    Training("tiny", GPT2, batch=4, micro=2),
    Training("tiny llama", LLAMA, batch=3, micro=2),
    Decoding("tiny", LLAMA, batch=2, prompt=3, new=12),
    Decoding("tiny gpt2", GPT2, batch=2, prompt=1, new=4),
    Prefill("tiny", LLAMA, prompt=9),
    OpCall("rms_norm", backward=False),
    OpCall("rms_norm", backward=True),
]


@pytest.fixture
def bar():
    with tqdm(disable=True) as bar:
        yield bar


@pytest.fixture
def hurry(monkeypatch):
    """Turns of a single step."""
    monkeypatch.setattr(race_module, "BURST", 0)


class Referee:
    """A machine that is always the same, and need not be measured."""

    side = "ceilings"

    def ask(self, **message):
        assert message == {"ceilings": True}
        return vars(Ceilings(4, 3, 2, 1))


def is_alive(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def check(found, repeats, sides):
    assert [s.side for s in found] == sides
    for s in found:
        assert len(s.seconds) == repeats and min(s.seconds) > 0
        assert s.agrees_with(found[0]), f"{s.side}: {s.proof}, {found[0].side}: {found[0].proof}"
        assert 20 < s.peak_mib < 2000


def test_every_backend_does_the_same_work(bar, hurry):
    sides = list(BACKENDS)
    with workers(sides, 2) as started:
        for work in WORKS:
            check(race(work, [*started[:-1], Referee()], 2, bar)[0], 2, sides)
        _, rounds = race(WORKS[-1], started, 2, bar)
        assert len(rounds) == 2 and all(min(vars(c).values()) > 0 for c in rounds)
        processes = [worker.process for worker in started]
    assert all(process.poll() is not None for process in processes)


@pytest.fixture(scope="module")
def with_peers(tmp_path_factory):
    """Numpy, eager PyTorch and, for want of a C++ compiler, a compiled one that cannot."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path_factory.mktemp("no-compiler")))
        with workers(["numpy", EAGER, COMPILED], 1) as started:
            yield started


def test_the_peer_does_the_same_work(with_peers, bar, hurry):
    for work in WORKS:
        check(race(work, [*with_peers[:2], Referee()], 1, bar)[0], 1, ["numpy", EAGER])


def test_a_side_that_cannot_is_left_out_and_says_why(with_peers, bar, hurry):
    ours, peer = race(OpCall("dropout", backward=False), [*with_peers[:2], Referee()], 2, bar)[0]
    assert len(ours.seconds) == 2
    assert peer.seconds == [] and "torch has no dropout" in peer.skipped


def test_without_a_compiler_the_compiled_peer_is_left_out(with_peers, bar):
    ((peer,), rounds) = race(WORKS[0], with_peers[2:], 2, bar)
    assert rounds == []
    assert "needs a C++ compiler" in peer.skipped


def test_a_worker_that_dies_shows_its_last_words(bar):
    too_long = Decoding("tiny", GPT2, batch=1, prompt=20, new=4)
    with workers(["numpy"], 1) as started, pytest.raises(RuntimeError) as error:
        race(too_long, started, 1, bar)
    assert "the worker of 'numpy' ended with code 1" in str(error.value)
    assert "Traceback" in str(error.value) and "the context 8" in str(error.value)


def test_a_worker_that_died_before_it_was_asked_is_noticed():
    with workers(["numpy"], 1) as (worker, _):
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(RuntimeError, match="ended with code -9"):
            worker.ask(go=1)


def test_ctrl_c_ends_all_workers():
    seen = []

    def interrupted():
        with workers(["numpy", "numpy"], 1) as started:
            seen.extend(worker.process.pid for worker in started)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(seen) == 3 and not any(is_alive(process_id) for process_id in seen)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's table of processes")
def test_an_idle_worker_sleeps():
    with workers(["numpy"], 1) as (worker, _):
        worker.ask(peak=True)
        before = cpu_seconds(worker)
        time.sleep(0.3)
        assert cpu_seconds(worker) - before < 0.1


def cpu_seconds(worker: Worker) -> float:
    fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_order_turns_each_round(bar):
    order = []

    class Told:
        def __init__(self, side):
            self.side = side

        def ask(self, **message):
            if "prepare" in message:
                return {"proof": None, "seconds": 0.02}
            if "go" in message:
                order.append((self.side, message["go"]))
                return {"seconds": 0.02}
            if "ceilings" in message:
                order.append((self.side, 0))
                return vars(Ceilings(4, 3, 2, 1))
            return {"peak_mib": 1.0}

    found, rounds = race(WORKS[0], [Told(side) for side in "abcR"], 3, bar)
    assert [side for side, _ in order] == list("abcR" + "bcaR" + "cabR")
    assert {times for side, times in order if side != "R"} == {13}, "steps of 20 ms until a turn lasts 250 ms"
    assert [len(s.seconds) for s in found] == [3, 3, 3]
    assert rounds == [Ceilings(4, 3, 2, 1)] * 3


def test_samples_are_compared_round_by_round():
    ours, other = Samples("ours", [1.0, 10.0, 2.0]), Samples("other", [2.0, 20.0, 2.0])
    assert other.ratio_to(ours) == 2, "a round that was slow for both does not count"
    assert (ours.median, ours.best) == (2.0, 1.0)


def test_results_agree_when_losses_are_close_and_tokens_equal():
    assert Samples("a", proof=6.2813).agrees_with(Samples("b", proof=6.2814))
    assert not Samples("a", proof=6.28).agrees_with(Samples("b", proof=6.31))
    assert Samples("a", proof=[[1, 2]]).agrees_with(Samples("b", proof=[[1, 2]]))
    assert not Samples("a", proof=[[1, 2]]).agrees_with(Samples("b", proof=[[1, 3]]))
