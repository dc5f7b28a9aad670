"""Supervised fine-tuning: a pretrained model learns to answer (Ouyang et al. 2022, arXiv 2203.02155, step 1).

It is next-token training with two changes: only what the assistant says is a target, and several conversations share
a row without seeing each other.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from minillm import backend, threads
from minillm.adapt.lora import attach
from minillm.atomic import write_atomically
from minillm.config import SFTConfig
from minillm.datasets.conversations import Conversation, read_conversations
from minillm.datasets.packing import PackedRows, render_all
from minillm.datasets.sampler import Batch, Sampler, stack
from minillm.datasets.tasks import conversation
from minillm.evaluation.exact_match import exact_match
from minillm.evaluation.score import score
from minillm.model.model import Model
from minillm.model.run import attend_of
from minillm.ops.cross_entropy import num_targets
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import ChatTemplate
from minillm.training.folder import RunFolder, open_model, open_template
from minillm.training.loop import Trainer

SHOWN = 4  # conversations that a sample shows
QUICK_ANSWERS = 64  # questions answered at each validation; at the end all are


def start(config: SFTConfig) -> Trainer:
    """A new run in config.run that begins with the model of config.base.

    FileExistsError, and nothing touched, if there is a checkpoint already.
    """
    return keep(config, _trainer(config, *begin(config)))


def resume(folder: RunFolder) -> Trainer:
    """A run as its last checkpoint left it."""
    config = folder.read_config()
    if not isinstance(config, SFTConfig):
        raise ValueError(f"{folder.path} is no fine-tuning run")
    model, tokenizer, arrays, meta = reopen(folder, config)
    trainer = _trainer(config, folder, model, tokenizer)
    trainer.restore(arrays, meta)
    return trainer


def begin(config: SFTConfig) -> tuple[RunFolder, Model, Tokenizer]:
    """The folder of a new run, which is still empty, and the model of config.base, with new adapters if any."""
    folder = RunFolder(config.run)
    folder.check_new()
    model, tokenizer = open_model(config.base)
    model = replace(model, ops=backend.load(config.backend))
    return folder, attach(model, config.lora, config.seed) if config.lora.rank else model, tokenizer


def keep(config: SFTConfig, trainer: Trainer) -> Trainer:
    """Write down what a new run is, now that it can go."""
    trainer.tokenizer.save(trainer.folder.tokenizer_file)
    trainer.folder.write_config(config)
    source = template_for(config, trainer.tokenizer).source
    write_atomically(trainer.folder.template_file, source.encode())
    return trainer


def reopen(folder: RunFolder, config: SFTConfig) -> tuple[Model, Tokenizer, dict[str, np.ndarray], dict[str, Any]]:
    """Model and tokenizer of a run that was stopped, and what else its checkpoint holds."""
    if not folder.checkpoint_file.exists():
        raise FileNotFoundError(f"{folder.path} was stopped before its first checkpoint; delete it and begin again")
    model, arrays, meta = folder.load(config)
    return model, Tokenizer.load(folder.tokenizer_file), arrays, meta


def template_for(config: SFTConfig, tokenizer: Tokenizer) -> ChatTemplate:
    """The template of the run itself, if it has begun; else that of the settings; else that of the base."""
    folder = RunFolder(config.run)
    if folder.template_file.exists() or not config.chat_template:
        return open_template(folder.path if folder.template_file.exists() else config.base, tokenizer)
    return ChatTemplate(tokenizer, Path(config.chat_template).read_text(encoding="utf-8"))


def _trainer(config: SFTConfig, folder: RunFolder, model: Model, tokenizer: Tokenizer) -> Trainer:
    rows, judge = lessons(config, model, template_for(config, tokenizer), *split(config))
    sampler = Sampler(rows, config.batch_size, config.seed)
    return Trainer(config, folder, model, tokenizer, sampler, judge)


def lessons(config: SFTConfig, model: Model, template: ChatTemplate, train: Sequence[Conversation],
            val: Sequence[Conversation]) -> tuple[PackedRows, "ChatJudge"]:  # fmt: skip
    """The rows to learn from, and who judges what was learned."""
    T = model.config.context_len
    taught = render_all(train, template, T, config.last_only, config.too_long)
    judged = render_all(val, template, T, config.last_only, config.too_long)
    rows = PackedRows(taught.rendered, T, config.packing)
    filled = f"{len(rows):,} rows of {T} tokens, {rows.share_filled:.0%} filled"
    print(f"{len(taught.rendered):,} conversations, {taught.num_taught:,} tokens to learn, in {filled}; "
          f"{model.weights.num_parameters:,} parameters to train")  # fmt: skip
    asked = [c for c in val if c.messages[-1]["role"] == "assistant"]
    asked = [c for c in asked if len(template.prompt(c.messages[:-1])) < T]
    return rows, ChatJudge(template, asked, PackedRows(judged.rendered, T), config.micro_batch_size)


def split(config: SFTConfig) -> tuple[list[Conversation], list[Conversation]]:
    """The conversations to learn from and those to validate on, which share no question.

    Of a file, those whose first question has the lowest hash validate, so that the same question is on one side.
    ValueError if all conversations of a file begin with the same one.
    """
    if config.data == "tasks":
        train = [conversation("train", config.seed, i) for i in range(config.num_conversations)]
        return train, [conversation("val", config.seed, i) for i in range(config.num_val)]
    groups: dict[bytes, list[Conversation]] = {}
    for c in read_conversations(Path(config.data)):
        groups.setdefault(_first_question(c), []).append(c)
    if len(groups) < 2:
        raise ValueError(f"{config.data} has one question only; validation needs another that is not learned from")
    ordered = [groups[key] for key in sorted(groups)]
    num_val = max(1, min(round(config.val_fraction * len(groups)), config.num_val, len(groups) - 1))
    return list(chain(*ordered[num_val:])), list(chain(*ordered[:num_val]))


def _first_question(c: Conversation) -> bytes:
    """A hash of what is said before the first answer."""
    end = [m["role"] for m in c.messages].index("assistant")
    return hashlib.sha256(repr([(m["role"], m["content"]) for m in c.messages[:end]]).encode()).digest()


@dataclass(frozen=True)
class ChatJudge:
    """How probable a model finds the validation answers, and how many of its own are the same."""

    template: ChatTemplate
    asked: Sequence[Conversation]
    rows: PackedRows
    batch_size: int

    def look(self, model: Model, max_tokens: int | None) -> dict[str, Any]:
        """See Judge.  Right answers are counted where the conversations end with one."""
        loss, count = self.loss(model)
        row: dict[str, Any] = {"val_loss": loss, "floor": None, "val_targets": count}
        records = exact_match(model, self.template, self.asked[: max_tokens and QUICK_ANSWERS])
        if records:
            result = score(records)
            row |= {"accuracy": result.mean, "accuracy_error": result.standard_error, "num_asked": result.num}
        return row

    def loss(self, model: Model) -> tuple[float, int]:
        """Nats per token of the answers, and how many tokens those are."""
        rows = [self.rows[number] for number in range(len(self.rows))]
        batches = [stack(rows[start : start + self.batch_size]) for start in range(0, len(rows), self.batch_size)]

        def total(batch: Batch) -> float:
            logits = model.logits(batch.ids, batch.positions, attend_of(model.ops, batch.segments))
            return float(np.sum(model.ops.cross_entropy_forward(logits, batch.targets)[0], dtype=np.float64))

        count = sum(num_targets(batch.targets) for batch in batches)
        return sum(threads.run_all(total, batches)) / count, count

    def describe(self, row: dict[str, Any]) -> str:
        """See Judge."""
        if "accuracy" not in row:
            return f"validation loss {row['val_loss']:.3f}"
        right = f"{row['accuracy']:.1%} ± {row['accuracy_error']:.1%} of {row['num_asked']} answers right"
        return f"validation loss {row['val_loss']:.3f}, {right}"

    def samples(self, model: Model, prompts: list[str], seed: int) -> list[str]:
        """See Judge: some validation questions and the model's answers; prompts and seed are not used."""
        del prompts, seed
        records = exact_match(model, self.template, self.asked[:SHOWN])
        return [
            f"{r.messages[-1]['content']}\n{r.answer}   [{'right' if r.correct else f'expected: {r.expected}'}]"
            for r in records
        ]
