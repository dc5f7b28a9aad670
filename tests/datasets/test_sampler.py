"""Windows and batches: every token a target, none twice in validation, and the same stream straight or resumed."""

import itertools

import numpy as np
import pytest

from minillm.datasets.corpus import Split, Tokens
from minillm.datasets.sampler import Sampler, Windows, validation_batches, validation_set, window_starts
from minillm.ops.cross_entropy import IGNORE

EOT = 99


def stream(*lengths, nats=True):
    """A split of documents of so many text tokens; token ids are the offsets (from 100), so each is recognised."""
    tokens, starts = [], []
    for length in lengths:
        starts.append(len(tokens))
        tokens += [EOT, *range(100 + len(tokens) + 1, 100 + len(tokens) + 1 + length)]
    tokens.append(EOT)
    known = np.arange(len(lengths)) + 0.5 if nats else None
    return Split(Tokens([np.array(tokens, np.uint16)]), np.array(starts), 3 * np.array(lengths), known)


def lengths_up_to(num_documents, longest):
    return itertools.chain.from_iterable(
        itertools.product(range(1, longest + 1), repeat=n) for n in range(1, num_documents + 1)
    )


def expected_starts(split, T):
    N, wanted = split.num_tokens, set()
    for start, end in zip(split.starts, [*split.starts[1:], N - 1]):
        wanted |= {min(s, N - T - 1) for s in range(start, end, T)}
    return sorted(wanted)


@pytest.mark.parametrize("T", [1, 2, 3, 5])
def test_windows_start_at_documents_and_every_T_inside_and_every_token_is_a_target(T):
    for lengths in lengths_up_to(3, 4):
        split = stream(*lengths)
        if split.num_tokens < T + 1:
            continue
        starts = window_starts(split, T)
        assert starts.tolist() == expected_starts(split, T), lengths
        targets = {int(s) + t for s in starts for t in range(1, T + 1)}
        assert targets == set(range(1, split.num_tokens)), (lengths, T)


def test_a_stream_of_one_window_gives_exactly_one():
    assert window_starts(stream(3, 2), 7).tolist() == [0]  # N = 8


def test_a_stream_shorter_than_a_window_is_an_error_with_both_numbers():
    with pytest.raises(ValueError, match=r"8 tokens, and a context of 8 needs 9; add text or .* at most 7"):
        Sampler(Windows(stream(3, 2), T=8), B=2, seed=0)


@pytest.mark.parametrize(("T", "B"), [(0, 1), (1, 0), (-1, 1)])
def test_empty_batches_are_refused(T, B):
    with pytest.raises(ValueError, match=r"[TB] must be an integer of at least 1"):
        Sampler(Windows(stream(5, 5), T), B, seed=0)
    with pytest.raises(ValueError, match=r"[TB] must be an integer of at least 1"):
        validation_batches(stream(5, 5), T, B)


def test_targets_are_the_next_token_within_the_row():
    split = stream(4, 6, 3)
    batch = Sampler(Windows(split, T=5), B=3, seed=0).next()
    assert batch.ids.shape == batch.targets.shape == (3, 5)
    assert batch.ids.dtype == batch.targets.dtype == np.int64
    assert batch.ids.flags.c_contiguous
    assert batch.targets.flags.c_contiguous
    tokens = split.tokens[:].tolist()
    windows = [(tokens[s : s + 5], tokens[s + 1 : s + 6]) for s in window_starts(split, 5)]
    for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist()):
        assert (ids, targets) in windows


def epochs_of(sampler, num_windows, count):
    """The windows of the first epochs, each row as a tuple, read through batches that span their borders."""
    rows = []
    while len(rows) < count * num_windows:
        rows += map(tuple, sampler.next().ids.tolist())
    return [rows[i * num_windows : (i + 1) * num_windows] for i in range(count)]


@pytest.mark.parametrize("B", [1, 2, 3, 5, 7, 11])
def test_each_epoch_has_every_window_once_in_an_order_of_its_own(B):
    split = stream(4, 6, 9, 3)
    num_windows = len(window_starts(split, 4))
    assert num_windows == 8
    epochs = epochs_of(Sampler(Windows(split, 4), B, seed=0), num_windows, 3)
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len(set(epochs[0])) == num_windows
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_does_not_depend_on_the_batch_size_and_does_on_the_seed():
    split = stream(4, 6, 9, 3)
    orders = [epochs_of(Sampler(Windows(split, 4), B, seed), 8, 2) for B, seed in ((1, 0), (3, 0), (1, 1))]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_a_batch_may_be_larger_than_an_epoch():
    sampler = Sampler(
        Windows(stream(3, 2), T=4), B=7, seed=0
    )  # windows at 0 and 3, the latter for both documents' ends
    rows = list(map(tuple, sampler.next().ids.tolist()))
    assert len(rows) == 7
    assert {rows.count(row) for row in set(rows)} == {3, 4}
    assert sampler.state() == {"epoch": 3, "position": 1, "seed": 0, "rows": 2}


