"""A whole run: it learns, it leaves what it should, and however it is stopped it ends with the same bytes."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from minillm import checkpoint
from minillm.config import DataConfig, ModelConfig, OptimConfig, SamplingConfig, TrainConfig
from minillm.inference.generate import generate
from minillm.settings import to_mapping
from minillm.tokenizer import Tokenizer
from minillm.training import pretrain
from minillm.training.folder import RunFolder

TEXT = "".join(f"{i} cats and {i + 1} dogs sat in a row.\n\n" for i in range(60))
STEPS = 14
PNG = b"\x89PNG"


@pytest.fixture
def config(tmp_path):
    """A run of seconds; about three epochs."""
    (tmp_path / "text.txt").write_text(TEXT)
    return TrainConfig(
        run=tmp_path / "run",
        steps=STEPS,
        batch_size=6,
        eval_every=5,
        sample_every=7,
        save_every=4,
        model=ModelConfig(vocab_size=280, context_len=24, num_layers=2, num_heads=2, channels=16, dropout=0.1),
        data=DataConfig(source=str(tmp_path / "text.txt"), vocab_size=280),
        optim=OptimConfig(warmup_steps=2, learning_rate=1e-2),
    )


def final_arrays(config):
    return checkpoint.load(RunFolder(config.run).checkpoint_file)[0]


def losses(config):
    return [(r["step"], r["loss"]) for r in RunFolder(config.run).read_metrics() if "loss" in r]


def assert_same_end(one, other):
    """The same bytes of weights and moments, and the same losses on the way."""
    a, b = final_arrays(one), final_arrays(other)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name
    assert losses(one) == losses(other)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_run_learns_and_leaves_metrics_curves_samples_and_a_model(config, family, optimizer, capsys):
    config = replace(
        config, model=replace(config.model, family=family), optim=replace(config.optim, optimizer=optimizer)
    )
    assert pretrain.start(config, progress=False).run([""], show=False)
    folder, rows = RunFolder(config.run), RunFolder(config.run).read_metrics()
    steps = [r for r in rows if "loss" in r]
    assert [r["step"] for r in steps] == list(range(1, STEPS + 1))
    assert steps[-1]["loss"] < steps[0]["loss"] - 1
    assert all(r["norm"] > 0 and r["lr"] > 0 for r in steps)
    assert [r["step"] for r in rows if "val_loss" in r] == [5, 10, STEPS]
    assert all((config.run / name).read_bytes().startswith(PNG) for name in ("loss.png", "gradient.png"))
    assert (config.run / "samples.txt").read_text().startswith("--- step 7\n")
    model, tokenizer = folder.load_model()
    text = generate(model, tokenizer, ["3 cats"], SamplingConfig(max_tokens=5, seed=0))[0].text
    assert isinstance(text, str)
    assert capsys.readouterr().out.count("validation loss") == 3


def test_a_run_stopped_and_resumed_at_any_step_ends_with_the_same_bytes(config, tmp_path):
    pretrain.start(config, progress=False).run([""], show=False)
    for stop in (1, 4, 9, STEPS - 1):
        other = replace(config, run=tmp_path / f"stopped-{stop}")
        trainer = pretrain.start(other, progress=False)
        for _ in range(stop):
            trainer.folder.add_metrics(trainer.take_step())
        trainer.save()
        trainer.folder.add_metrics(trainer.take_step())  # a step that was not saved is taken again
        assert pretrain.resume(RunFolder(other.run)).run([""], show=False)
        assert_same_end(config, other)


def test_the_number_of_threads_and_recomputation_do_not_change_the_result(config, tmp_path):
    pretrain.start(config, progress=False).run([""], show=False)
    for change in ({"threads": 1}, {"threads": 3}, {"recompute": True}):
        other = replace(config, run=tmp_path / "other" / str(change), **change)
        pretrain.start(other, progress=False).run([""], show=False)
        assert_same_end(config, other)


def command_line(config):
    """`minillm train` with these settings, in a process of its own."""
    file = config.run.with_suffix(".toml")
    lines = []

    def write(values, section=""):
        lines.extend([f"[{section}]"] if section else [])
        lines.extend(f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None and not isinstance(v, dict))
        for key, inner in values.items():
            if isinstance(inner, dict):
                write(inner, f"{section}.{key}".strip("."))

    write(to_mapping(config))
    file.write_text("\n".join(lines))
    return [sys.executable, "-m", "minillm", "train", "--config", str(file)]


def resume_line(config):
    return [sys.executable, "-m", "minillm", "resume", str(config.run)]


def wait_for_step(config, step, process):
    """Until the run has written that step's metrics."""
    file = RunFolder(config.run).metrics_file
    while process.poll() is None and (not file.exists() or file.read_text().count('"loss"') < step):
        time.sleep(0.002)


