"""Lists to be looked up: rows that depend on their number alone, whose targets are the answers; read before text."""

from dataclasses import replace

import numpy as np
import pytest

from minillm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from minillm.datasets.corpus import Split, Tokens
from minillm.datasets.lists import ListRows
from minillm.datasets.sampler import InTurn, Sampler, Together, Windows
from minillm.ops.cross_entropy import IGNORE
from minillm.tokenizer import Tokenizer
from minillm.training import pretrain

LETTERS = Tokenizer.train(["abc"], 257, special=("<|endoftext|>",))
NEWLINE = LETTERS.encode("\n")[0]


@pytest.fixture
def rows():
    return ListRows(LETTERS, T=300, num=4, seed=3)


def lists(row):
    """Each list of a row: what was read, and what is to be said at each place (IGNORE: nothing)."""
    for segment in range(row.segments.max() + 1):
        inside = row.segments == segment
        yield row.ids[inside], row.targets[inside]


def test_what_is_asked_is_the_other_token_of_a_pair_shown_before(rows):
    ways, sizes = set(), set()
    for number in range(len(rows)):
        for ids, targets in lists(rows[number]):
            half = len(ids) // 2
            lines = [tuple(line) for line in ids[1 : half + 1].reshape(-1, 3)]
            assert ids[0] == LETTERS.eot
            assert {line[2] for line in lines} == {ids[half + 1]} == {NEWLINE}
            beside = {a: b for pair in lines for a, b in (pair[:2], pair[1::-1])}
            assert len(beside) == 2 * len(lines)
            asked = np.flatnonzero(targets != IGNORE)
            assert asked.tolist() == list(range(half + 2, len(ids), 3))
            assert [beside[i] for i in ids[asked]] == targets[asked].tolist()
            assert {frozenset(pair) for pair in zip(ids[asked], targets[asked])} == {frozenset(a[:2]) for a in lines}
            ways |= {int(ids[t]) in {a[0] for a in lines} for t in asked}
            sizes.add(len(lines))
    assert ways == {True, False}  # the first of a pair, and the second
    assert sizes == {2, 3, 4, 5, 6}


def test_a_row_depends_on_its_number_and_the_seed_and_on_nothing_drawn_before(rows):
    later = rows[2]
    assert np.array_equal(ListRows(LETTERS, 300, 4, 3, begin=2)[0].ids, later.ids)
    assert all(np.array_equal(a, b) for a, b in zip(ListRows(LETTERS, 300, 4, 3)[2], later))
    assert not np.array_equal(rows[1].ids, later.ids)
    assert not np.array_equal(ListRows(LETTERS, 300, 4, 4)[2].ids, later.ids)


def test_a_context_too_short_for_a_list_says_what_to_change():
    with pytest.raises(ValueError, match="up to 37 tokens: a context of 36 is too short; train without list_steps"):
        ListRows(LETTERS, 36, 1, 0)
    assert len(ListRows(LETTERS, 37, 1, 0)[0].ids) == 37


def in_turn(B=2):
    return InTurn(Sampler(ListRows(LETTERS, 300, 6, 3), B, 0), Sampler(ListRows(LETTERS, 300, 5, 9), B, 0))


def test_one_is_read_once_and_then_the_other_from_its_beginning():
    one, two = in_turn().parts.values()
    stream = in_turn()
    for sampler in [one] * 3 + [two] * 4:
        assert np.array_equal(stream.next().ids, sampler.next().ids)


@pytest.mark.parametrize("drawn", range(5))
def test_a_restored_stream_goes_on_as_if_never_left(drawn):
    stream, other = in_turn(), in_turn()
    for _ in range(drawn):
        stream.next()
    other.restore(stream.state())
    for _ in range(4):
        assert np.array_equal(stream.next().ids, other.next().ids)


def test_rows_of_two_kinds_make_one_batch_of_which_text_is_one_segment():
    split = Split(Tokens([np.arange(400, dtype=np.uint16)]), np.array([0]), np.array([1]), None)
    text = Windows(split, 300)
    batch = Together(Sampler(ListRows(LETTERS, 300, 6, 3), 1, 0), Sampler(text, 2, 0)).next()
    assert (batch.segments[0].max() > 0, batch.segments[1:].any()) == (True, False)
    assert np.array_equal(batch.positions[1:], np.arange(300) * np.ones((2, 1)))
    assert np.array_equal(batch.targets[1:], batch.ids[1:] + 1)


def test_the_state_of_a_stream_without_lists_is_refused():
    with pytest.raises(ValueError, match="a sampler's state has the keys"):
        in_turn().restore(Sampler(ListRows(LETTERS, 300, 6, 3), 2, 0).state())


@pytest.fixture
def config(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{i} cats sat in a row.\n\n" for i in range(60)))
    return TrainConfig(
        run=tmp_path / "run",
        steps=5,
        list_steps=2,
        batch_size=3,
        micro_batch_size=2,
        eval_every=0,
        sample_every=0,
        model=ModelConfig(vocab_size=280, context_len=90, num_layers=1, num_heads=1, channels=8, dropout=0.1),
        data=DataConfig(source=str(tmp_path / "text.txt"), vocab_size=280),
        optim=OptimConfig(warmup_steps=2, learning_rate=1e-2),
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_pretraining_stopped_among_the_lists_or_after_them_ends_with_the_same_bytes(config, resumes_exactly, steps):
    resumes_exactly(pretrain, config, steps)


def test_pretraining_reads_lists_alone_for_so_many_steps_and_a_row_of_them_later(config):
    stream = pretrain.start(config).sampler
    num_lists = [sum(row.max() > 0 for row in stream.next().segments) for _ in range(config.steps)]
    assert num_lists == [3, 3, 1, 1, 1]  # rows of a batch that hold more than one text


def test_a_negative_number_of_list_steps_is_refused(config):
    with pytest.raises(ValueError, match=r"train\.list_steps must be an integer of at least 0"):
        replace(config, list_steps=-1)
    with pytest.raises(ValueError, match="a batch with a row of lists and one of text has at least 2 rows"):
        replace(config, batch_size=1)
