"""The tokenized corpus on disk: token shards that are memory-mapped, so it may be larger than memory.

    folder/meta.json                     counts, settings, and the fingerprint of the tokenizer
    folder/train/tokens-00000.bin ...    little-endian uint16 (uint32 above 65,536 ids), at most SHARD_TOKENS each
    folder/train/starts.npy              where each document starts
    folder/train/num_bytes.npy           UTF-8 bytes of each document's text, for bits per byte
    folder/train/nats.npy                exact -log probability of each document, if the source knows it
    folder/val/...                       the same for validation

Each split is one stream, `<|endoftext|> text <|endoftext|> text ... <|endoftext|>`: a separator precedes and follows
each document.  Separators are added here and only here; a text that mentions one is encoded as ordinary characters.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from minillm.config import check_at_least
from minillm.datasets.source import Document
from minillm.tokenizer.tokenizer import Tokenizer

FORMAT = 1
SHARD_TOKENS = 64 * 2**20  # 128 MiB of uint16: easy to copy, few enough files to keep open
BATCH_CHARACTERS = 2**20  # text tokenized at once: enough to keep every thread busy, little enough to hold


class Tokens:
    """Several shards read as one array: `tokens[start:stop]` is a read-only array of ids, `len(tokens)` their count."""

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        self.shards = [np.asarray(shard) for shard in shards]  # plain views of the memory maps
        self.ends = np.cumsum([len(shard) for shard in shards])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, where: slice) -> np.ndarray:
        start, stop, step = where.indices(len(self))
        assert step == 1, f"tokens are read in runs, tokens[start:stop]: got step {step}"
        first = int(np.searchsorted(self.ends, start, side="right"))
        parts = []
        for shard, end in zip(self.shards[first:], self.ends[first:]):
            begin = end - len(shard)
            parts.append(shard[max(start - begin, 0) : max(stop - begin, 0)])
            if end >= stop:
                break
        run = parts[0] if len(parts) == 1 else np.concatenate(parts or [self.shards[0][:0]])
        run.flags.writeable = False
        return run


@dataclass(frozen=True)
class Split:
    """One stream of documents.  `starts[i]` is the offset of the separator in front of document i."""

    tokens: Tokens
    starts: np.ndarray
    num_bytes: np.ndarray
    nats: np.ndarray | None

    @property
    def num_tokens(self) -> int:
        """N: tokens in the stream, separators included."""
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        """Documents in the stream."""
        return len(self.starts)

    @property
    def ends(self) -> np.ndarray:
        """The offset of the separator that follows each document."""
        return np.append(self.starts[1:], self.num_tokens - 1)

    def document(self, i: int) -> np.ndarray:
        """Document i with the separators around it: [eot, t1, ..., tn, eot]."""
        end = self.starts[i + 1] if i + 1 < len(self.starts) else self.num_tokens - 1
        return self.tokens[self.starts[i] : end + 1]


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus, open for reading; `settings` are those it was prepared with."""

    folder: Path
    train: Split
    val: Split
    settings: dict[str, Any]

    @classmethod
    def open(cls, folder: Path, tokenizer: Tokenizer) -> "Corpus":
        """Map a prepared corpus; ValueError if it is damaged or was made with another tokenizer."""
        folder = Path(folder)
        meta = _read_meta(folder)
        if meta["fingerprint"] != tokenizer.fingerprint:
            raise ValueError(
                f"{folder} was made with another tokenizer: its fingerprint is {meta['fingerprint']}, that of the "
                f"tokenizer given is {tokenizer.fingerprint}; load the tokenizer it was made with, or delete the "
                "folder and prepare it again"
            )
        train, val = (_open_split(folder / name, meta["dtype"], meta["splits"][name]) for name in ("train", "val"))
        return cls(folder, train, val, meta["settings"])


