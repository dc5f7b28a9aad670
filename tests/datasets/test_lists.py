"""Lists to be looked up: rows that depend on their number alone, whose targets are the answers; read before text."""

from dataclasses import replace

import numpy as np
import pytest

from minillm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from minillm.datasets.lists import ListRows
from minillm.datasets.sampler import InTurn, Sampler
from minillm.ops.cross_entropy import IGNORE
from minillm.tokenizer import Tokenizer
from minillm.training import pretrain

LETTERS = Tokenizer.train(["abc"], 257)


@pytest.fixture
def rows():
    return ListRows(LETTERS, T=300, num=4, seed=3)


def texts(row):
    """Each list of a row: (all that was read, all that is to be said)."""
    for segment in range(row.segments.max() + 1):
        ids, targets = row.ids[row.segments == segment], row.targets[row.segments == segment]
        said = targets[targets != IGNORE]
        assert said[-1] == LETTERS.eot
        yield LETTERS.decode(ids[1:].tolist()), LETTERS.decode(said[:-1].tolist())


def test_what_is_asked_is_not_taught_and_the_answer_is_each_line_that_holds_what_was_given(rows):
    num_lists = 0
    for number in range(len(rows)):
        for read, said in texts(rows[number]):
            assert read.endswith(said)
            lines, asked = read.removesuffix("\n" + said).split("\nLook up: ")
            pairs = [line.split()[1:] for line in lines.split("\n")]
            beside = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
            assert said == "\n".join(f"- {given} {beside[given]}" for given in asked.split())
            num_lists += 1
    assert num_lists > len(rows)  # several to a row


def test_a_row_depends_on_its_number_and_the_seed_and_on_nothing_drawn_before(rows):
    later = rows[2]
    assert all(np.array_equal(a, b) for a, b in zip(ListRows(LETTERS, 300, 4, 3)[2], later))
    assert not np.array_equal(rows[1].ids, later.ids)
    assert not np.array_equal(ListRows(LETTERS, 300, 4, 4)[2].ids, later.ids)


def test_a_context_too_short_for_a_list_says_what_to_change():
    with pytest.raises(ValueError, match=r"tokens does not fit in a context of 10; train without list_steps"):
        ListRows(LETTERS, 10, 1, 0)[0]


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
        model=ModelConfig(vocab_size=280, context_len=160, num_layers=1, num_heads=1, channels=8, dropout=0.1),
        data=DataConfig(source=str(tmp_path / "text.txt"), vocab_size=280),
        optim=OptimConfig(warmup_steps=2, learning_rate=1e-2),
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_pretraining_stopped_among_the_lists_or_after_them_ends_with_the_same_bytes(config, resumes_exactly, steps):
    resumes_exactly(pretrain, config, steps)


def test_pretraining_reads_so_many_steps_of_lists_and_then_the_text(config):
    stream = pretrain.start(config).sampler
    kinds = [stream.next().segments is not None for _ in range(config.steps)]
    assert kinds == [True, True, False, False, False]


def test_a_negative_number_of_list_steps_is_refused(config):
    with pytest.raises(ValueError, match=r"train\.list_steps must be an integer of at least 0"):
        replace(config, list_steps=-1)
