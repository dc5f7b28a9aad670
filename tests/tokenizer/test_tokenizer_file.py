"""A saved tokenizer is the same again, byte for byte, and a file that is not whole is refused."""

import json
import re

import pytest

from minillm.tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat. ", "the dog ate the cat 😀 ", "naïve café\n\n  indented", "a longer sentence"] * 3
CHAT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, 300, special=CHAT)


def test_training_again_writes_identical_bytes(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "one.json")
    Tokenizer.train(TEXTS[::-1], 300, special=CHAT).save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2, "no temporary file is left"


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", r"\w+"])
def test_a_loaded_tokenizer_is_the_saved_one(tmp_path, pattern):
    saved = Tokenizer.train(TEXTS, 300, pattern, CHAT)
    saved.save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    for name in ("pattern", "merges", "special", "vocab_size", "fingerprint"):
        assert getattr(loaded, name) == getattr(saved, name)
    assert loaded.encode(TEXTS[1]) == saved.encode(TEXTS[1])
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "t.json").read_bytes()


def test_the_file_reads_one_merge_per_line(tmp_path):
    Tokenizer.train([" the the é"], 262).save(tmp_path / "t.json")
    lines = (tmp_path / "t.json").read_text(encoding="utf-8").splitlines()
    assert lines[-8:] == [' "merges": [', '  "Ġ t",', '  "Ġt h",', '  "Ġth e",', '  "Ġ Ã",', '  "ĠÃ ©"', " ]", "}"]


def test_the_fingerprint_tells_vocabularies_apart(tokenizer):
    others = [
        Tokenizer.train(TEXTS, 299, special=CHAT),
        Tokenizer.train(TEXTS, 300, "cl100k", CHAT),
        Tokenizer.train(TEXTS, 300, special=CHAT[::-1]),
        Tokenizer.train(["other words"], 300, special=CHAT),
    ]
    assert len({tokenizer.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert re.fullmatch("[0-9a-f]{16}", tokenizer.fingerprint)


def test_a_failed_save_leaves_the_old_file(tmp_path, tokenizer, monkeypatch):
    path = tmp_path / "t.json"
    tokenizer.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Tokenizer.train(["ab"], 258).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _without(key):
    return lambda content: content.pop(key)


def _with(key, value):
    return lambda content: content.update({key: value})


def _merge(place, *lines):
    return lambda content: content["merges"].__setitem__(slice(place, place + 1), lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("merges"), "keys must be"),
        (_without("format"), "format must be"),
        (_with("format", "minillm tokenizer 2"), "got 'minillm tokenizer 2'"),
        (_with("colour", "red"), "got .*colour"),
        (_with("pattern", "("), "regular expression"),
        (_with("pattern", None), "pattern must be"),
        (_with("pattern", "[a-z]+"), "fingerprint"),
        (_with("special", "<|endoftext|>"), "special must be a list"),
        (_with("special", ["x", "x"]), "special tokens must be different"),
        (_with("special", ["<|endoftext|>"]), "fingerprint"),
        (_with("merges", [["a", "b"]]), "merges must be a list of strings"),
        (_with("merges", []), "fingerprint"),
        (_with("fingerprint", 7), "fingerprint"),
        (_merge(0), "merge"),
        (_merge(40), "fingerprint"),
        (_merge(0, "ab"), "merge 0 must be two tokens"),
        (_merge(0, "a b c"), "merge 0 must be two tokens"),
        (_merge(0, "a \n"), "visible alphabet"),
        (_merge(0, "q q", "q q"), r"merge 1 must join two tokens .* doubled"),
        (_merge(0, "qq z"), "merge 0 must join"),
    ],
)
def test_a_changed_file_is_refused_and_named(tmp_path, tokenizer, change, message):
    path = tmp_path / "broken.json"
    tokenizer.save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"(?s)broken\.json is not a tokenizer file: .*{message}"):
        Tokenizer.load(path)


def test_a_damaged_file_is_refused_and_named(tmp_path, tokenizer):
    path = tmp_path / "broken.json"
    tokenizer.save(path)
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole) - 2, 50)]
    for broken in [*damaged, b"[]", b"null", b"\xff\xfe", b"[" * 100_000, whole + b"}", whole.replace(b"t h", b"t g")]:
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"broken\.json is not a tokenizer file"):
            Tokenizer.load(path)
    with pytest.raises(FileNotFoundError):
        Tokenizer.load(tmp_path / "missing.json")
