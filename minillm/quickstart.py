"""`minillm quickstart`: from nothing to a talking model, with a report card at the end."""

import os
import resource
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from minillm.config import DataConfig, ModelConfig, OptimConfig, SamplingConfig, TrainConfig
from minillm.datasets.tales import tales
from minillm.estimate import estimate
from minillm.inference.generate import generate
from minillm.training import pretrain
from minillm.training.folder import RunFolder
from minillm.training.loop import Trainer

STEPS = 1250
NUM_JUDGED = 32  # stories written at the end and read by the grammar


def settings(run: Path, steps: int) -> TrainConfig:
    """What the quickstart trains: a Llama-family model small enough for two laptop cores and a few minutes."""
    return TrainConfig(
        run=run,
        steps=steps,
        batch_size=8,
        eval_every=200,
        eval_tokens=10_000,
        sample_every=300,
        save_every=300,
        model=ModelConfig.of_depth(4, context_len=232, tied=False, init_std=0.1),
        data=DataConfig(
            source="tales",
            num_stories=12_000,
            vocab_size=1536,
            pattern="digits",
            vocab_conversations=4000,
            val_fraction=0.02,
        ),
        optim=OptimConfig(optimizer="muon", learning_rate=2e-3, muon_learning_rate=0.012, warmup_steps=20),
    )


def quickstart(run: Path, steps: int = STEPS, command: str = "minillm") -> None:
    """Make the corpus, train, draw, write three stories and a report card.  Replaces an older quickstart in `run`.

    command: how this program is called, for the hints at the end.
    """
    console, began = Console(), time.perf_counter()
    config = settings(run, steps)
    _clear(run)
    console.print(
        f"Writing {config.data.num_stories:,} stories and learning {config.data.vocab_size:,} tokens from them."
    )
    trainer = pretrain.start(config)
    console.print(
        f"Training {trainer.model.weights.num_parameters:,} parameters for {steps} steps.  "
        f"Ctrl-C stops and saves; then: {command} resume {run}",
        soft_wrap=True,
    )
    if not trainer.run(sample_prompts=["Once"], show=True):
        console.print(f"Stopped and saved at step {trainer.step}.  Go on with: {command} resume {run}", soft_wrap=True)
        return
    stories, judgement = _write_stories(trainer)
    for story in stories[:3]:
        console.print(Panel(story, width=100))
    console.print(_report_card(trainer, judgement, time.perf_counter() - began))
    _say_next(console, trainer.folder, command)


def _clear(run: Path) -> None:
    """Remove an older quickstart, and nothing that is not one."""
    folder = RunFolder(run)
    if not run.exists() or not any(run.iterdir()):
        return
    if not folder.config_file.exists():
        raise FileExistsError(f"{run} has files that are not a run's; choose another folder with --run")
    older = folder.read_config()
    ours = settings(run, older.steps)
    if (
        not isinstance(older, TrainConfig)
        or replace(older, run=run, model=replace(older.model, vocab_size=ours.model.vocab_size)) != ours
    ):
        raise FileExistsError(
            f"{run} holds a run with other settings; move it away or choose another folder with --run"
        )
    shutil.rmtree(run)


def _write_stories(trainer: Trainer) -> tuple[list[str], str]:
    """New stories, and how well they keep to the grammar: the judge reads each as the grammar might have written it."""
    sampling = SamplingConfig(temperature=0.7, seed=1, max_tokens=trainer.model.config.context_len - 2)
    done = generate(trainer.model, trainer.tokenizer, [""] * NUM_JUDGED, sampling)
    texts = [completion.text for completion in done]
    num_perfect = sum(tales().nats(text) is not None for text in texts)
    kept = sum(tales().longest_prefix(text) / max(1, len(text)) for text in texts) / len(texts)
    return texts, f"{len(texts)} new stories keep to every rule for {kept:.0%} of their text; {num_perfect} to the end"


def _report_card(trainer: Trainer, judgement: str, seconds: float) -> Table:
    last = trainer.folder.read_metrics()[-1]
    prediction = estimate(trainer.model.config, trainer.config.batch_size, backend=trainer.config.backend)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    table = Table(title="Report card", show_header=False)
    rows = {
        "validation loss": f"{last['val_loss']:.3f} nats per token",
        "entropy floor": f"{last['floor']:.3f} nats per token: no model can do better",
        "bits per byte": f"{last['val_bits_per_byte']:.3f}",
        "the grammar's view": judgement,
        "parameters": f"{prediction.parameters:,}",
        "trained on": f"{trainer.num_tokens:,} tokens in {trainer.step} steps",
        "speed": f"{trainer.num_tokens / trainer.seconds:,.0f} tokens/s on {os.cpu_count()} cores",
        "peak memory": f"{peak / 2**20:,.0f} MiB (predicted: {prediction.training_bytes / 2**20:,.0f} for weights, "
        f"gradients and moments, {prediction.activation_bytes / 2**20:,.0f} for activations)",
        "time": f"{seconds / 60:.1f} minutes",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _say_next(console: Console, folder: RunFolder, command: str) -> None:
    path = folder.path
    hints = [
        f"Curves: {path}/loss.png and {path}/gradient.png.  Now try:",
        f'  {command} generate {path} --prompt "Once there was a kind girl named Mia."',
        f"  {command} train --help",
        f"  {command} train --data.source stdlib --run runs/stdlib",
    ]
    console.print("\n".join(hints), markup=False, soft_wrap=True)  # a command must stay on one line to be copied
