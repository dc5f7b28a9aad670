"""Conversations as rows of tokens: several to a row, none seeing another, or one to a row and padding."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from minillm.config import check_at_least
from minillm.datasets.conversations import Conversation
from minillm.datasets.sampler import Batch
from minillm.ops.cross_entropy import IGNORE
from minillm.tokenizer.chat import ChatTemplate, Rendered

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examples:
    """Rendered conversations that fit in T + 1 tokens, and what was done to make them fit."""

    rendered: list[Rendered]
    num_truncated: int
    num_dropped: int

    @property
    def num_taught(self) -> int:
        """Tokens that a model is taught, all of them together."""
        return sum(sum(r.mask[1:]) for r in self.rendered)


def render_all(conversations: Sequence[Conversation], template: ChatTemplate, T: int, last_only: bool = False,
               too_long: Literal["error", "truncate", "drop"] = "error") -> Examples:  # fmt: skip
    """Every conversation as tokens.  ValueError names the first that is longer than T + 1 tokens, unless `too_long`
    says to cut its end off or to leave it out, which is counted; and one of which nothing can be taught."""
    check_at_least("T", T, 1)
    kept, num_truncated, num_dropped = [], 0, 0
    for number, conversation in enumerate(conversations):
        ids, mask = template.render(conversation.messages, last_only)
        if len(ids) > T + 1:
            if too_long == "error":
                raise ValueError(
                    f"conversation {number} has {len(ids)} tokens, and a context of {T} has room for {T + 1}; shorten "
                    "it, choose truncate or drop for such conversations, or use a model with a longer context_len"
                )
            if too_long == "drop" or not any(mask[1 : T + 1]):  # cut before its first answer
                num_dropped += 1
                continue
            num_truncated += 1
            ids, mask = ids[: T + 1], mask[: T + 1]
        kept.append(Rendered(ids, mask))
    if not kept:
        raise ValueError(f"no conversation is left of {len(conversations)}: {num_dropped} are too long for {T} tokens")
    if num_truncated or num_dropped:
        log.warning(
            "of %d conversations, %d were cut to %d tokens and %d left out",
            len(conversations), num_truncated, T + 1, num_dropped,
        )  # fmt: skip
    return Examples(kept, num_truncated, num_dropped)


class PackedRows:
    """Rows of T tokens for a `Sampler`: each takes conversations as long as they fit, the longest first.

    As no text sees another, and each counts its own positions, a row's neighbours make no difference to what is
    learned; so they are chosen once, to waste little.
    """

    def __init__(self, examples: Sequence[Rendered], T: int, packing: bool = True) -> None:
        """packing: False for one conversation a row."""
        self.examples, self.T = examples, T
        self.members = (
            first_fit([len(e.ids) - 1 for e in examples], T) if packing else [[i] for i in range(len(examples))]
        )

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> Batch:
        return pack([self.examples[i] for i in self.members[number]], self.T)

    @property
    def share_filled(self) -> float:
        """Tokens that are not padding, as a share of all places."""
        return sum(len(e.ids) - 1 for e in self.examples) / (self.T * len(self))


def first_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Numbers of items by row, each row at most `room` long: longest first, into the first row with room for it.

    First-fit decreasing needs at most 11/9 of the fewest rows, plus 6/9 (Dosa 2007).
    """
    rows: list[list[int]] = []
    left = np.zeros(len(lengths), np.int64)
    left[:] = room
    for i in np.argsort(-np.asarray(lengths), kind="stable"):
        row = int(np.argmax(left >= lengths[i]))
        if row == len(rows):
            rows.append([])
        rows[row].append(int(i))
        left[row] -= lengths[i]
    return rows


def pack(examples: Sequence[Rendered], T: int) -> Batch:
    """Texts one after another in a row of T: targets where the mask says so, positions and segments of their own."""
    ids, positions = np.zeros((2, T), np.int64)
    targets, segments = np.full(T, IGNORE, np.int64), np.full(T, -1, np.int64)
    start = 0
    for number, (tokens, mask) in enumerate(examples):
        stop = start + len(tokens) - 1
        ids[start:stop], positions[start:stop], segments[start:stop] = tokens[:-1], np.arange(stop - start), number
        targets[start:stop] = np.where(mask[1:], tokens[1:], IGNORE)
        start = stop
    return Batch(ids, targets, positions, segments)
