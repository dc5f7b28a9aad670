"""The command line: help for everything, one line for a mistake, and the quickstart from end to end."""

import subprocess
import sys

import pytest

from minillm import cli, quickstart
from minillm.config import TrainConfig
from minillm.training.folder import RunFolder


def outcome(arguments, capsys):
    """Exit code and the two outputs."""
    code = 0
    try:
        cli.main(arguments)
    except SystemExit as end:
        code = end.code or 0
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", ["quickstart", "train", "resume", "generate", "estimate"])
def test_every_command_explains_itself(command, capsys):
    code, out, _ = outcome([command, "--help"], capsys)
    assert code == 0
    assert f"minillm {command}" in out


def test_help_of_train_shows_every_setting_with_its_meaning(capsys):
    _, out, _ = outcome(["train", "--help"], capsys)
    for name in ("--steps", "--model.num-kv-heads", "--optim.clip-norm", "--data.source", "--config"):
        assert name in out
    assert "tales: generated children" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "no/such/run"], "no/such/run holds no run"),
        (["resume", "no/such/run"], "holds no run"),
        (["estimate", "--channels", "100", "--num-heads", "8"], "try 96"),
        (["train", "--config", "no.toml"], "no.toml"),
        (["train", "--config"], "--config needs a file"),
        (["train", "--data.source", "no/such/text", "--run", "RUN"], "no/such/text"),
        (["generate", "RUN", "--temperature", "-1"], "temperature"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_two(arguments, message, capsys, tmp_path):
    code, _, err = outcome([a.replace("RUN", str(tmp_path / "run")) for a in arguments], capsys)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_options_override_the_file_and_the_file_the_defaults(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(cli, "_run", seen.append)
    (tmp_path / "small.toml").write_text("steps = 30\nseed = 5\n[model]\nchannels = 64\n")
    cli.main(["train", "--config", str(tmp_path / "small.toml"), "--steps", "7", "--model.num-heads", "2"])
    config = seen[0]
    assert isinstance(config, TrainConfig)
    assert (config.steps, config.seed, config.batch_size) == (7, 5, TrainConfig().batch_size)
    assert (config.model.channels, config.model.num_heads) == (64, 2)


def test_estimate_prints_what_it_predicts(capsys):
    code, out, _ = outcome(["estimate", "--family", "gpt2", "--num-layers", "12", "--num-heads", "12", "--channels",
                            "768", "--vocab-size", "50257", "--context-len", "1024"], capsys)  # fmt: skip
    assert code == 0
    assert "124,439,808" in out


def test_the_module_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "minillm", "--help"], capture_output=True, text=True, check=True)
    assert "quickstart" in done.stdout


def test_quickstart_ends_with_stories_and_a_report_card(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "NUM_JUDGED", 4)
    run = tmp_path / "quick"
    small = quickstart.settings(run, 3)
    object.__setattr__(small.data, "num_stories", 60)
    object.__setattr__(small.data, "vocab_size", 300)
    monkeypatch.setattr(quickstart, "settings", lambda *_: small)
    code, out, _ = outcome(["quickstart", "--run", str(run), "--steps", "3"], capsys)
    assert code == 0
    for line in ("Report card", "entropy floor", "bits per byte", "tokens/s", "peak memory", "parameters", "minutes"):
        assert line in out
    assert (run / "loss.png").exists()
    code, out, _ = outcome(["generate", str(run), "--prompt", "Once", "--max-tokens", "5", "--seed", "1"], capsys)
    assert code == 0
    assert out.startswith("Once")
    code, out, _ = outcome(["generate", str(run), "--prompt", "Once", "A", "--max-tokens", "2"], capsys)
    assert "[0] Once" in out and "[1] A" in out
    assert outcome(["quickstart", "--run", str(run), "--steps", "3"], capsys)[0] == 0, "a second one replaces the first"


def test_quickstart_does_not_touch_another_run_on_the_tales(tmp_path, capsys):
    RunFolder(tmp_path).write_config(TrainConfig(run=tmp_path))
    code, _, err = outcome(["quickstart", "--run", str(tmp_path)], capsys)
    assert code == 2
    assert "a run with other settings; move it away" in err
    assert RunFolder(tmp_path).config_file.exists()


def test_quickstart_does_not_touch_a_folder_of_other_files(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    code, _, err = outcome(["quickstart", "--run", str(tmp_path)], capsys)
    assert code == 2
    assert "choose another folder" in err
    assert (tmp_path / "thesis.txt").exists()


def test_a_model_is_taught_asked_and_compared_with_itself(tmp_path, capsys, monkeypatch):
    model = ["--model.num-layers", "1", "--model.channels", "16", "--model.num-heads", "1"]
    train = ["train", "--run", str(tmp_path / "base"), "--steps", "2", "--batch-size", "2", *model]
    assert (
        outcome(
            [*train, "--data.num-stories", "60", "--data.vocab-size", "800", "--data.vocab-conversations", "200"],
            capsys,
        )[0]
        == 0
    )
    run, pace = (
        str(tmp_path / "sft"),
        ["--steps", "2", "--batch-size", "2", "--num-conversations", "9", "--num-val", "2"],
    )
    code, out, _ = outcome(["sft", "--base", str(tmp_path / "base"), "--run", run, *pace], capsys)
    assert code == 0
    assert "9 conversations" in out and f"chat {run}" in out
    assert outcome(["resume", run], capsys)[0] == 0
    code, out, _ = outcome(["eval", run, "--num", "5"], capsys)
    assert code == 0
    assert "all" in out and "5" in out
    answers = str(tmp_path / "sft" / "exact-match.jsonl")
    code, out, _ = outcome(["eval", run, "--num", "5", "--against", answers, "--batch-size", "2"], capsys)
    assert code == 0
    assert "+0.0%, 95% confidence +0.0% to +0.0%, 5 questions" in out
    for how, said in (
        ("multiple-choice", "length of a choice"), ("bits-per-byte", "Perplexity"), ("pass-at-k", "error")
    ):  # fmt: skip
        code, out, _ = outcome(["eval", run, "--how", how, "--num", "3"], capsys)
        assert code == 0 and said in out
        assert (tmp_path / "sft" / f"{how}.png").exists()
    lines = iter(["/help", "hello", "/nonsense", "/quit"])
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    code, out, _ = outcome(["chat", run, "--max-tokens", "3"], capsys)
    assert code == 0
    assert out.count("/reset forgets") == 3
