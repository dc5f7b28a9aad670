"""Conversations in the ecosystem's usual form: JSON Lines, a conversation a line, `messages` of `role` and `content`.

    {"messages": [{"role": "user", "content": "2 + 2 = ?"}, {"role": "assistant", "content": "4"}], "task": "add"}

`task` is optional: the group under which answers are counted.  Further keys are ignored.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from minillm.jsonl import read_rows, write_rows
from minillm.tokenizer.chat import Message, check_messages


class Conversation(NamedTuple):
    """Messages, and the group under which their answers are counted."""

    messages: list[Message]
    task: str = ""


def read_conversations(path: Path) -> list[Conversation]:
    """All conversations of a file.  ValueError names file and line of the first fault, and what was expected."""
    conversations = read_rows(path, _parse)
    if not conversations:
        raise ValueError(f"{path} has no conversations; each line is one, see minillm/datasets/conversations.py")
    return conversations


def write_conversations(path: Path, conversations: Iterable[Conversation]) -> None:
    """The inverse of `read_conversations`."""
    rows = ({"messages": [dict(m) for m in c.messages]} | ({"task": c.task} if c.task else {}) for c in conversations)
    write_rows(path, rows)


def _parse(row: object) -> Conversation:
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        raise ValueError('a line must be an object with a list of "messages"')
    messages, task = row["messages"], row.get("task", "")
    check_messages(messages)
    if not any(message["role"] == "assistant" for message in messages):
        raise ValueError("a conversation without an answer teaches nothing; no message has the role assistant")
    if not isinstance(task, str):
        raise ValueError(f'"task" must be text: got {task!r}')
    return Conversation([{"role": m["role"], "content": m["content"]} for m in messages], task)
