"""Training finds the merges that counting everything anew would find, whatever the order of the texts."""

import random
import time
from collections import Counter
from itertools import pairwise

import pytest
import regex

from minillm.tokenizer.bpe import (
    ALPHABET,
    PATTERNS,
    encode_piece,
    from_printable,
    full_pattern,
    to_printable,
    train_merges,
)

WHOLE_TEXT = r"[\s\S]+"


def merge_by_recounting(texts, num_merges, pattern):
    """The definition of training: count all pairs of all pieces from the start for each merge."""
    pieces = [piece.encode() for text in texts for piece in regex.findall(full_pattern(pattern), text)]
    ranks, merges = {}, []
    while len(merges) < num_merges:
        counts = Counter(pair for piece in pieces for pair in pairwise(encode_piece(piece, ranks)))
        if not counts:
            break
        a, b = min(counts, key=lambda pair: (-counts[pair], pair[0] + pair[1]))
        assert a + b not in ranks, f"{a + b!r} is a token already"
        ranks[a + b] = len(merges)
        merges.append((a, b))
    return merges


@pytest.mark.parametrize("seed", range(30))
def test_training_equals_recounting_every_time(seed):
    rng = random.Random(seed)
    letters = ["ab", ".:", "ab c", "aé€😀", "abcdefg \n'"][seed % 5]
    texts = ["".join(rng.choices(letters, k=rng.randrange(40))) for _ in range(rng.randrange(1, 8))] + ["a"]
    pattern = ["gpt2", "cl100k", WHOLE_TEXT][seed % 3]
    assert train_merges(texts, 60, pattern) == merge_by_recounting(texts, 60, pattern)


def test_equal_counts_are_decided_by_bytes_not_by_the_order_of_the_text():
    one, other = train_merges(["bbbaaaddddcccc"], 4, WHOLE_TEXT), train_merges(["aaabbbccccdddd"], 4, WHOLE_TEXT)
    assert one[:2] == other[:2] == [(b"c", b"c"), (b"d", b"d")]
    assert train_merges(["x z", "x y"], 2, "gpt2") == [(b" ", b"y"), (b" ", b"z")]


def test_the_order_of_the_texts_does_not_matter():
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcd ", k=30)) for _ in range(50)]
    merges = train_merges(texts, 100)
    for _ in range(5):
        rng.shuffle(texts)
        assert train_merges(texts, 100) == merges


def test_training_follows_the_example_of_the_paper():
    texts = ["low\n"] * 5 + ["lower\n"] * 2 + ["newest\n"] * 6 + ["widest\n"] * 3
    assert train_merges(texts, 3, r"\w+") == [(b"e", b"s"), (b"es", b"t"), (b"l", b"o")]


def test_training_stops_when_no_pair_is_left():
    assert train_merges(["abab"], 100, WHOLE_TEXT) == [(b"a", b"b"), (b"ab", b"ab")]
    assert train_merges(["a b"], 0) == []
    assert train_merges([], 0) == []


def test_a_token_that_two_pairs_could_build_is_built_by_one():
    texts = [".:.:.:", ":.:.", ".:", ":.:.:.:.", "..::"]
    for num_merges in range(12):
        merges = train_merges(texts, num_merges, WHOLE_TEXT)
        tokens = [a + b for a, b in merges]
        assert len(set(tokens)) == len(tokens)
        ranks = {}
        for a, b in merges:
            assert encode_piece(a + b, ranks) == [a, b]
            ranks[a + b] = len(ranks)


def test_the_lowest_rank_merges_first_not_the_leftmost_pair():
    ranks = {b"bc": 0, b"ab": 1}
    assert encode_piece(b"abc", ranks) == [b"a", b"bc"]
    assert encode_piece(b"abab", ranks) == [b"ab", b"ab"]
    assert encode_piece(b"aaa", {b"aa": 0}) == [b"aa", b"a"]
    assert encode_piece(b"", ranks) == []


def test_a_very_long_run_trains_quickly():
    start = time.perf_counter()
    assert train_merges(["a" * 200_000], 5)[-1] == (b"a" * 16, b"a" * 16)
    assert time.perf_counter() - start < 5  # seconds; 0.2 here, 25 if the word is visited once for each of its pairs


def test_presets_split_as_published():
    text = "I'll pay 12345 don'T!!  \n x"
    assert regex.findall(PATTERNS["gpt2"], text) == [
        "I", "'ll", " pay", " 12345", " don", "'", "T", "!!", "  \n", " x",
    ]  # fmt: skip
    assert regex.findall(PATTERNS["cl100k"], text) == [
        "I", "'ll", " pay", " ", "123", "45", " don", "'T", "!!", "  \n", " x",
    ]  # fmt: skip


@pytest.mark.parametrize("pattern", ["(", "", "a*", "(?=a)", None, "[z-a]", 3])
def test_a_bad_pattern_is_named(pattern):
    with pytest.raises(ValueError, match="pattern"):
        train_merges(["banana"], 5, pattern)


@pytest.mark.parametrize(
    ("texts", "num_merges", "message"),
    [
        ([], 1, "corpus is empty"),
        (["", ""], 1, "corpus is empty"),
        ("hello", 1, "one str"),
        ([b"hello"], 1, "got bytes"),
        ([None], 1, "got NoneType"),
        (["fine", "a\ud83d"], 1, "character 1 is half a surrogate pair"),
        (["ab"], -1, "at least 0: got -1"),
        (["ab"], 2.0, "integer"),
        (["ab"], True, "integer"),
    ],
)
def test_bad_input_to_training_is_explained(texts, num_merges, message):
    with pytest.raises(ValueError, match=message):
        train_merges(texts, num_merges)


def test_every_byte_has_its_own_visible_character():
    assert len(set(ALPHABET)) == 256
    assert all(character.isprintable() and character != " " for character in ALPHABET)
    every = bytes(range(256))
    assert from_printable(to_printable(every)) == every
    assert to_printable(" é\n".encode()) == "ĠÃ©Ċ"
    with pytest.raises(ValueError, match="visible alphabet"):
        from_printable("a b")


def test_progress_shows_a_bar(capsys):
    train_merges(["banana"], 2, progress=True)
    assert "merge" in capsys.readouterr().err
    train_merges(["banana"], 2)
    assert capsys.readouterr().err == ""
