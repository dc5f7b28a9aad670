"""The model card of a run: a page of Markdown that says what the model is, how it was made and how good it is."""

import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from minillm import checkpoint
from minillm.atomic import write_atomically
from minillm.config import LoopConfig, TrainConfig
from minillm.estimate import num_parameters
from minillm.evaluation.records import read_records
from minillm.evaluation.score import scores
from minillm.settings import from_mapping
from minillm.training.folder import STAGES, RunFolder

COMMANDS = {"pretrain": "train", "sft": "sft", "distil": "distill"}
WAYS = ("exact-match", "multiple-choice", "pass-at-k", "bits-per-byte")  # files of these names are evaluations


def write_card(folder: RunFolder) -> Path:
    """Write README.md into the folder of a run that has a checkpoint, from what lies there; returns its path."""
    config = folder.read_config()
    meta = checkpoint.load(folder.checkpoint_file)[1]
    stage = next(name for name, kind in STAGES.items() if type(config) is kind)
    parts = [
        f"# {folder.path.name}",
        _summary(config, stage, meta["model"]),
        f"Made by\n\n    {command_of(config, stage)}",
        _curves(folder),
        *_evaluations(folder),
        _samples(folder),
        "## Settings\n\n" + _table(("setting", "value"), _flat(config)),
    ]
    path = folder.path / "README.md"
    write_atomically(path, ("\n\n".join(part for part in parts if part) + "\n").encode())
    return path


def command_of(config: LoopConfig, stage: str) -> str:
    """The command that makes the same run: every setting that is not the default."""
    return shlex.join(["minillm", COMMANDS[stage], *_flags(config, "")])


def _flags(config: Any, prefix: str) -> list[str]:
    flags, usual = [], type(config)()
    for field in fields(config):
        value, name = getattr(config, field.name), field.name.replace("_", "-")
        if is_dataclass(value):
            flags += _flags(value, f"{prefix}{name}.")
        elif value == getattr(usual, field.name):
            continue
        elif isinstance(value, bool):
            flags.append(f"--{prefix}{name}" if value else f"--{prefix}no-{name}")
        else:
            flags += [f"--{prefix}{name}", str(value)]
    return flags


def _summary(config: LoopConfig, stage: str, model: dict[str, Any]) -> str:
    shape = from_mapping(type(TrainConfig().model), model)
    what = (
        f"A language model of {num_parameters(shape):,} parameters: {shape.family} family, {shape.num_layers} layers, "
        f"{shape.num_heads} heads, {shape.channels} channels, a vocabulary of {shape.vocab_size:,}, a context of "
        f"{shape.context_len} tokens."
    )
    if isinstance(config, TrainConfig):
        return f"{what}  It continues text like that of `{config.data.source}`."
    how = f"adapters of rank {config.lora.rank}" if config.lora.rank else "all its weights"  # type: ignore[attr-defined]
    taught = f"  `{config.base}` was taught to answer by `{config.data}`, which changed {how}."  # type: ignore[attr-defined]
    return what + taught + (f"  Its teacher was `{config.teacher}`." if stage == "distil" else "")  # type: ignore[attr-defined]


def _curves(folder: RunFolder) -> str:
    rows = folder.read_metrics()
    trained = [row for row in rows if "loss" in row]
    judged = [row for row in rows if "val_loss" in row]
    if not trained:
        return ""
    last = trained[-1]
    lines = [f"{last['step']:,} steps, {last['tokens']:,} tokens learned from in {last['seconds'] / 60:.1f} minutes."]
    if judged:
        floor = judged[-1].get("floor")
        lines.append(
            f"Validation loss {judged[-1]['val_loss']:.3f} nats per token"
            + (f"; no model can go below {floor:.3f}." if floor is not None else ".")
        )
    return "## Curves\n\n" + "  ".join(lines) + "\n\n![loss](loss.png)\n\n![gradient norm](gradient.png)"


def _evaluations(folder: RunFolder) -> list[str]:
    parts = []
    for way in WAYS:
        path = folder.path / f"{way}.jsonl"
        if not path.exists():
            continue
        share = way != "bits-per-byte"
        number = "{:.1%}".format if share else "{:.3f}".format
        rows = [(t, number(s.mean), number(s.standard_error), s.num) for t, s in scores(read_records(path)).items()]
        head = ("task", "right" if share else "bits per byte", "standard error", "questions")
        parts.append(f"## Evaluation: {way}\n\n{_table(head, rows)}\n\n![{way}]({way}.png)")
    return parts


def _samples(folder: RunFolder) -> str:
    path = folder.path / "samples.txt"
    if not path.exists():
        return ""
    last = path.read_text(encoding="utf-8").rsplit("--- step ", 1)[-1]
    step, _, text = last.partition("\n")
    return f"## A sample, at step {step}\n\n" + "\n".join(f"    {line}" for line in text.rstrip().split("\n"))


def _flat(config: Any, prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for field in fields(config):
        value = getattr(config, field.name)
        rows += _flat(value, f"{prefix}{field.name}.") if is_dataclass(value) else [(prefix + field.name, value)]
    return rows


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in cells)
