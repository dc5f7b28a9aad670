"""The whole model: gradients, options that must change nothing, and what each token may see."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig, RopeScaling
from minillm.model.run import Causal, Dropout, Segmented, positions_of, run_of
from minillm.model.transformer import transformer_backward, transformer_forward
from minillm.model.weights import initialise

GPT2 = ModelConfig(family="gpt2", vocab_size=37, context_len=11, num_layers=3, num_heads=3, channels=12)
LLAMA = ModelConfig(
    family="llama",
    vocab_size=37,
    context_len=11,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    channels=24,
    ffn_channels=20,
)
CONFIGS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "gpt2 untied": replace(GPT2, tied=False),
    "llama untied": replace(LLAMA, tied=False),
    "llama one kv head": replace(LLAMA, num_kv_heads=1),
    "llama biases": replace(LLAMA, qkv_bias=True, rope_scaling=RopeScaling("linear", 3.0)),
    "llama normalised wide heads": replace(LLAMA, head_channels=10, qk_norm=True),
}
B, T = 2, 7


def weights_of(config, seed=0, dtype=np.float64):
    """Initial weights with every array random, so that no bias or norm weight hides behind its start value."""
    packed = initialise(config, seed, dtype)
    generator = np.random.default_rng(seed + 100)
    for array in packed.named().values():
        array += 0.2 * generator.standard_normal(array.shape)
    return packed


def ids_of(config, shape=(B, T), seed=1):
    return np.random.default_rng(seed).integers(0, config.vocab_size, shape)


def gradients_of(config, packed, ids, dlogits, **options):
    run = run_of(config, ops, positions_of(*ids.shape), dtype=packed.vector.dtype, **options)
    _, saved = transformer_forward(ids, packed.tree, run)
    grads = packed.zeros_like()
    transformer_backward(dlogits, saved, grads.tree, run)
    return grads


@pytest.mark.parametrize("name", CONFIGS)
def test_the_gradient_of_every_weight_matches_finite_differences(name):
    config = CONFIGS[name]
    packed, ids = weights_of(config), ids_of(config)
    run = run_of(config, ops, positions_of(B, T), dtype=np.float64)
    dlogits = np.random.default_rng(2).standard_normal((B, T, config.vocab_size))
    grads = gradients_of(config, packed, ids, dlogits).named()
    for weight_name, array in packed.named().items():
        direction, start = np.random.default_rng(3).standard_normal(array.shape), array.copy()
        sums = []
        for step in (1e-5, -1e-5):
            array[...] = start + step * direction
            sums.append(np.sum(dlogits * transformer_forward(ids, packed.tree, run)[0]))
        array[...] = start
        expected, got = (sums[0] - sums[1]) / 2e-5, np.sum(grads[weight_name] * direction)
        size = np.linalg.norm(grads[weight_name]) * np.linalg.norm(direction)
        if (
            "key.bias" in weight_name and config.family == "gpt2"
        ):  # adds the same q.b to a query's every score, which softmax does not see
            assert max(abs(got), abs(expected)) < 1e-8
        else:
            assert size > 1e-3, f"{weight_name} has no gradient at all"
            assert abs(got - expected) <= 1e-7 * size, weight_name


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dropout", [None, Dropout(0.4, seed=5, step=3)])
def test_recomputing_blocks_gives_the_same_bytes(name, dropout):
    config = CONFIGS[name]
    packed, ids = weights_of(config, dtype=np.float32), ids_of(config)
    dlogits = np.random.default_rng(2).standard_normal((B, T, config.vocab_size)).astype(np.float32)
    plain = gradients_of(config, packed, ids, dlogits, dropout=dropout)
    again = gradients_of(config, packed, ids, dlogits, dropout=dropout, recompute=True)
    assert plain.vector.any()
    np.testing.assert_array_equal(plain.vector, again.vector)


def test_dropout_has_the_right_gradient_and_draws_other_masks_each_step():
    config = LLAMA
    packed, ids = weights_of(config), ids_of(config)
    dlogits = np.random.default_rng(2).standard_normal((B, T, config.vocab_size))
    drop = Dropout(0.3, seed=1, step=0)
    run = run_of(config, ops, positions_of(B, T), dtype=np.float64, dropout=drop)
    grads = gradients_of(config, packed, ids, dlogits, dropout=drop)
    direction = packed.zeros_like()
    for array in direction.named().values():
        array += np.random.default_rng(3).standard_normal(array.shape)
    sums = []
    for step in (1e-6, -1e-6):
        packed.vector[...] += step * direction.vector
        sums.append(np.sum(dlogits * transformer_forward(ids, packed.tree, run)[0]))
        packed.vector[...] -= step * direction.vector
    assert np.sum(grads.vector * direction.vector) == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-6)
    masks = {drop.generator(layer, place).integers(1 << 60) for layer in range(3) for place in range(3)}
    assert len(masks | {Dropout(0.3, 1, 1).generator(0, 0).integers(1 << 60)}) == 10


def test_every_place_that_drops_draws_a_mask_of_its_own():
    drawn = []

    class Recorder(Dropout):
        def generator(self, layer, place):
            drawn.append((layer, place))
            return super().generator(layer, place)

    packed, ids = weights_of(GPT2), ids_of(GPT2)
    run = run_of(GPT2, ops, positions_of(B, T), dtype=np.float64, dropout=Recorder(0.3, seed=1, step=0))
    transformer_forward(ids, packed.tree, run)
    assert len(drawn) == len(set(drawn)) == 1 + 2 * GPT2.num_layers


def strict_op(name):
    """The op `name`; a pair whose backward insists on a gradient in the shape of the forward's output."""
    op = getattr(ops, name)

    def forward(*inputs):
        y, saved = op(*inputs)
        return y, (y.shape, saved)

    def backward(dy, saved):
        shape, inside = saved
        assert dy.shape == shape, f"{name}: gradient {dy.shape} of an output {shape}"
        return op(dy, inside)

    return forward if name.endswith("_forward") else backward if name.endswith("_backward") else op


