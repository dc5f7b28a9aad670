"""Batches of rows of tokens: shuffled for training, document by document for validation.

Here, and nowhere else, the targets are made from the ids by shifting one place; models and losses take them as given.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from minillm.config import check_at_least
from minillm.datasets.corpus import Split
from minillm.ops.cross_entropy import IGNORE


class Batch(NamedTuple):
    """ids[b, t] is a token and targets[b, t] the one that follows it in the text.  All (B, T) int64; (T,) for one row.

    Without segments, a row is one text.  With them it holds several, number segments[b, t] at positions of its own,
    -1 where there is none; a token sees only its text.
    """

    ids: np.ndarray
    targets: np.ndarray
    positions: np.ndarray | None = None
    segments: np.ndarray | None = None


class Rows(Protocol):
    """What a sampler draws from: so many rows, each a Batch of (T,) arrays, or one with further arrays."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> Any: ...


def stack(rows: list[Any]) -> Any:
    """Rows as one batch: Batches, or any other NamedTuple of arrays."""
    return type(rows[0])._make(None if arrays[0] is None else np.stack(arrays) for arrays in zip(*rows))


def next_token(tokens: np.ndarray) -> Batch:
    """tokens: (..., T + 1) -> ids: all but the last, targets: all but the first; both (..., T)."""
    tokens = tokens.astype(np.int64)
    return Batch(np.ascontiguousarray(tokens[..., :-1]), np.ascontiguousarray(tokens[..., 1:]))


