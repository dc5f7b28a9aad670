"""Streamed text is the decoded text, and no character is given out in halves."""

import random

import pytest

from minillm.tokenizer import StreamDecoder, Tokenizer


@pytest.fixture(scope="module")
def letters():
    """A vocabulary of single bytes: every character outside ASCII is several tokens."""
    return Tokenizer.train([], 257)


def test_characters_appear_when_they_are_whole(letters):
    text = "d\u010f\U0001f600"
    stream = StreamDecoder(letters)
    assert [stream.push(id) for id in letters.encode(text)] == ["d", "", "\u010f", "", "", "", "\U0001f600"]
    assert stream.flush() == ""


def test_an_unfinished_character_is_flushed_as_a_mark_and_the_next_stream_is_clean(letters):
    stream = StreamDecoder(letters)
    assert [stream.push(id) for id in "😀".encode()[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(ord("a")) == "a"


def test_any_ids_stream_to_their_decoded_text():
    tokenizer = Tokenizer.train(["čau 😀 世界 " * 3, "šedá 😁 世人"], 280)
    V = tokenizer.vocab_size
    rng = random.Random(0)
    for _ in range(3000):
        few = rng.choice([range(V), range(0x80, V), [0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xED, 0xA0, 0x41, 0xC3, 0xFF]])
        ids = [rng.choice(few) for _ in range(rng.randrange(12))]
        stream = StreamDecoder(tokenizer)
        assert "".join([stream.push(id) for id in ids]) + stream.flush() == tokenizer.decode(ids), ids


def test_streaming_text_never_shows_a_mark():
    tokenizer = Tokenizer.train(["čau 😀 世界 👩‍👩‍👧‍👦 " * 3], 270)
    text = "👩‍👩‍👧‍👦 世界! čau 🇨🇿 €"
    stream = StreamDecoder(tokenizer)
    pushed = [stream.push(id) for id in tokenizer.encode(text)]
    assert "".join(pushed) == text
    assert "\ufffd" not in "".join(pushed)
    assert stream.flush() == ""


def test_special_tokens_stream_as_their_text(letters):
    assert StreamDecoder(letters).push(letters.eot) == "<|endoftext|>"


def test_an_unknown_id_leaves_the_stream_as_it_was(letters):
    stream = StreamDecoder(letters)
    first, second = "é".encode()
    assert stream.push(first) == ""
    with pytest.raises(ValueError, match="257 ids"):
        stream.push(257)
    assert stream.push(second) == "é"
