"""Text to token ids and back: what `bpe` learned, run by tiktoken, kept in one readable file.

Ids in order: the 256 bytes, then the merged tokens as they were learned, then the special tokens; vocabularies of
others may number them otherwise.  A special token marks structure (the end of a document, whose turn it is), so text
never turns into one unless the caller says so.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from minillm.atomic import write_atomically
from minillm.tokenizer.bpe import (
    Merge,
    check_text,
    encode_piece,
    from_printable,
    full_pattern,
    to_printable,
    train_merges,
)

END_OF_TEXT = "<|endoftext|>"
FORMAT = "minillm tokenizer 1"
KEYS = ("format", "fingerprint", "pattern", "special", "merges")
NUMBERED = "ids"  # a further key, where the ids are not those of our order


class Tokenizer:
    """A byte-level BPE vocabulary.

    Attributes:
        pattern: the regular expression that splits text into pieces.
        merges: the pairs of tokens that were merged, in order; each makes the token of the next id from 256 on.
        special: the id of each special token, by its text.
        vocab_size: number of ids, special tokens included.
        fingerprint: 16 hex digits that tell vocabularies apart; data shards carry it.
    """

    def __init__(self, merges: Iterable[Merge], pattern: str = "gpt2", special: Sequence[str] = (END_OF_TEXT,),
                 ids: Sequence[int] | None = None) -> None:  # fmt: skip
        """Make a tokenizer of known merges; see `train` for the arguments.

        ids: that of each byte, merged token and special token, in this order, where they are not 0, 1, 2, ...  A byte
        that the vocabulary lacks has the id of a special token, that for what is unknown.

        Raises ValueError for a bad pattern or special token or ids, and if encoding a merged token's bytes does not end
        in just the two parts of its merge: then the merges are not in the order in which they were learned.
        """
        self.pattern = full_pattern(pattern)
        self.merges = [(bytes(a), bytes(b)) for a, b in merges]
        _check_merges(self.merges)
        _check_special(special)
        self._tokens = [bytes([byte]) for byte in range(256)] + [a + b for a, b in self.merges]
        ranks = {token: rank for rank, token in enumerate(self._tokens)}
        self.special = {text: len(ranks) + i for i, text in enumerate(special)}
        self._tokens += [text.encode() for text in special]
        own_special = self.special
        self._ids = None
        if ids is not None and list(ids) != list(range(len(self._tokens))):
            self._ids = _check_ids(ids, len(self.merges), len(self._tokens))
        if self._ids is not None:
            self.special = {text: int(self._ids[i]) for text, i in own_special.items()}
            self._tokens = _renumbered(self._tokens, self._ids)
        self.vocab_size = len(self._tokens)
        self.fingerprint = _fingerprint(self._content())
        try:
            self._encoding = tiktoken.Encoding(
                self.fingerprint, pat_str=self.pattern, mergeable_ranks=ranks, special_tokens=own_special
            )
        except ValueError as error:
            raise ValueError(f"pattern must be one that tiktoken understands: got {self.pattern!r}: {error}") from None

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        pattern: str = "gpt2",
        special: Sequence[str] = (END_OF_TEXT,),
        progress: bool = False,
    ) -> "Tokenizer":
        """Learn a vocabulary of `vocab_size` ids from `texts` (`bpe.train_merges` says how).

        A small corpus can run out of pairs to merge; then the tokenizer's `vocab_size` is smaller than asked.

        Args:
            texts: the corpus, one str per document.
            vocab_size: 256 bytes + merges + special tokens.
            pattern: "gpt2", "cl100k", or a regular expression for the pieces that merges stay inside.
            special: texts of the special tokens; they get the highest ids, in this order.
            progress: show a bar.

        Raises:
            ValueError: too small a vocabulary, an empty corpus, a bad pattern or special token, invalid Unicode.
        """
        _check_special(special)
        least = 256 + len(special)
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < least:
            raise ValueError(
                f"vocab_size must be an integer of at least {least} (256 bytes and {len(special)} special tokens): "
                f"got {vocab_size!r}"
            )
        return cls(train_merges(texts, vocab_size - least, pattern, progress), pattern, special)

    @property
    def eot(self) -> int:
        """The id of <|endoftext|>, which separates documents; ValueError if this vocabulary has none."""
        if END_OF_TEXT not in self.special:
            raise ValueError(f"no {END_OF_TEXT} in this tokenizer; special tokens: {', '.join(self.special) or 'none'}")
        return self.special[END_OF_TEXT]

    def encode(self, text: str, allow_special: Collection[str] = ()) -> list[int]:
        """The ids of `text`; `decode` gives `text` back exactly.

        Only special tokens named in `allow_special` are recognised; any other is spelled out like all text, so that
        nobody can fake the end of a document or another speaker's turn.

        Raises:
            ValueError: `text` is not valid Unicode, `allow_special` names no special token of this vocabulary, or
                tiktoken gives up (it does on about a million spaces in a row).
        """
        check_text(text)
        if isinstance(allow_special, str):
            raise ValueError(f"allow_special must be a collection of special tokens: got one str, {allow_special!r}")
        for name in allow_special:
            if name not in self.special:
                raise ValueError(f"unknown special token {name!r}; known: {', '.join(self.special) or 'none'}")
        with _failure_as_value_error():
            found = self._encoding.encode(text, allowed_special=set(allow_special), disallowed_special=())
        return found if self._ids is None else self._ids[found].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, as `encode` gives them with no special token allowed, on several threads."""
        if isinstance(texts, str):
            raise ValueError("texts must be a sequence of str: got one str; put it in a list or call encode")
        for text in texts:
            check_text(text)
        with _failure_as_value_error():
            found = self._encoding.encode_batch(list(texts), disallowed_special=())
        return found if self._ids is None else [self._ids[ids].tolist() for ids in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; bytes that are not valid UTF-8 become U+FFFD.  ValueError for an unknown id."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`; a special token gives its text.  ValueError for an unknown id."""
        return b"".join([self.token_bytes(id) for id in ids])

    def token_bytes(self, id: int) -> bytes:
        """The bytes of one token.  ValueError if `id` is no integer of the vocabulary."""
        try:
            place = index(id)  # NumPy's integers too, but no 3.0
        except TypeError:
            raise ValueError(f"a token id must be an integer: got {id!r}") from None
        if not 0 <= place < self.vocab_size:
            raise ValueError(f"token id {place} is not in this vocabulary of {self.vocab_size} ids")
        return self._tokens[place]

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to one JSON file, all of it or nothing.

        One merge per line, its two parts in GPT-2's visible alphabet with a space between (as in Hugging Face's
        merges.txt); the pattern written out, the special tokens in order, and the fingerprint of these three.
        """
        content = {"format": FORMAT, "fingerprint": self.fingerprint} | self._content()
        written = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        write_atomically(Path(path), written.encode("utf-8"))

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read what `save` wrote.  ValueError names the file and the fault if anything in it is not as written."""
        try:
            read = json.loads(Path(path).read_text(encoding="utf-8"))
            merges = _parse(read)
            made = cls(merges, read["pattern"], read["special"], read.get(NUMBERED))
            if made.fingerprint != read["fingerprint"]:
                raise ValueError(
                    f"its content has fingerprint {made.fingerprint}, but it says {read['fingerprint']!r}: "
                    "it was changed after it was saved"
                )
        except (ValueError, RecursionError) as error:  # not JSON and not UTF-8 are ValueErrors too
            raise ValueError(f"{path} is not a tokenizer file: {error}") from error
        return made

    def _content(self) -> dict:
        merges = [f"{to_printable(a)} {to_printable(b)}" for a, b in self.merges]
        content: dict[str, Any] = {"pattern": self.pattern, "special": list(self.special), "merges": merges}
        return content if self._ids is None else content | {NUMBERED: self._ids.tolist()}

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, fingerprint={self.fingerprint})"