def test_a_run_killed_again_and_again_ends_with_the_same_bytes(config, tmp_path):
    config = replace(config, steps=60, save_every=7, eval_every=0, sample_every=0)
    subprocess.run(command_line(config), check=True, capture_output=True, timeout=120)
    broken = replace(config, run=tmp_path / "broken")
    generator, line, kills = np.random.default_rng(), command_line(broken), 0
    for _ in range(3):
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_step(broken, int(generator.integers(1, 55)), process)
        time.sleep(generator.random() * 0.02)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        line = resume_line(broken)
    subprocess.run(line, check=True, capture_output=True, timeout=120)
    assert kills, "no kill came in time"
    assert_same_end(config, broken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_says_how_to_go_on(config, number):
    config = replace(config, steps=500, save_every=0, eval_every=0, sample_every=0)
    process = subprocess.Popen(command_line(config), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    wait_for_step(config, 3, process)
    process.send_signal(number)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert f"minillm resume {config.run}" in out
    step = checkpoint.load(RunFolder(config.run).checkpoint_file)[1]["progress"]["step"]
    assert 3 <= step < 500
    assert [s for s, _ in losses(config)] == list(range(1, step + 1))


def test_a_folder_with_a_run_is_not_overwritten(config):
    pretrain.start(config, progress=False).save()
    before = RunFolder(config.run).config_file.read_bytes()
    with pytest.raises(FileExistsError, match=re.escape(f"minillm resume {config.run}")):
        pretrain.start(replace(config, steps=3), progress=False)
    assert RunFolder(config.run).config_file.read_bytes() == before


def test_a_finished_run_resumes_to_nothing_more_to_do(config):
    pretrain.start(config, progress=False).run([""], show=False)
    before = final_arrays(config)
    trainer = pretrain.resume(RunFolder(config.run))
    assert trainer.run([""], show=False)
    assert trainer.step == STEPS
    assert all((final_arrays(config)[name] == before[name]).all() for name in before)


def test_a_run_stopped_before_its_first_checkpoint_starts_where_its_folder_is_now(config, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "prepare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pretrain.start(config, progress=False)
    moved = config.run.rename(tmp_path / "moved")
    trainer = pretrain.resume(RunFolder(moved))
    trainer.save()
    assert (moved / "checkpoint.safetensors").exists()
    assert not config.run.exists()


def test_resuming_where_nothing_is_says_how_to_start(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no run.*minillm train"):
        pretrain.resume(RunFolder(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="holds no run"):
        RunFolder(tmp_path).load_model()


def test_a_checkpoint_of_another_config_is_refused(config):
    pretrain.start(config, progress=False).save()
    other = replace(config, model=replace(config.model, channels=32))
    RunFolder(config.run).write_config(other)
    with pytest.raises(ValueError, match="channels: 16 there, 32 in the settings"):
        RunFolder(config.run).load_model()


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"not safetensors", lambda b: b""])
def test_a_damaged_checkpoint_is_refused(config, damage):
    pretrain.start(config, progress=False).save()
    file = RunFolder(config.run).checkpoint_file
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match="damaged, cut short or not a checkpoint"):
        pretrain.resume(RunFolder(config.run))


def test_another_data_setting_in_the_same_folder_is_refused(config):
    pretrain.start(config, progress=False)
    with pytest.raises(ValueError, match="other data settings"):
        pretrain.start(replace(config, data=replace(config.data, vocab_size=270)), progress=False)


@pytest.mark.parametrize("asked", [7, 280, 5000])
def test_the_model_has_exactly_the_ids_of_its_tokenizer(config, asked):
    config = replace(config, model=replace(config.model, vocab_size=asked))
    trainer = pretrain.start(config, progress=False)
    assert trainer.model.config.vocab_size == trainer.tokenizer.vocab_size == 280
    trainer.save()
    folder = RunFolder(config.run)
    assert folder.load_model()[0].config.vocab_size == 280
    other = Tokenizer.train([TEXT], 270)
    other.save(folder.tokenizer_file)
    with pytest.raises(ValueError, match="has 270 ids and the model 280; they are not of the same run"):
        folder.load_model()


def test_useless_gradients_are_skipped_reported_and_end_the_run_when_they_do_not_stop(config, capsys):
    trainer = pretrain.start(replace(config, eval_every=0, sample_every=0), progress=False)
    good = trainer.model.weights.vector.copy()
    trainer.model.weights.tree.norm.weight[3] = np.inf
    with pytest.raises(RuntimeError, match=r"diverged by step 10; .*lower learning rate"):
        trainer.run([""], show=False)
    rows = RunFolder(config.run).read_metrics()
    assert all(row["skipped"] for row in rows if "loss" in row)
    assert "skipped, the gradient's norm is" in capsys.readouterr().out
    changed = trainer.model.weights.vector != good
    assert np.count_nonzero(changed) == 1


def test_half_a_line_of_metrics_is_dropped(config):
    folder = RunFolder(config.run)
    folder.write_config(config)
    folder.add_metrics({"step": 1, "loss": 2.0})
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "lo')
    assert folder.read_metrics(until=5) == [{"step": 1, "loss": 2.0}]
    assert folder.metrics_file.read_text().endswith("}\n")


def test_settings_of_a_run_are_stored_and_checked(config):
    folder = RunFolder(config.run)
    folder.write_config(config)
    assert folder.read_config() == config
    folder.config_file.write_text(folder.config_file.read_text().replace('"steps"', '"stepz"'))
    with pytest.raises(ValueError, match=r"config\.json: unknown setting 'stepz'; did you mean 'steps'"):
        folder.read_config()
