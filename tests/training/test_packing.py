"""Packed conversations train exactly as they would alone."""

from itertools import pairwise

import numpy as np
import pytest

from minillm import backend
from minillm.config import ModelConfig
from minillm.datasets.conversations import Conversation
from minillm.datasets.packing import PackedRows, first_fit, pack, render_all
from minillm.datasets.sampler import stack
from minillm.model.model import Model
from minillm.model.run import Segmented
from minillm.model.weights import initialise
from minillm.ops.cross_entropy import IGNORE
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import CONTROL, ChatTemplate, Rendered
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient, split_rows

T = 24


def examples(*lengths, seed=0):
    """Texts of random ids, about half of them taught."""
    r = np.random.default_rng(seed)
    return [Rendered(r.integers(0, 50, n).tolist(), [False, *(r.random(n - 2) < 0.5).tolist(), True]) for n in lengths]


@pytest.fixture(params=["gpt2", "llama"])
def model(request):
    config = ModelConfig(request.param, vocab_size=50, context_len=T, num_layers=2, num_heads=2, channels=16)
    return Model(config, initialise(config, 0, np.float64), backend.load("numpy"))


def gradient(model, batches):
    grads = model.weights.zeros_like()
    loss, count = mean_gradient(model, batches, grads, next_token)
    return loss, count, grads.vector


def test_a_packed_row_gives_the_loss_and_gradient_of_its_texts_alone(model):
    texts = examples(7, 2, 9)
    packed = gradient(model, [stack([pack(texts, T)])])
    alone = gradient(model, [stack([pack([text], len(text.ids) - 1)]) for text in texts])
    assert packed[1] == alone[1] == sum(sum(t.mask) for t in texts)
    assert packed[0] == pytest.approx(alone[0], rel=1e-12)
    np.testing.assert_allclose(packed[2], alone[2], atol=1e-14)


def test_changing_one_text_moves_another_by_exactly_nothing(model):
    texts = examples(7, 9, 5)
    other = [Rendered([(i + 1) % 50 for i in texts[0].ids], texts[0].mask), *texts[1:]]
    a, b = (stack([pack(t, T)]) for t in (texts, other))
    logits = [model.logits(x.ids, x.positions, Segmented(model.ops, x.segments)) for x in (a, b)]
    assert np.array_equal(logits[0][:, 6:18], logits[1][:, 6:18])
    assert not np.array_equal(logits[0][:, :6], logits[1][:, :6])


def test_micro_batches_of_lengths_one_and_five_equal_one_batch(model):
    batch = stack([pack([e], T) for e in examples(2, 6)])  # 1 and 5 tokens
    one, two = gradient(model, [batch]), gradient(model, split_rows(batch, 1))
    assert one[0] == pytest.approx(two[0], rel=1e-12)
    np.testing.assert_allclose(one[2], two[2], atol=1e-14)


def test_every_text_is_in_one_row_and_no_row_is_too_long():
    lengths = np.random.default_rng(0).integers(1, T + 1, 200).tolist()
    rows = first_fit(lengths, T)
    assert sorted(i for row in rows for i in row) == list(range(200))
    assert all(sum(lengths[i] for i in row) <= T for row in rows)
    assert len(rows) <= 11 / 9 * np.ceil(sum(lengths) / T) + 2
    assert first_fit([], T) == []


def test_targets_are_where_the_mask_says_and_positions_begin_anew():
    a, b = Rendered([1, 2, 3], [False, True, False]), Rendered([4, 5], [False, True])
    row = pack([a, b], 5)
    assert row.ids.tolist() == [1, 2, 4, 0, 0]
    assert row.targets.tolist() == [2, IGNORE, 5, IGNORE, IGNORE]
    assert row.positions.tolist() == [0, 1, 0, 0, 0]
    assert row.segments.tolist() == [0, 0, 1, -1, -1]
    assert len(PackedRows([a, b], 5)) == 1
    assert len(PackedRows([a, b], 5, packing=False)) == 2
    assert PackedRows([a, b], 5).share_filled == 3 / 5


@pytest.fixture(scope="module")
def template():
    return ChatTemplate(Tokenizer.train(["user assistant a b c"], 300, special=CONTROL))


def talk(*contents):
    return Conversation([{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)])


def test_a_conversation_that_is_too_long_is_an_error_cut_or_left_out_as_asked(template, caplog):
    short, long, late = talk("a", "b"), talk("a", "b c " * 30), talk("a " * 60, "b")
    fits = render_all([short], template, 40)
    assert (len(fits.rendered), fits.num_truncated, fits.num_dropped) == (1, 0, 0)
    with pytest.raises(ValueError, match=r"conversation 1 has .* room for 41; shorten"):
        render_all([short, long], template, 40)
    cut = render_all([short, long, late], template, 40, too_long="truncate")
    assert ([len(r.ids) <= 41 for r in cut.rendered], cut.num_truncated, cut.num_dropped) == ([True] * 2, 1, 1)
    assert "1 were cut to 41 tokens and 1 left out" in caplog.text
    dropped = render_all([short, long, late], template, 40, too_long="drop")
    assert (len(dropped.rendered), dropped.num_truncated, dropped.num_dropped) == (1, 0, 2)
    with pytest.raises(ValueError, match="no conversation is left of 1"):
        render_all([late], template, 40, too_long="truncate")


def test_a_cut_answer_is_taught_as_far_as_it_goes_and_no_end_is_invented(template):
    ids, mask = template.render(talk("a", "b c b c").messages)
    for n in range(mask.index(True) + 1, len(ids)):
        (cut,) = render_all([talk("a", "b c b c")], template, n - 1, too_long="truncate").rendered
        assert cut == (ids[:n], mask[:n])


def test_all_rows_are_drawn_from_and_padding_is_never_taught(template):
    rows = PackedRows(examples(*[5] * 9), T)
    for a, b in pairwise(range(len(rows))):
        assert rows[a].ids.shape == rows[b].ids.shape == (T,)
    assert all(np.all(rows[i].targets[rows[i].segments < 0] == IGNORE) for i in range(len(rows)))


def test_padding_with_the_token_that_ends_a_turn_still_teaches_to_stop(model):
    """Targets come from the mask, not from ids: where the two are one id, many a trainer learns no end at all."""
    text = examples(7)[0]
    end = text.ids[-1]
    row = stack([pack([text], T)])
    padded = row._replace(ids=np.where(row.segments < 0, end, row.ids))
    assert row.targets[0, 5] == end and np.count_nonzero(row.targets != IGNORE) == sum(text.mask)
    for a, b in zip(gradient(model, [row]), gradient(model, [padded])):
        assert np.array_equal(a, b)
