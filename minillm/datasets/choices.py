"""Multiple-choice questions in JSON Lines, a question a line.

    {"messages": [{"role": "user", "content": "2 + 2 = ?"}], "choices": ["3", "4"], "expected": 1, "task": "add"}

`task` is optional: the group under which answers are counted.  Further keys are ignored.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from minillm.jsonl import read_rows
from minillm.tokenizer.chat import Message, check_messages


class ChoiceQuestion(NamedTuple):
    """What is asked, the choices, and the number of the right one."""

    messages: list[Message]
    choices: list[str]
    expected: int
    task: str = ""


def read_questions(path: Path) -> list[ChoiceQuestion]:
    """All questions of a file.  ValueError names file and line of the first fault, and what was expected."""
    questions = read_rows(path, _parse)
    if not questions:
        raise ValueError(f"{path} has no questions; each line is one, see minillm/datasets/choices.py")
    return questions


def _parse(row: Any) -> ChoiceQuestion:
    if not isinstance(row, dict) or not {"messages", "choices", "expected"} <= set(row):
        raise ValueError(f'a line must be an object with "messages", "choices" and "expected": got {json.dumps(row)}')
    choices, expected, task = row["choices"], row["expected"], row.get("task", "")
    check_messages(row["messages"])
    if row["messages"][-1]["role"] != "user":
        raise ValueError("the last message must be the user's: it is what the choices answer")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
        raise ValueError(f'"choices" must be a list of at least two texts: got {choices!r}')
    if not isinstance(expected, int) or isinstance(expected, bool) or not 0 <= expected < len(choices):
        raise ValueError(f'"expected" must be the number of a choice, 0 to {len(choices) - 1}: got {expected!r}')
    if not isinstance(task, str):
        raise ValueError(f'"task" must be text: got {task!r}')
    return ChoiceQuestion(
        [{"role": m["role"], "content": m["content"]} for m in row["messages"]], choices, expected, task
    )