@pytest.mark.parametrize("B", [1, 2, 3, 8, 11])
def test_resumed_equals_straight_at_every_step_of_three_epochs(B):
    split = stream(4, 6, 9, 3)
    steps = -(-3 * 8 // B)
    straight = Sampler(Windows(split, 4), B, seed=5)
    states, batches = [], []
    for _ in range(steps):
        states.append(straight.state())
        batches.append(straight.next().ids.tolist())
    for stop, state in enumerate(states):
        resumed = Sampler(Windows(split, 4), B, seed=5)
        resumed.next()  # whatever it did before is forgotten
        resumed.restore(state)
        assert resumed.state() == state
        assert [resumed.next().ids.tolist() for _ in range(steps - stop)] == batches[stop:], state
    assert resumed.state() == straight.state()


def test_a_state_at_the_end_of_an_epoch_goes_on_with_the_next_in_full():
    sampler = Sampler(Windows(stream(4, 6, 9, 3), 4), 8, seed=0)
    sampler.next()
    state = sampler.state()
    assert state == {"epoch": 1, "position": 0, "seed": 0, "rows": 8}
    assert all(type(value) is int for value in state.values())
    sampler.next()
    assert sampler.state()["epoch"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": 8}, "'position' must be below the number of rows, 8: got 8"),
        ({"position": -1}, "'position' must be an integer of at least 0: got -1"),
        ({"epoch": -1}, "'epoch' must be an integer of at least 0: got -1"),
        ({"epoch": 1.0}, "'epoch' must be an integer of at least 0: got 1.0"),
        ({"epoch": True}, "'epoch' must be an integer of at least 0: got True"),
        ({"seed": 1}, "its seed is 1, this sampler's 0"),
        ({"rows": 9}, "its rows is 9, this sampler's 8"),
        ({"extra": 1}, "has the keys epoch, position, seed, rows: got .*extra"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    sampler = Sampler(Windows(stream(4, 6, 9, 3), 4), 3, seed=0)
    sampler.next()
    before = sampler.state()
    with pytest.raises(ValueError, match=message):
        sampler.restore(before | change)
    assert sampler.state() == before
    with pytest.raises(ValueError, match="has the keys"):
        sampler.restore({})


def scored(batches):
    """(id, target) of each scored position."""
    pairs = []
    for batch in batches:
        keep = batch.targets != IGNORE
        pairs += zip(batch.ids[keep].tolist(), batch.targets[keep].tolist())
    return pairs


@pytest.mark.parametrize("T", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("B", [1, 2, 5])
def test_validation_scores_each_token_and_final_separator_once(T, B):
    for lengths in lengths_up_to(3, 4):
        split = stream(*lengths)
        tokens = split.tokens[:].tolist()
        expected = list(itertools.pairwise(tokens))  # each document's last target is the next one's first id
        assert scored(validation_batches(split, T, B)) == expected, (lengths, T, B)
        assert validation_set(split).num_targets == len(expected)


def test_a_validation_row_holds_one_document_and_padding_after_its_end():
    batches = list(validation_batches(stream(2, 5, 1), T=4, B=3))
    assert [batch.ids.tolist() for batch in batches] == [
        [[EOT, 101, 102, EOT], [EOT, 104, 105, 106], [107, 108, EOT, EOT]],
        [[EOT, 110]],
    ]
    assert [batch.targets.tolist() for batch in batches] == [
        [[101, 102, EOT, IGNORE], [104, 105, 106, 107], [108, EOT, IGNORE, IGNORE]],
        [[110, EOT]],
    ]


def test_padding_is_the_separator_even_where_a_batch_begins_inside_a_document():
    batches = list(validation_batches(stream(5, 2), T=4, B=1))
    wide = list(validation_batches(stream(5, 2), T=4, B=2))
    assert batches[1].ids.tolist() == [[104, 105]]
    inside = list(validation_batches(stream(9, 5, 6), T=8, B=1))
    assert [len(batch.ids[0]) for batch in inside] == [8, 2, 6, 7]
    assert wide[1].ids.tolist() == [[EOT, 107, 108]]
    shifted = list(validation_batches(stream(3, 5, 6), T=4, B=2))[1]
    assert shifted.ids.tolist() == [[108, 109, EOT, EOT], [EOT, 111, 112, 113]]


def test_validation_batches_are_trimmed_to_their_longest_row():
    shapes = [batch.ids.shape for batch in validation_batches(stream(2, 5, 1, 1), T=100, B=2)]
    assert shapes == [(2, 6), (2, 2)]
    for batch in validation_batches(stream(2, 5, 1, 1), T=100, B=2):
        assert batch.ids.dtype == batch.targets.dtype == np.int64


@pytest.mark.parametrize(
    ("max_tokens", "num_documents"), [(1, 1), (3, 1), (6, 1), (7, 2), (9, 2), (10, 2), (11, 3), (99, 3), (None, 3)]
)
def test_validation_takes_whole_documents_nearest_to_the_limit_and_at_least_one(max_tokens, num_documents):
    split = stream(2, 5, 1)  # 3, 6 and 2 targets: 3, 9, 11 in all
    chosen = validation_set(split, max_tokens)
    lengths = [2, 5, 1][:num_documents]
    assert chosen == (num_documents, sum(lengths) + num_documents, 3 * sum(lengths), num_documents**2 / 2)
    assert len(scored(validation_batches(split, 4, 2, max_tokens))) == chosen.num_targets


def test_validation_counts_are_plain_numbers_and_nats_none_where_not_known():
    chosen = validation_set(stream(2, 5, nats=False))
    assert chosen.nats is None
    assert [type(value) for value in validation_set(stream(2, 5))] == [int, int, int, float]
    with pytest.raises(ValueError, match="max_tokens must be an integer of at least 1"):
        validation_set(stream(2, 5), 0)
