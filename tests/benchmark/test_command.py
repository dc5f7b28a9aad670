"""`minillm bench`: help, mistakes, and a whole small benchmark from the command line to its files."""

import json

import pytest
from tqdm import tqdm

from minillm import cli, threads
from minillm.backend import BACKENDS
from minillm.benchmark import breakdown, command, race
from minillm.benchmark.ceilings import Ceilings
from minillm.benchmark.results import load
from minillm.benchmark.work import COMPILED, EAGER, Training
from minillm.config import ModelConfig

TINY = ModelConfig("gpt2", vocab_size=31, context_len=8, num_layers=1, num_heads=2, channels=16)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A tiny config A, turns of a single step, and ceilings that need no measuring."""
    monkeypatch.setitem(command.TRAINING, "A", Training("A", TINY, batch=4, micro=2))
    monkeypatch.setattr(race, "BURST", 0)
    monkeypatch.setattr(command, "measure", lambda: Ceilings(100.0, 10.0, 50.0, 8.0))
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)


def outcome(arguments, capsys):
    code = 0
    try:
        cli.main(["bench", *arguments])
    except SystemExit as end:
        code = end.code or 0
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", ["train", "lora", "decode", "prefill", "ops", "profile"])
def test_every_benchmark_explains_itself(name, capsys):
    code, out, _ = outcome([name, "--help"], capsys)
    assert code == 0
    assert f"minillm bench {name}" in out
    assert "--backend" in out and "--repeats" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--backend", "abacus"], "abacus"),
        (["train", "--config", "C"], "bench.config"),
        (["lora", "--config", "C"], "bench.config"),
        (["lora", "--rank", "0"], "bench.rank"),
        (["lora", "--config", "A", "--rank", "17"], "lora.rank"),
        (["lora", "--dropout", "1"], "lora.dropout"),
        (["decode", "--tokens", "1"], "bench.tokens"),
        (["prefill", "--length", "9999"], "bench.length"),
        (["ops", "--op", "conjure"], "bench.op"),
        (["train", "--repeats", "-1"], "bench.repeats"),
    ],
)
def test_a_mistake_gives_one_line(arguments, message, capsys):
    code, _, err = outcome(arguments, capsys)
    assert code == 2
    assert message in err and "Traceback" not in err


def test_a_training_benchmark_leaves_results_and_a_picture(tmp_path, capsys):
    code, out, _ = outcome(["train", "--config", "A", "--no-peers", "--repeats", "2", "--out", str(tmp_path)], capsys)
    assert code == 0
    assert "One training step" in out and "100 GFLOP/s" in out
    results = load(tmp_path / "train.json")
    assert len(results.entries[0].samples[0].seconds) == 2
    assert {"cpu", "cores", "threads", "numpy", "python"} <= set(results.machine)
    assert json.loads((tmp_path / "train.json").read_text())["entries"][0]["predicted"]["flops"] > 0
    assert (tmp_path / "train-roofline.png").exists()


@pytest.mark.parametrize("options", [[], ["--optimizer", "muon", "--targets", "query-value", "--dropout", "0.1"]])
def test_a_benchmark_of_adapters_does_one_work_in_several_ways(options, tmp_path, capsys):
    arguments = ["lora", "--config", "A", "--rank", "2", "5", "--repeats", "2", "--out", str(tmp_path), *options]
    code, out, _ = outcome(arguments, capsys)
    assert code == 0
    assert "One step of fine-tuning" in out and "another result" not in out
    results = load(tmp_path / "lora.json")
    (entry,) = results.entries
    assert [s.side for s in entry.samples] == ["full", "rank 2", "rank 5"]
    work = entry.work
    assert (work.optimizer, work.lora.targets, work.lora.dropout) == (
        ("muon", "query-value", 0.1) if options else ("adamw", "all", 0.0)
    )
    assert all(len(s.seconds) == 2 and s.peak_mib > 20 for s in entry.samples)
    losses = [s.proof for s in entry.samples]
    assert losses == pytest.approx([losses[0]] * 3), "adapters begin as the model they are added to"
    for side, weighed in results.extra["weighed"][entry.work.name].items():
        predicted = entry.work.estimate(side)
        assert (weighed["trained"], weighed["state"]) == (predicted.trained, predicted.state_bytes)
        num_names = 3 * 16 if side == "full" else 3 * 2 * 6
        assert 0 < weighed["checkpoint"] - entry.work.checkpoint_of(side) < 1000 + 150 * num_names, "names and shapes"


def test_a_profile_leaves_results_and_a_picture(tmp_path, capsys):
    code, out, _ = outcome(["profile", "--config", "A", "--repeats", "1", "--out", str(tmp_path)], capsys)
    assert code == 0
    for name in ("linear", "attention", "optimizer", "Python between ops", "the whole step"):
        assert name in out
    assert set(load(tmp_path / "profile.json").extra["profile"]["A"]) == {"numpy", command.DEFAULT_BACKEND}
    assert (tmp_path / "profile.png").exists()


def test_a_profile_misses_nothing(monkeypatch):
    now = iter(range(10**9))
    monkeypatch.setattr(breakdown.time, "perf_counter", lambda: next(now))  # every look at the clock takes a second
    with tqdm(disable=True) as bar:
        seconds = breakdown.profile(command.TRAINING["A"], ["numpy"], 1, bar)["numpy"]
    timed = {name for name in seconds if seconds[name]}
    assert {"linear_forward", "linear_backward", "attention_backward", "embedding_forward", "add_into",
            breakdown.OPTIMIZER, breakdown.BETWEEN} <= timed  # fmt: skip


def test_the_default_side_is_the_fastest_there_is_and_peers_can_be_left_out():
    assert command.TrainBench().backend == ("cpu" if "cpu" in BACKENDS else "numpy",)
    assert command.TrainBench(peers=False).sides == list(command.TrainBench().backend)
    assert COMPILED not in command.TrainBench(compiled=False).sides
    assert command.TrainBench(backend=("numpy",)).eager in (["numpy"], ["numpy", EAGER])


def test_config_of_train_still_reads_a_file(tmp_path, capsys):
    """`--config` names a file to `train` and models to `bench train`."""
    with pytest.raises(SystemExit):
        cli.main(["train", "--config", str(tmp_path / "no.toml")])
    assert "no.toml" in capsys.readouterr().err
