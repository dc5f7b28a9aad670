"""The training loop: step, look, save, until done or interrupted.

What is trained on comes in as a sampler and an objective, and a judge says how good the model has become; everything
that decides the outcome is in the state that `Trainer.save` writes, so that a run killed at any step and resumed ends
with the same bytes as an unbroken one.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from minillm import threads
from minillm.config import LoopConfig
from minillm.datasets.sampler import Stream
from minillm.model.model import Model
from minillm.optim.optimizer import Optimizer
from minillm.plotting import draw_gradient_norm, draw_loss
from minillm.tokenizer import Tokenizer
from minillm.training.card import write_card
from minillm.training.folder import RunFolder
from minillm.training.interrupt import Interrupt
from minillm.training.objective import Deep, next_token
from minillm.training.step import mean_gradient, split_rows

MAX_SKIPPED = 10  # useless gradients in a row after which a run is given up


class Judge(Protocol):
    """Says how good a model is, while it is trained and at the end."""

    def look(self, model: Model, max_tokens: int | None) -> dict[str, Any]:
        """Metrics, `val_loss` and `floor` (None where not known) among them; max_tokens: None for a thorough look."""

    def describe(self, row: dict[str, Any]) -> str:
        """The metrics as a sentence."""

    def samples(self, model: Model, prompts: list[str], seed: int) -> list[str]:
        """Texts the model writes now; the same at the same step however the run got there."""


class Trainer:
    """A run in progress: model, optimizer, sampler and the step they are at."""

    def __init__(self, config: LoopConfig, folder: RunFolder, model: Model, tokenizer: Tokenizer, sampler: Stream,
                 judge: Judge, objective: Callable | Deep = next_token) -> None:  # fmt: skip
        self.config, self.folder, self.model, self.tokenizer = config, folder, model, tokenizer
        self.sampler, self.judge, self.objective = sampler, judge, objective
        self.optimizer = Optimizer(model.weights, config.optim, config.steps, model.ops)
        self.grads = model.weights.zeros_like()
        self.step = 0
        self.num_tokens = 0  # trained on, for the speed
        self.seconds = 0.0  # spent in steps, looks and saves left out
        self.skipped_in_a_row = 0

    def take_step(self) -> dict[str, Any]:
        """One optimizer step; returns its metrics.  RuntimeError when gradients stay unusable."""
        start = time.perf_counter()
        batches = split_rows(self.sampler.next(), self.config.micro_batch_size)
        loss, count = mean_gradient(
            self.model, batches, self.grads, self.objective,
            self.config.seed, self.step, self.config.recompute, threads.run_all,
        )  # fmt: skip
        report = self.optimizer.step(self.grads)
        self.step += 1
        self.num_tokens += count
        self.seconds += time.perf_counter() - start
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if report.skipped else 0
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise RuntimeError(
                f"the last {MAX_SKIPPED} gradients were infinite or not numbers: training has diverged by step "
                f"{self.step}; resume from the last checkpoint with a lower learning rate or a smaller clip_norm"
            )
        row = {"step": self.step, "loss": loss, "norm": report.norm, "lr": report.lr, "tokens": self.num_tokens}
        row |= {"seconds": round(self.seconds, 3)}
        return row | {"skipped": True} if report.skipped else row

    def save(self) -> None:
        """Write everything that decides how the run goes on."""
        arrays, counts = self.optimizer.state()
        progress = {"step": self.step, "tokens": self.num_tokens, "seconds": self.seconds}
        meta = {"progress": progress, "optimizer": counts, "sampler": self.sampler.state()}
        self.folder.save(self.model, arrays, meta)

    def restore(self, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        """Go on from what `save` wrote (the model's weights are loaded already)."""
        self.optimizer.restore(arrays, meta["optimizer"])
        self.sampler.restore(meta["sampler"])
        progress = meta["progress"]
        self.step, self.num_tokens, self.seconds = progress["step"], progress["tokens"], progress["seconds"]

    def run(self, sample_prompts: list[str], show: bool = True) -> bool:
        """Train to the last step.  Returns False if interrupted before (after saving)."""
        config, folder = self.config, self.folder
        folder.read_metrics(until=self.step)
        bar = tqdm(total=config.steps, initial=self.step, unit="step", disable=not show, dynamic_ncols=True)
        threads.set_num_threads(config.threads)
        with bar, Interrupt() as interrupt:
            while self.step < config.steps and not interrupt.requested:
                row = self.take_step()
                folder.add_metrics(row)
                self._show(bar, row)
                if _due(self.step, config.eval_every) and self.step < config.steps:
                    self._report(bar, config.eval_tokens)
                if _due(self.step, config.sample_every) and self.step < config.steps:
                    self._sample(bar, sample_prompts)
                if _due(self.step, config.save_every) and self.step < config.steps:
                    self.save()
            if self.step == config.steps:
                self._report(bar, None)
            self.save()
        self.draw()
        return self.step == config.steps

    def draw(self) -> None:
        """Draw the curves of the run so far, and write its card."""
        rows = self.folder.read_metrics()
        draw_loss(rows, self.folder.path / "loss.png")
        draw_gradient_norm(rows, self.folder.path / "gradient.png", self.config.optim.clip_norm)
        write_card(self.folder)

    def _show(self, bar: tqdm, row: dict[str, Any]) -> None:
        bar.update()
        bar.set_postfix_str(f"loss {row['loss']:.3f}, {self.num_tokens / max(self.seconds, 1e-9):,.0f} tokens/s")
        if row.get("skipped"):
            bar.write(f"step {self.step}: skipped, the gradient's norm is {row['norm']}; weights are unchanged")

    def _report(self, bar: tqdm, max_tokens: int | None) -> None:
        row = {"step": self.step} | self.judge.look(self.model, max_tokens)
        self.folder.add_metrics(row)
        bar.write(f"step {self.step}: {self.judge.describe(row)}")

    def _sample(self, bar: tqdm, prompts: list[str]) -> None:
        for text in self.judge.samples(self.model, prompts, self.config.seed + self.step):
            with Path(self.folder.path / "samples.txt").open("a", encoding="utf-8") as file:
                file.write(f"--- step {self.step}\n{text}\n")
            bar.write(f"    | {text}".replace("\n", "\n    | "))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