@pytest.mark.parametrize("name", CONFIGS)
def test_every_backward_receives_a_gradient_in_the_shape_of_its_output(name):
    config, strict = CONFIGS[name], SimpleNamespace(**{op: strict_op(op) for op in ops.__all__})
    packed, ids = weights_of(config), ids_of(config)
    run = run_of(config, strict, positions_of(B, T), dtype=np.float64, dropout=Dropout(0.3, seed=1, step=0))
    logits, saved = transformer_forward(ids, packed.tree, run)
    transformer_backward(logits, saved, packed.zeros_like().tree, run)


def test_attention_is_asked_layer_by_layer_from_the_first_up():
    asked = []

    class Recorder(Causal):
        def forward(self, layer, q, k, v):
            asked.append((layer, q.shape, k.shape, v.shape))
            return super().forward(layer, q, k, v)

    packed, ids = weights_of(LLAMA), ids_of(LLAMA)
    transformer_forward(ids, packed.tree, run_of(LLAMA, ops, positions_of(B, T), Recorder(ops), np.float64))
    assert asked == [(layer, (B, T, 4, 6), (B, T, 2, 6), (B, T, 2, 6)) for layer in range(LLAMA.num_layers)]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_token_sees_itself_and_the_past_alone(name):
    config = CONFIGS[name]
    packed, ids = weights_of(config), ids_of(config)
    run = run_of(config, ops, positions_of(B, T), dtype=np.float64)
    before = transformer_forward(ids, packed.tree, run)[0]
    ids[0, 4] = (ids[0, 4] + 1) % config.vocab_size
    after = transformer_forward(ids, packed.tree, run)[0]
    changed = np.abs(after - before).max(axis=-1) > 0
    assert changed.tolist() == [[False] * 4 + [True] * 3, [False] * T]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_packed_documents_do_not_see_each_other_and_equal_their_separate_runs(name):
    config = CONFIGS[name]
    packed, ids = weights_of(config), ids_of(config, (1, T))
    segments, positions = np.array([[0, 0, 0, 1, 1, 1, 1]]), np.array([[0, 1, 2, 0, 1, 2, 3]])
    run = run_of(config, ops, positions, Segmented(ops, segments), np.float64)
    together = transformer_forward(ids, packed.tree, run)[0]
    for part in (slice(0, 3), slice(3, 7)):
        piece = ids[:, part]
        plain = run_of(config, ops, positions_of(*piece.shape), dtype=np.float64)
        alone = transformer_forward(piece, packed.tree, plain)[0]
        np.testing.assert_allclose(together[:, part], alone, rtol=1e-12, atol=1e-12)
    other = ids.copy()
    other[0, 1] = (other[0, 1] + 1) % config.vocab_size
    moved = transformer_forward(other, packed.tree, run)[0] - together
    assert np.abs(moved[:, 3:]).max() == 0
    assert np.abs(moved[:, 1:3]).max() > 0