def _fingerprint(content: dict) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _check_merges(merges: list[Merge]) -> None:
    """Raise ValueError unless encoding each merged token, with the merges before it, ends in its two parts."""
    ranks: dict[bytes, int] = {}
    for number, (a, b) in enumerate(merges):
        found = encode_piece(a + b, ranks)
        if found != [a, b]:
            parts = " + ".join(repr(part) for part in found)
            raise ValueError(
                f"merge {number} must join two tokens that the merges before it make: {a!r} + {b!r}, "
                f"but they make {parts or 'nothing'}; is a merge missing, doubled or out of order?"
            )
        ranks[a + b] = number


def _check_ids(ids: Sequence[int], num_merges: int, count: int) -> np.ndarray:
    if len(ids) != count or not all(type(id) is int and 0 <= id < 2 * count for id in ids):
        raise ValueError(f"there must be an id, an integer from 0 up, for each of {count} tokens")
    owners = Counter(ids)
    for id in ids[:256]:
        if owners[id] > 1 and id in ids[256 + num_merges :]:
            owners[id] -= 1
    if twice := [id for id, number in owners.items() if number > 1]:
        raise ValueError(f"every token must have an id of its own: {twice[0]} belongs to two")
    return np.array(ids)


def _renumbered(tokens: list[bytes], ids: np.ndarray) -> list[bytes]:
    """The tokens by their ids; a number that no token has is an empty one."""
    by_id = [b""] * (int(ids.max()) + 1)
    for token, id in zip(tokens, ids.tolist()):
        by_id[id] = token
    return by_id


def _check_special(special: Sequence[str]) -> None:
    if isinstance(special, str):
        raise ValueError(f"special must be a sequence of texts: got {special!r}; put it in a tuple")
    for text in special:
        check_text(text)
    if "" in special or len(set(special)) < len(special):
        raise ValueError(f"special tokens must be different and not empty: got {list(special)}")


def _parse(read: object) -> list[Merge]:
    """The merges of a file's content, once its keys and types are as `save` writes them."""
    if not isinstance(read, dict) or read.get("format") != FORMAT:
        found = read.get("format") if isinstance(read, dict) else type(read).__name__
        raise ValueError(f"its format must be {FORMAT!r}: got {found!r}")
    if set(read) - {NUMBERED} != set(KEYS):
        raise ValueError(f"its keys must be {', '.join(KEYS)}: got {', '.join(read)}")
    if not isinstance(read.get(NUMBERED), list | None):
        raise ValueError(f"{NUMBERED} must be a list of integers")
    for key in ("special", "merges"):
        if not isinstance(read[key], list) or not all(isinstance(line, str) for line in read[key]):
            raise ValueError(f"{key} must be a list of strings")
    merges = []
    for number, line in enumerate(read["merges"]):
        parts = line.split(" ")
        if len(parts) != 2:
            raise ValueError(f"merge {number} must be two tokens with a space between: got {line!r}")
        merges.append((from_printable(parts[0]), from_printable(parts[1])))
    return merges


@contextmanager
def _failure_as_value_error() -> Iterator[None]:
    """tiktoken may fail with a panic of Rust, a BaseException that would pass through every `except Exception`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"tiktoken cannot encode this text; does it hold a very long run of spaces? {error}") from None
