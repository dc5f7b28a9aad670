"""Conversations are read as the ecosystem writes them, and a fault is named with its file and line."""

import json

import pytest

from minillm.datasets.conversations import Conversation, read_conversations, write_conversations

GOOD = [
    Conversation([{"role": "user", "content": "é\u2028?\n"}, {"role": "assistant", "content": "<|im_end|>"}], "odd"),
    Conversation([{"role": "system", "content": ""}, {"role": "assistant", "content": "Hello."}]),
]


def line(*pairs, **rest):
    return json.dumps({"messages": [{"role": r, "content": c} for r, c in pairs], **rest})


def test_what_was_written_is_read(tmp_path):
    write_conversations(tmp_path / "a.jsonl", GOOD)
    assert read_conversations(tmp_path / "a.jsonl") == GOOD


def test_blank_lines_a_byte_order_mark_and_further_keys_do_no_harm(tmp_path):
    text = "\ufeff\n" + line(("user", "a"), ("assistant", "b"), id=7) + "\r\n\n"
    (tmp_path / "a.jsonl").write_bytes(text.encode())
    assert read_conversations(tmp_path / "a.jsonl") == [
        Conversation([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    ]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "Expecting property name"),
        ("[1]", 'an object with a list of "messages"'),
        ('{"messages": "x"}', 'an object with a list of "messages"'),
        (line(), "at least one message"),
        (line(("robot", "a")), "the role 'robot'; there is system, user, assistant"),
        (line(("user", "a"), ("assistant", " ")), "message 1 is an empty answer"),
        (line(("user", "a")), "without an answer"),
        (line(("user", 3), ("assistant", "b")), "must have text as its content: got 3"),
        (line(("user", "a"), ("assistant", "b"), task=3), '"task" must be text'),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_fault_is_named_with_file_and_line(tmp_path, bad, said):
    file = tmp_path / "a.jsonl"
    file.write_text("\n" + line(("user", "a"), ("assistant", "b")) + "\n" + bad + "\n")
    with pytest.raises(ValueError) as error:
        read_conversations(file)
    assert str(error.value).startswith(f"{file}:3: ")
    assert said in str(error.value)


def test_an_empty_file_and_another_encoding_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(ValueError, match="has no conversations"):
        read_conversations(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"messages": "\xe9"}')
    with pytest.raises(ValueError, match="not UTF-8 at byte 14"):
        read_conversations(tmp_path / "latin.jsonl")