def test_gradients_of_two_micro_batches_add_up_in_one_place():
    config = GPT2
    packed, ids = weights_of(config), ids_of(config, (4, T))
    dlogits = np.random.default_rng(2).standard_normal((4, T, config.vocab_size))
    whole = gradients_of(config, packed, ids, dlogits)
    parts = packed.zeros_like()
    for rows in (slice(0, 1), slice(1, 4)):
        run = run_of(config, ops, positions_of(*ids[rows].shape), dtype=np.float64)
        _, saved = transformer_forward(ids[rows], packed.tree, run)
        transformer_backward(dlogits[rows], saved, parts.tree, run)
    np.testing.assert_allclose(parts.vector, whole.vector, rtol=1e-10, atol=1e-12)


def test_micro_batches_in_flight_may_go_back_in_any_order():
    config = LLAMA
    packed = weights_of(config)
    run = run_of(config, ops, positions_of(1, T), dtype=np.float64)
    batches = [ids_of(config, (1, T), seed) for seed in range(3)]
    dlogits = np.random.default_rng(2).standard_normal((3, 1, T, config.vocab_size))
    totals = []
    for order in ([0, 1, 2], [2, 0, 1]):
        flying = [transformer_forward(ids, packed.tree, run)[1] for ids in batches]
        grads = packed.zeros_like()
        for i in order:
            transformer_backward(dlogits[i], flying[i], grads.tree, run)
        totals.append(grads.vector)
    np.testing.assert_allclose(*totals, rtol=1e-10, atol=1e-12)


def test_each_block_is_announced_once_its_gradients_are_final():
    config = GPT2
    packed, ids = weights_of(config), ids_of(config)
    run = run_of(config, ops, positions_of(B, T), dtype=np.float64)
    _, saved = transformer_forward(ids, packed.tree, run)
    grads, seen = packed.zeros_like(), {}

    def on_block(layer):
        seen[layer] = grads.tree.blocks[layer].attention.query.weight.copy()

    transformer_backward(np.ones((B, T, config.vocab_size)) * ids[..., None], saved, grads.tree, run, on_block)
    assert list(seen) == [2, 1, 0]
    for layer, early in seen.items():
        np.testing.assert_array_equal(early, grads.tree.blocks[layer].attention.query.weight)


def test_a_partial_sum_goes_through_reduce_twice_per_block_in_each_direction():
    config, counts = LLAMA, []
    packed, ids = weights_of(config), ids_of(config)

    def reduce(x):
        counts.append(x.shape)
        return x

    run = run_of(config, ops, positions_of(B, T), dtype=np.float64, reduce=reduce)
    logits, saved = transformer_forward(ids, packed.tree, run)
    assert len(counts) == 2 * config.num_layers
    transformer_backward(logits, saved, packed.zeros_like().tree, run)
    assert counts == [(B, T, config.channels)] * (4 * config.num_layers)


def test_text_beyond_the_context_is_refused_with_what_to_do():
    run_of(GPT2, ops, np.array([[10]]))  # the last position, alone, is still inside
    with pytest.raises(ValueError, match="position 11, context of 11 tokens; shorten"):
        run_of(GPT2, ops, positions_of(1, 12))
    run = run_of(GPT2, ops, positions_of(1, 5))
    with pytest.raises(ValueError, match="one position per token"):
        transformer_forward(np.zeros((1, 4), int), initialise(GPT2, 0).tree, run)
    with pytest.raises(ValueError, match=r"in \[0, 37\): got 37"):
        transformer_forward(np.full((1, 5), 37), initialise(GPT2, 0).tree, run)
