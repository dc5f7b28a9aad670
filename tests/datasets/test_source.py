"""Documents from each source: what is taken, what is left out, and what is said when there is nothing to take."""

import re

import pytest

from minillm.config import DataConfig
from minillm.datasets import source
from minillm.datasets.source import LONG_FILE, PIECE, Document, documents, pieces, read_text


def read(path):
    return list(documents(DataConfig(source=str(path))))


def paragraphs(count, length=70):
    return "\n\n".join(f"{i:04d} " + "word " * (length // 5) for i in range(count))


def test_tales_are_as_many_as_asked_and_carry_their_probability():
    config = DataConfig(num_stories=5, seed=3)
    stories = list(documents(config))
    assert len(stories) == 5
    assert all(story.text and story.nats > 0 for story in stories)
    assert stories == list(documents(config))
    assert stories != list(documents(DataConfig(num_stories=5, seed=4)))


def test_stdlib_is_about_twelve_megabytes_of_library_without_tests():
    texts = [document.text for document in documents(DataConfig(source="stdlib"))]
    assert 8e6 < sum(len(text.encode()) for text in texts) < 16e6
    assert all(text.strip() for text in texts)
    assert any("class JSONDecoder" in text for text in texts)
    assert not any("class TestJSONTestSuite" in text or "numpy.array_api" in text for text in texts)


def test_stdlib_leaves_out_installed_packages_tests_and_caches(tmp_path):
    for name in ("a.py", "b/c.py", "site-packages/x.py", "b/test/x.py", "b/tests/x.py", "__pycache__/x.py", "b/x.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [d.text for d in source._stdlib(tmp_path)] == ["a.py", "b/c.py"]


def test_a_folder_gives_each_text_file_once_sorted_by_path_without_hidden_ones(tmp_path):
    for name in ("b.md", "a/z.txt", "a/.hidden.txt", ".git/config", "c.py", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").write_text("\n\n")
    assert read(tmp_path) == [Document("a/z.txt"), Document("a.txt"), Document("b.md"), Document("c.py")]


def test_a_folder_skips_files_that_are_not_text_and_reports_how_many(tmp_path, caplog):
    (tmp_path / "a.bin").write_bytes(b"\x00\x01")
    (tmp_path / "b.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "c.txt").write_text("kept")
    assert read(tmp_path) == [Document("kept")]
    assert "skipped 2 of 3 files" in caplog.text
    assert "a.bin is binary" in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"\x00", b"\xff"])
def test_a_folder_without_text_is_an_error_that_names_it(tmp_path, content):
    if content is not None:
        (tmp_path / "only").write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))} has no text to learn from"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ab\x00cd", "notes.txt is binary: it has a zero byte at offset 2; expected UTF-8"),
        ("café au lait".encode("latin-1"), "notes.txt is not UTF-8: byte 0xe9 at offset 3; convert it"),
        ("\ufeffcafé".encode() + b"\xe9", "notes.txt is not UTF-8: byte 0xe9 at offset 8; convert it"),
        (b"", "notes.txt is empty: expected text"),
        (b" \r\n\n\t", "notes.txt is empty: expected text"),
        (b"\xef\xbb\xbf", "notes.txt is empty: expected text"),
    ],
)
def test_a_file_that_is_not_text_is_an_error_before_anything_is_read(tmp_path, content, message):
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        documents(DataConfig(source=str(tmp_path / "notes.txt")))


def test_a_missing_path_is_an_error_that_says_what_a_source_may_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"must be tales, stdlib, or a file or folder that exists: got 'tale'"):
        documents(DataConfig(source="tale"))


def test_a_byte_order_mark_is_dropped_and_windows_line_ends_become_newlines(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffé\r\n\r\nb\n".encode())
    assert read_text(tmp_path / "a.txt") == "é\n\nb\n"


@pytest.mark.parametrize("at_least", [1, 20])
@pytest.mark.parametrize(
    "text",
    [
        paragraphs(300),
        paragraphs(300) + "\n\n \n\n",
        "\n\n" + paragraphs(3),
        paragraphs(400).replace("\n\n", "\n"),
        "x" * 9000,
        "\n",
        "a",
    ],
)
def test_pieces_joined_are_the_text_and_each_has_something_in_it(text, at_least):
    cut = list(pieces(text, at_least))
    assert "".join(cut) == text
    assert len(cut) == 1 or all(piece.strip() for piece in cut)


def test_pieces_of_a_long_text_end_at_blank_lines_and_are_about_one_size():
    cut = list(pieces(paragraphs(300)))
    assert all(piece.endswith("\n\n") for piece in cut[:-1])
    assert all(PIECE <= len(piece) < PIECE + 80 for piece in cut[:-1])
    assert re.fullmatch(r"\d{4} .*", cut[1], re.DOTALL)


def test_a_short_lone_file_still_gives_enough_documents_to_split(tmp_path):
    (tmp_path / "poem.txt").write_text(paragraphs(40, 20))
    assert 10 <= len(read(tmp_path / "poem.txt")) <= 40
    assert read(tmp_path) == read(tmp_path / "poem.txt")


def test_in_a_folder_only_long_files_are_cut(tmp_path):
    short, long = paragraphs(50), paragraphs(500)
    assert len(short) < LONG_FILE < len(long)
    (tmp_path / "a.txt").write_text(short)
    (tmp_path / "b.txt").write_text(long)
    texts = [document.text for document in read(tmp_path)]
    assert texts[0] == short
    assert len(texts) > 10
    assert "".join(texts[1:]) == long
