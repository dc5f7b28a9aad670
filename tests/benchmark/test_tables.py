"""From samples to tables, JSON and pictures; nothing here is timed."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from minillm.benchmark import breakdown, roofline, scaling
from minillm.benchmark.ceilings import Ceilings
from minillm.benchmark.command import PICTURES, TRAINING, remarks
from minillm.benchmark.race import Samples
from minillm.benchmark.results import Entry, Results, geometric_mean, load
from minillm.benchmark.tables import (
    lora_rows,
    op_rows,
    profile_rows,
    scaling_rows,
    summary,
    table,
    token_rows,
    train_rows,
)
from minillm.benchmark.work import COMPILED, EAGER, FULL, Decoding, FineTuning, OpCall, Prefill
from minillm.config import ModelConfig

LLAMA = ModelConfig(vocab_size=31, context_len=24, num_layers=2, num_heads=4, num_kv_heads=2, channels=32)
CEILINGS = Ceilings(100.0, 10.0, 50.0, 8.0)


def of_ours(seconds, proof=None):
    """Ours, a peer that takes twice as long, and one that did not run."""
    return [
        Samples("cpu", seconds, 100.0, proof=proof),
        Samples(EAGER, [2 * s for s in seconds], 200.0, proof=proof),
        Samples(COMPILED, skipped="torch.compile needs a C++ compiler"),
    ]


@pytest.fixture
def training():
    return Results("train", CEILINGS, [Entry(TRAINING["A"], of_ours([0.1, 0.3, 0.2], 6.2))])


@pytest.fixture
def tuning():
    work = FineTuning(TRAINING["B"])
    samples = [Samples(FULL, [0.4, 0.8], 400.0, proof=6.2), Samples("rank 8", [0.3, 0.6], 250.0, proof=6.2)]
    weighed = {"trained": 1234, "state": 3 << 20, "checkpoint": 5 << 19}
    return Results(
        "lora", CEILINGS, [Entry(work, samples)], {"weighed": {work.name: {FULL: weighed, "rank 8": weighed}}}
    )


@pytest.fixture
def decoding():
    work = Decoding("tiny", LLAMA, batch=2, prompt=3, new=11)
    return Results("decode", CEILINGS, [Entry(work, of_ours([0.1, 0.2], [[1, 2]]))])


@pytest.fixture
def ops():
    works = [OpCall("linear", False), OpCall("gelu_tanh", True)]
    return Results("ops", CEILINGS, [Entry(w, of_ours([1e-3])[:2]) for w in works])


@pytest.fixture
def sweeps():
    entries = []
    for work in scaling.sweeps(lengths=(8, 16, 32), depths=(1, 2, 3), tokens=64):
        seconds = 1e-3 * work.model.context_len**1.5 if work.name.startswith("context") else work.flops * 1e-11
        entries.append(Entry(work, of_ours([seconds])[:2]))
    return Results("scaling", CEILINGS, entries)


@pytest.fixture
def profile():
    before = {"linear_forward": 0.2, "linear_backward": 0.4, "add": 0.1, breakdown.OPTIMIZER: 0.2,
              breakdown.BETWEEN: 0.1}  # fmt: skip
    after = {name: seconds / 2 for name, seconds in before.items()}
    return Results("profile", CEILINGS, extra={"profile": {"B": {"numpy": before, "cpu": after}}})


def test_training_shows_prediction_measurement_ratio_and_memory(training):
    ours, eager, compiled = train_rows(training)[1]
    limit = TRAINING["A"].flops / 100e9  # 100 GFLOP/s
    assert ours[:5] == ["A", "cpu", f"{1e3 * limit:.1f}", "200", "100"]
    assert ours[5:7] == ["1.00", f"{limit / 0.2:.0%}"]
    assert ours[7:] == ["100", f"{TRAINING['A'].memory / 2**20:.1f}"]
    assert (eager[3], eager[5]) == ("400", "2.00")
    assert "skipped" in compiled
    assert "no torch compile, because torch.compile needs a C++ compiler" in remarks(training)[0]


def test_fine_tuning_shows_each_prediction_above_its_measurement(tuning):
    work, (_, full, predicted, measured) = tuning.entries[0].work, lora_rows(tuning)[1]
    adapters = work.estimate("rank 8")
    assert full == ["B, cpu", "full", "measured", "1,234", "3.00", "0", "1.00", "2.50", "600"]
    assert measured == ["B, cpu", "rank 8", "measured", "1,234", "3.00", "150", "0.75", "2.50", "450"]
    assert predicted[:5] == ["B, cpu", "rank 8", "predicted", "331,776", f"{adapters.state_bytes / 2**20:.1f}"]
    below = work.memory_of(FULL) - work.memory_of("rank 8")
    assert predicted[5:7] == [f"{below / 2**20:.0f}", f"{work.flops_of('rank 8') / work.flops_of(FULL):.2f}"]
    assert predicted[7:] == [f"{3 * 4 * 331_776 / 2**20:.2f}", ""]


def test_decoding_shows_tokens_a_second(decoding):
    work = decoding.entries[0].work
    ours, eager, _ = token_rows(decoding)[1]
    assert decoding.predicted(work) == pytest.approx(work.bytes / 10e9)  # 10 GB/s
    assert ours[:3] == ["tiny", "2", "cpu"]
    assert ours[4:6] == ["133", "200"], "20 tokens in a median of 150 ms, at best in 100 ms"
    assert (eager[6], eager[-1]) == ("2.00", "yes")


def test_another_result_is_reported(decoding):
    decoding.entries[0].samples[1].proof = [[1, 3]]
    assert token_rows(decoding)[1][1][-1] == "NO"
    assert "another result" in "\n".join(remarks(decoding))


def test_a_busy_machine_is_reported(training):
    training.machine["threads"] = 2
    assert not any("something else" in remark for remark in remarks(training))
    training.ceilings = Ceilings(55.0, 10.0, 50.0, 8.0)
    assert "is something else running here?" in remarks(training)[0]


def test_ops_end_with_the_geometric_mean_of_the_ratios(ops):
    heads, rows = op_rows(ops)
    assert heads[-1] == f"{EAGER} / cpu"
    assert [row[-1] for row in rows] == ["2.00", "2.00", "2.00"]
    assert rows[0][3] == "1,000", "microseconds"
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1)


def test_an_exact_power_law_is_found_exactly(sweeps):
    xs = np.array([2.0, 3.0, 10.0, 100.0])
    assert scaling.exponent(xs, 7 * xs**1.7) == pytest.approx(1.7, abs=1e-12)
    _, rows = scaling_rows(sweeps)
    laws = [row for row in rows if row[1].startswith("power")]
    assert [law[5] for law in laws] == ["1.50", laws[1][4]], "a time that follows the FLOPs has their exponent"


def test_every_step_of_a_sweep_has_as_many_tokens():
    assert {work.tokens for work in scaling.sweeps()} == {scaling.TOKENS}


def test_a_profile_adds_up_and_shows_how_much_faster(profile):
    _, rows = profile_rows(profile)
    assert rows[0] == ["B", "linear", "600", "60.0%", "300", "60.0%", "2.0"]
    assert rows[-1] == ["B", "the whole step", "1,000", "100.0%", "500", "100.0%", "2.0"]


@pytest.mark.parametrize("name", ["training", "tuning", "decoding", "ops", "sweeps", "profile"])
def test_results_survive_json_and_can_be_shown(name, request, tmp_path):
    results = request.getfixturevalue(name)
    results.save(tmp_path / "new" / "results.json")
    assert load(tmp_path / "new" / "results.json") == results
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(results))
    assert "…" not in console.export_text(), "nothing is cut off"
    assert "100 GFLOP/s" in summary(results)


def test_pictures_are_drawn(training, decoding, ops, sweeps, profile, tmp_path):
    for results in (training, decoding, ops, sweeps, profile):
        for name, draw in PICTURES[results.command]:
            draw(results, tmp_path / name)
            assert (tmp_path / name).stat().st_size > 10_000, name


def test_points_lie_at_their_intensity(decoding):
    work = decoding.entries[0].work
    ours = roofline.points(decoding)[0]
    assert ours.intensity == work.flops / work.bytes
    assert ours.gflops == pytest.approx(work.flops / 0.15 / 1e9)
    assert roofline.name_of(Prefill("15M", LLAMA, 8)) == "15M"


def test_a_side_looks_the_same_in_every_picture():
    assert roofline.marks_of(["cpu", EAGER])[EAGER] == roofline.marks_of(["cpu", "numpy", EAGER])[EAGER]
    assert len(set(roofline.marks_of(["cpu", "numpy", EAGER, COMPILED]).values())) == 4


def test_the_share_of_the_limit_is_taken_round_by_round(training):
    entry = training.entries[0]
    side = Samples("cpu", [1.0, 4.0, 2.0])
    work = entry.work
    fast, slow = Ceilings(work.flops / 0.5e9, 1, 1, 1), Ceilings(work.flops / 2e9, 1, 1, 1)
    paired = Entry(work, [side], [fast, slow, Ceilings(work.flops / 1e9, 1, 1, 1)])
    assert training.share(paired, side) == pytest.approx(0.5), "the machine was slow in the round in which we were"
    assert training.limit(paired) == pytest.approx(1.0)
    assert training.share(Entry(work, [side]), side) == pytest.approx(training.predicted(work) / 2)
