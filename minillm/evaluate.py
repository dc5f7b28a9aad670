"""`minillm eval`: how often a model answers right, by task, with standard errors; and beside another run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from minillm.config import check_at_least
from minillm.datasets.conversations import Conversation, read_conversations
from minillm.datasets.tasks import conversation
from minillm.evaluation.exact_match import Record, exact_match, scores
from minillm.evaluation.records import compare, read_records, write_records
from minillm.tokenizer.chat import ChatTemplate
from minillm.training.folder import RunFolder


@dataclass(frozen=True)
class Evaluate:
    """Count right answers: greedy, word for word, of the last question of each conversation."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    data: str = "tasks"
    """tasks: generated questions that nothing was trained on.  Else: a file of conversations, JSON Lines."""
    split: Literal["test", "val", "train"] = "test"
    """Which questions (tasks only)."""
    num: int = 400
    """How many conversations, at most."""
    seed: int = 0
    """Chooses the questions (tasks only)."""
    batch_size: int = 16
    """Answers written together; makes no difference to them."""
    records: Path | None = None
    """Where to write every question and answer, as JSON Lines; by default answers.jsonl in the run's folder."""
    against: Path | None = None
    """Records of another run on the same questions, to be compared with."""

    def __post_init__(self) -> None:
        check_at_least("eval.num", self.num, 1)
        check_at_least("eval.seed", self.seed, 0)


def evaluate(command: Evaluate, console: Console | None = None) -> list[Record]:
    """Answer, write the records, print the table; returns the records."""
    console = console or Console()
    other = None if command.against is None else read_records(command.against)
    model, tokenizer = RunFolder(command.run).load_model()
    records = exact_match(model, ChatTemplate(tokenizer), _questions(command), command.batch_size)
    path = command.records or command.run / "answers.jsonl"
    write_records(path, records)
    table = Table("task", "right", "standard error", "questions", title=f"{command.run}")
    for task, s in scores(records).items():
        table.add_row(task, f"{s.accuracy:.1%}", f"{s.standard_error:.1%}", str(s.num))
    console.print(table)
    if other is not None:
        d = compare(other, records)
        console.print(
            f"against {command.against}: {d.mean:+.1%} of {d.num} answers right, 95% confidence "
            f"{d.low:+.1%} to {d.high:+.1%}",
            soft_wrap=True,
        )
    console.print(f"Every answer: {path}", soft_wrap=True)
    return records


def _questions(command: Evaluate) -> list[Conversation]:
    if command.data == "tasks":
        return [conversation(command.split, command.seed, i) for i in range(command.num)]
    return read_conversations(Path(command.data))[: command.num]