def prepare(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: Path,
    val_fraction: float,
    seed: int,
    settings: dict[str, Any],
    progress: bool = True,
    shard_tokens: int = SHARD_TOKENS,
) -> Corpus:
    """Tokenize documents, split them into training and validation, and write the corpus into the new `folder`.

    All is built beside `folder` and renamed at the end, so a folder that exists is whole.  Documents stream through:
    they go once to a spool file, and from there, when it is known how many there are, to their split.
    """
    check_at_least("shard_tokens", shard_tokens, 1)
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; read it with Corpus.open, or delete it to prepare it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # By the number of ids, not the largest one met: the separator counts, and so do ids that no text used.
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 2**16 else "<u4")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        spool, built = Path(temporary, "spool.bin"), Path(temporary, "corpus")
        records = _tokenize(tqdm(documents, "tokenizing", unit="doc", disable=not progress), tokenizer, spool, dtype)
        train, val = _choose(len(records.num_tokens), val_fraction, seed)
        splits = {
            name: _write_split(built / name, spool, dtype, chosen, records, shard_tokens)
            for name, chosen in (("train", train), ("val", val))
        }
        meta = {"format": FORMAT, "fingerprint": tokenizer.fingerprint, "dtype": dtype.str}
        meta |= {"splits": splits, "settings": settings}
        (built / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        os.replace(built, folder)
    return Corpus.open(folder, tokenizer)


class _Records(NamedTuple):
    """Of each document in the spool: its ids with the separator in front, bytes of text, nats (NaN: not known)."""

    num_tokens: np.ndarray
    num_bytes: np.ndarray
    nats: np.ndarray


def _tokenize(documents: Iterable[Document], tokenizer: Tokenizer, spool: Path, dtype: np.dtype) -> _Records:
    """Write the ids of all documents, each with its separator in front, one after the other into `spool`."""
    num_tokens: list[int] = []
    num_bytes: list[int] = []
    nats: list[float] = []
    with open(spool, "wb") as file:
        for batch in _batches(documents):
            for document, text_ids in zip(batch, tokenizer.encode_batch([d.text for d in batch]), strict=True):
                if not text_ids:
                    raise ValueError(f"document {len(num_tokens)} is empty: expected text; leave it out")
                ids = np.array([tokenizer.eot, *text_ids], np.int64)
                assert ids.max() < tokenizer.vocab_size, f"id {ids.max()}, but V is {tokenizer.vocab_size}"
                assert not (ids[1:] == tokenizer.eot).any(), "encode_batch gave a separator: it must encode text only"
                file.write(ids.astype(dtype).tobytes())
                num_tokens.append(len(ids))
                num_bytes.append(len(document.text.encode("utf-8")))
                nats.append(np.nan if document.nats is None else document.nats)
    return _Records(np.array(num_tokens, np.int64), np.array(num_bytes, np.int64), np.array(nats, np.float64))


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents until a group has BATCH_CHARACTERS or more."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _choose(num_documents: int, val_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which documents train, in their order, and which validate, in random order so that the first few are a sample."""
    if num_documents < 2:
        raise ValueError(
            f"training and validation need at least one document each: got {num_documents} in all; add more text "
            "(a single file is cut into documents at blank lines, so it needs some)"
        )
    num_val = min(max(round(val_fraction * num_documents), 1), num_documents - 1)
    order = np.random.default_rng(seed).permutation(num_documents)
    return np.sort(order[num_val:]), order[:num_val]


def _write_split(
    folder: Path, spool: Path, dtype: np.dtype, chosen: np.ndarray, records: _Records, shard_tokens: int
) -> dict[str, Any]:
    """Copy the chosen documents from the spool into shards; returns the counts that `meta.json` keeps."""
    folder.mkdir(parents=True)
    source = np.memmap(spool, dtype, mode="r")
    ends = np.cumsum(records.num_tokens)
    eot = source[:1]  # the spool, and each document in it, starts with a separator

    def stream() -> Iterator[np.ndarray]:
        for i in chosen:
            yield source[ends[i] - records.num_tokens[i] : ends[i]]
        yield eot

    shards = _write_shards(folder, stream(), shard_tokens)
    lengths = records.num_tokens[chosen]
    arrays = {"starts": np.cumsum(lengths) - lengths, "num_bytes": records.num_bytes[chosen]}
    if not np.isnan(records.nats).any():
        arrays["nats"] = records.nats[chosen]
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    return {"documents": len(chosen), "tokens": sum(shards), "shards": shards, "arrays": list(arrays)}


def _write_shards(folder: Path, stream: Iterator[np.ndarray], shard_tokens: int) -> list[int]:
    """Write runs of tokens one after the other, a new file each `shard_tokens`; returns the tokens in each file."""
    counts = [0]
    for run in stream:
        while len(run):
            if counts[-1] == shard_tokens:
                counts.append(0)
            part, run = np.split(run, [shard_tokens - counts[-1]])
            with open(folder / _shard_name(len(counts) - 1), "ab") as file:
                file.write(part.tobytes())
            counts[-1] += len(part)
    return counts


def _shard_name(number: int) -> str:
    return f"tokens-{number:05d}.bin"


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no prepared corpus: it has no meta.json; prepare it first")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, "a JSON object", error) from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise _damaged(path, f"format {FORMAT}", meta.get("format") if isinstance(meta, dict) else meta)
    return meta


def _open_split(folder: Path, dtype: str, counts: dict[str, Any]) -> Split:
    shards = []
    for number, count in enumerate(counts["shards"]):
        path, expected = folder / _shard_name(number), count * np.dtype(dtype).itemsize
        size = path.stat().st_size if path.is_file() else None
        if size != expected:
            raise _damaged(path, f"{expected} bytes", "no such file" if size is None else f"{size} bytes")
        shards.append(np.memmap(path, dtype, mode="r"))
    arrays = {name: _open_array(folder / f"{name}.npy", counts["documents"]) for name in counts["arrays"]}
    return Split(Tokens(shards), arrays["starts"], arrays["num_bytes"], arrays.get("nats"))


def _open_array(path: Path, num_documents: int) -> np.ndarray:
    try:
        array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, f"an array of {num_documents} numbers", error) from error
    if array.shape != (num_documents,):
        raise _damaged(path, f"an array of {num_documents} numbers", f"shape {array.shape}")
    return array


def _damaged(path: Path, expected: str, got: object) -> ValueError:
    return ValueError(
        f"{path} is damaged: expected {expected}, got {got}; delete the folder {path.parent} and prepare it again"
    )
