"""Where text comes from: generated tales, Python's own library, or files of yours, always as a stream of documents.

A document is one tale, one source file, or one piece of a long text.  It is the unit that the corpus splits into
training and validation: never a part of the same document on both sides.
"""

import logging
import re
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from minillm.config import DataConfig
from minillm.datasets.tales import tale

LONG_FILE = 20_000  # characters; a longer file of yours is cut into pieces
PIECE = 2_000  # characters; about 500 tokens, so a piece fills a context or two and a book gives many
FEWEST_PIECES = 20  # a short lone file is cut finer, so that 5% of its pieces is still one to validate on

STDLIB_TYPES = {".py", ".rst", ".txt"}
NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}

log = logging.getLogger(__name__)


class Document(NamedTuple):
    """A text, and the exact -log probability of the source writing it where that is known (tales only)."""

    text: str
    nats: float | None = None


def documents(config: DataConfig) -> Iterator[Document]:
    """The documents of `config.source`, in an order that depends on nothing but the settings and the files."""
    if config.source == "tales":
        return (Document(*tale(config.seed, i)) for i in range(config.num_stories))
    if config.source == "stdlib":
        return _stdlib(Path(sysconfig.get_path("stdlib")))
    path = Path(config.source).expanduser()
    if path.is_file():
        text = read_text(path)
        if not text.strip():
            raise ValueError(f"{path} is empty: expected text, got nothing but white space; choose another file")
        return map(Document, pieces(text, FEWEST_PIECES))
    if path.is_dir():
        return _folder(path)
    raise FileNotFoundError(
        f"data.source must be tales, stdlib, or a file or folder that exists: got {config.source!r}, looked in "
        f"{Path.cwd()}; check the spelling or give the full path"
    )


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, lines ending in a newline alone; ValueError if it is binary or not UTF-8."""
    data = path.read_bytes()
    if b"\0" in data:
        raise ValueError(
            f"{path} is binary: it has a zero byte at offset {data.index(0)}; expected UTF-8 text, "
            "so export or convert it to plain text first"
        )
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")  # the byte-order mark that some editors put in front
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}; convert it first, "
            "for example `iconv -f latin1 -t utf-8 old.txt > new.txt`"
        ) from error
    return text.replace("\r\n", "\n")


def pieces(text: str, at_least: int = 1) -> Iterator[str]:
    """Cut a long text at blank lines into pieces of PIECE characters or a little more; joined, they are the text.

    A short text is cut finer, into about `at_least` pieces.  A text without blank lines is cut at line ends.
    """
    size = min(PIECE, max(1, len(text) // at_least))
    text_end = len(text.rstrip())  # never a last piece of nothing but white space
    blank_lines = re.compile(r"\n(?:[ \t]*\n)+")
    borders = blank_lines if blank_lines.search(text.strip()) else re.compile(r"\n")
    start = 0
    for border in borders.finditer(text):
        if border.end() - start >= size and border.end() < text_end:
            yield text[start : border.end()]
            start = border.end()
    yield text[start:]


def _stdlib(root: Path) -> Iterator[Document]:
    """Python's library as installed, one document per file: about 12 MB; its tests would be another 20 MB."""
    for text in _texts(root, [path for path in _walk(root, NOT_LIBRARY) if path.suffix in STDLIB_TYPES]):
        yield Document(text)


def _folder(root: Path) -> Iterator[Document]:
    """Every text file under `root`, hidden ones apart; a long file, or the only file, is cut into pieces."""
    paths = list(_walk(root))
    for text in _texts(root, paths):
        if len(paths) == 1 or len(text) > LONG_FILE:
            yield from map(Document, pieces(text, FEWEST_PIECES))
        else:
            yield Document(text)


def _walk(root: Path, leave_out: Collection[str] = ()) -> Iterator[Path]:
    """Files under `root`, sorted by relative path, without hidden ones and without what lies in `leave_out`."""
    inside = ((path.relative_to(root).parts, path) for path in root.rglob("*"))
    for parts, path in sorted(inside):
        if not any(part.startswith(".") or part in leave_out for part in parts) and path.is_file():
            yield path


def _texts(root: Path, paths: list[Path]) -> Iterator[str]:
    """The text of each file that has some.  Files that are not text are counted and reported; ValueError if none is."""
    num_found, faults = 0, []
    for path in paths:
        try:
            text = read_text(path)
        except ValueError as error:
            faults.append(error)
            continue
        if text.strip():
            num_found += 1
            yield text
    if faults:
        log.warning("%s: skipped %d of %d files; the first: %s", root, len(faults), len(paths), faults[0])
    if not num_found:
        raise ValueError(
            f"{root} has no text to learn from: of its {len(paths)} files, {len(faults)} are not UTF-8 text and the "
            "rest are empty; put .txt, .md or .py files there, or choose another folder"
        )