def window_starts(split: Split, T: int) -> np.ndarray:
    """Offsets of the windows of T + 1 tokens that an epoch reads, ascending and distinct.

    One at the start of each document, so that the model learns to begin, and one every T tokens further inside it.
    Windows run on into the next documents; the last ones are moved back to end with the stream.  Every token but the
    very first is a target of at least one window.
    """
    check_at_least("T", T, 1)
    N = split.num_tokens
    if N < T + 1:
        raise ValueError(
            f"the text is too short for one window: {N} tokens, and a context of {T} needs {T + 1}; "
            f"add text or set the context to at most {N - 1}"
        )
    lengths = split.ends - split.starts
    num_windows = -(-lengths // T)
    first = np.cumsum(num_windows) - num_windows  # number of each document's first window
    inside = np.arange(num_windows.sum()) - np.repeat(first, num_windows)
    return np.unique(np.minimum(np.repeat(split.starts, num_windows) + T * inside, N - T - 1))


class Windows:
    """The windows of a stream of documents: the rows that pretraining reads."""

    def __init__(self, split: Split, T: int) -> None:
        self.split, self.T, self.starts = split, T, window_starts(split, T)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> Batch:
        start = int(self.starts[number])
        return next_token(self.split.tokens[start : start + self.T + 1])


class Sampler:
    """An endless stream of training batches.  Each epoch reads every row once, in an order of its own.

    A batch may span the end of an epoch, so no row is dropped.  The order depends only on (seed, epoch): whoever
    restores a state goes on exactly as if never interrupted.
    """

    def __init__(self, rows: Rows, B: int, seed: int) -> None:
        check_at_least("B", B, 1)
        check_at_least("seed", seed, 0)
        self.rows, self.B, self.seed = rows, B, seed
        self._enter(epoch=0, position=0)

    @property
    def num_drawn(self) -> int:
        """Rows drawn so far, in all epochs: the next one's place in the stream."""
        return self.epoch * len(self.rows) + self.position

    def next(self) -> Any:
        """The next B rows."""
        return stack([self.rows[number] for number in self._next_numbers()])

    def state(self) -> dict[str, int]:
        """Where the stream stands, and what it is a stream of, as plain integers."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "rows": len(self.rows)}

    def restore(self, state: dict[str, int]) -> None:
        """Go on from a `state()` of a sampler with the same seed over the same rows."""
        own = self.state()
        if state.keys() != own.keys():
            raise ValueError(f"a sampler's state has the keys {', '.join(own)}: got {', '.join(state) or 'none'}")
        for name, value in state.items():
            check_at_least(f"sampler state {name!r}", value, 0)
        for name in ("seed", "rows"):
            if state[name] != own[name]:
                raise ValueError(
                    f"the state belongs to another stream: its {name} is {state[name]}, this sampler's {own[name]}; "
                    "resume with the data, context and seed that the run began with"
                )
        if state["position"] >= len(self.rows):
            raise ValueError(
                f"sampler state 'position' must be below the number of rows, {len(self.rows)}: got {state['position']}"
            )
        self._enter(state["epoch"], state["position"])

    def _enter(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position
        self.order = np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))

    def _next_numbers(self) -> list[int]:
        taken: list[int] = []
        while len(taken) < self.B:
            part = self.order[self.position : self.position + self.B - len(taken)]
            taken.extend(part.tolist())
            self.position += len(part)
            if self.position == len(self.order):  # at once, so that a border has one state: (epoch + 1, 0)
                self._enter(self.epoch + 1, 0)
        return taken


class Stream(Protocol):
    """What training reads: batch after batch, to be left and gone on with at any place."""

    def next(self) -> Any:
        """The next batch."""

    def state(self) -> dict[str, int]:
        """Where it stands, as plain integers."""

    def restore(self, state: dict[str, int]) -> None:
        """Go on from a `state()` of the same stream."""


class Several:
    """Samplers as one stream.  InTurn and Together say in which way."""

    def __init__(self, first: Any, then: Any) -> None:
        self.parts = {"first ": first, "then ": then}

    def state(self) -> dict[str, int]:
        """Where both stand."""
        return {part + name: n for part, sampler in self.parts.items() for name, n in sampler.state().items()}

    def restore(self, state: dict[str, int]) -> None:
        """Go on from a `state()` of the same two."""
        for part, sampler in self.parts.items():
            sampler.restore({name.removeprefix(part): n for name, n in state.items() if name.startswith(part)})


class InTurn(Several):
    """The first one's rows once, and then the other for ever."""

    def next(self) -> Any:
        """The next batch."""
        first, then = self.parts.values()
        return (then if first.epoch else first).next()


class Together(Several):
    """Rows of both in each batch; those that are one text become one segment."""

    def next(self) -> Any:
        """The next batch."""
        both = [_segmented(sampler.next()) for sampler in self.parts.values()]
        return Batch(*(np.concatenate(arrays) for arrays in zip(*both)))


def _segmented(batch: Batch) -> Batch:
    if batch.segments is not None:
        return batch
    positions = np.broadcast_to(np.arange(batch.ids.shape[1]), batch.ids.shape)
    return batch._replace(positions=positions, segments=np.zeros_like(batch.ids))


class ValidationSet(NamedTuple):
    """What a validation scores: so many documents from the first, and their sums (nats: None where not known)."""

    num_documents: int
    num_targets: int
    num_bytes: int
    nats: float | None


def validation_set(split: Split, max_tokens: int | None = None) -> ValidationSet:
    """As many whole documents as come nearest to `max_tokens` targets together, at least one; None: all of them."""
    targets = np.cumsum(split.ends - split.starts)  # a document's tokens and the separator that follows it
    n = split.num_documents
    if max_tokens is not None:
        check_at_least("max_tokens", max_tokens, 1)
        n = 1 + int(np.argmin(np.abs(targets - max_tokens)))
    nats = None if split.nats is None else float(split.nats[:n].sum())
    return ValidationSet(n, int(targets[n - 1]), int(split.num_bytes[:n].sum()), nats)


def validation_batches(split: Split, T: int, B: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """The documents of `validation_set(split, max_tokens)`, each alone in its rows and each token a target once.

    A document [eot, t1, ..., tn, eot] longer than T continues in further rows.  So what a row predicts depends on
    that document alone, and the loss of documents that fit in T compares exactly with their entropy.  Rows are
    padded with separators whose targets are IGNORE; a batch is as wide as its longest row, the last may have fewer.
    """
    check_at_least("T", T, 1)
    check_at_least("B", B, 1)
    rows = _validation_rows(split, T, validation_set(split, max_tokens).num_documents)
    eot = int(split.tokens[:1][0])
    return (_pad(group, eot) for group in iter(lambda: list(islice(rows, B)), []))


def _validation_rows(split: Split, T: int, num_documents: int) -> Iterator[Batch]:
    for i in range(num_documents):
        whole = next_token(split.document(i))
        for t in range(0, len(whole.ids), T):
            yield Batch(whole.ids[t : t + T], whole.targets[t : t + T])


def _pad(rows: list[Batch], eot: int) -> Batch:
    shape = len(rows), max(len(row.ids) for row in rows)
    batch = Batch(np.full(shape, eot, np.int64), np.full(shape, IGNORE, np.int64))
    for b, row in enumerate(rows):
        batch.ids[b, : len(row.ids)] = row.ids
        batch.targets[b, : len(row.ids)] = row.targets
    return batch
