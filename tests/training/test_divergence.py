"""Distillation losses and their gradients against PyTorch, finite differences, and what must hold of a divergence."""

from functools import partial

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig
from minillm.datasets.sampler import Batch
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.ops.cross_entropy import IGNORE
from minillm.training.divergence import (
    Distil,
    forward_kl,
    hidden_mse,
    jensen_shannon,
    mix,
    reverse_kl,
    top_k,
    top_k_kl,
)
from minillm.training.step import mean_gradient, split_rows

B, T, V = 3, 5, 11
LENGTHS = (5, 2, 0)
SCALE, TAU = 0.3, 2.5


def inputs(size=3.0, seed=0, dtype=np.float64):
    """Logits of student and teacher, and targets ignored beyond each row's length and in one place within it."""
    generator = np.random.default_rng(seed)
    z, t = (size * generator.standard_normal((2, B, T, V))).astype(dtype)
    targets = generator.integers(0, V, (B, T))
    for row, length in zip(targets, LENGTHS):
        row[length:] = IGNORE
    targets[0, 1] = IGNORE
    return z, t, targets


def cached(z, t, targets, scale, tau=1.0, k=4):
    return top_k_kl(z, *top_k(t, k, tau), targets, scale, tau)


def mixed(z, t, targets, scale, tau=1.0, divergence="forward", alpha=0.7):
    return Distil(divergence, tau, alpha, beta=0.3).loss(z, t, targets, scale)


SOFT = {
    "forward": forward_kl,
    "reverse": reverse_kl,
    "jensen-shannon": partial(jensen_shannon, beta=0.3),
    "top-k": cached,
    "top-all": partial(cached, k=V),
}
LOSSES = SOFT | {
    "mixed forward": mixed,
    "mixed reverse": partial(mixed, divergence="reverse"),
    "mixed jensen-shannon": partial(mixed, divergence="jensen-shannon"),
}
each_soft = pytest.mark.parametrize("loss", SOFT.values(), ids=SOFT)
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def torch_loss(torch, name, z, t, targets):
    """The same losses as PyTorch would have them, with its own KL and cross-entropy, over the scored rows."""
    F = torch.nn.functional
    scored = targets != IGNORE
    z, t = z[scored], t[scored]
    logp, logq = F.log_softmax(t / TAU, -1), F.log_softmax(z / TAU, -1)

    def kl(a, b):
        return F.kl_div(b, a, log_target=True, reduction="sum")

    def with_tail(x, ids):
        rest = torch.ones_like(x, dtype=torch.bool).scatter(-1, ids, False)
        tail = torch.log((x.exp() * rest).sum(-1, keepdim=True))
        return torch.cat([x.gather(-1, ids), tail], -1)

    soft = name.removeprefix("mixed ")
    if soft in ("forward", "top-all"):
        value = kl(logp, logq)
    elif soft == "reverse":
        value = kl(logq, logp)
    elif soft == "top-k":
        ids = t.topk(4).indices
        value = kl(with_tail(logp, ids), with_tail(logq, ids))
    else:
        logm = torch.log(0.3 * logp.exp() + 0.7 * logq.exp())
        value = 0.3 * kl(logp, logm) + 0.7 * kl(logq, logm)
    value = TAU**2 * value
    if name.startswith("mixed"):
        value = 0.3 * F.cross_entropy(z, targets[scored], reduction="sum") + 0.7 * value
    return SCALE * value


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_agree_with_pytorch(name):
    torch = pytest.importorskip("torch")
    z, t, targets = inputs()
    loss, dlogits = LOSSES[name](z, t, targets, SCALE, TAU)
    leaf = torch.tensor(z, requires_grad=True)
    peer = torch_loss(torch, name, leaf, torch.tensor(t), torch.tensor(targets))
    peer.backward()
    assert isinstance(loss, float) and loss == pytest.approx(peer.item(), rel=1e-10)
    np.testing.assert_allclose(dlogits, leaf.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_hidden_states_agree_with_pytorch():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(shape) for shape in ((7, 3), (5, 3), (7, 5))]
    h, weight, teacher_h = (torch.tensor(a, requires_grad=True) for a in arrays)
    peer = torch.nn.functional.mse_loss(h @ weight.T, teacher_h)
    peer.backward()
    loss, dh, dweight = hidden_mse(*arrays, scale=1 / 7)
    assert loss == pytest.approx(peer.item(), rel=1e-10)
    np.testing.assert_allclose(dh, h.grad.numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(dweight, weight.grad.numpy(), rtol=1e-10, atol=1e-12)


def assert_slope(loss_of, x, gradient):
    """Central differences along a random direction; their truncation is step^2 = 1e-10 of the loss, for x of size 1."""
    u = np.random.default_rng(2).standard_normal(x.shape)
    expected = (loss_of(x + 1e-5 * u) - loss_of(x - 1e-5 * u)) / 2e-5
    assert np.sum(gradient * u) == pytest.approx(expected, rel=1e-6)


@each_loss
def test_gradients_agree_with_finite_differences(loss):
    z, t, targets = inputs(size=1.0)
    assert_slope(lambda z: loss(z, t, targets, SCALE, TAU)[0], z, loss(z, t, targets, SCALE, TAU)[1])


def test_hidden_state_gradients_agree_with_finite_differences():
    generator = np.random.default_rng(1)
    h, weight, teacher_h = (generator.standard_normal(shape) for shape in ((7, 3), (5, 3), (7, 5)))
    _, dh, dweight = hidden_mse(h, weight, teacher_h, 0.4)
    assert_slope(lambda h: hidden_mse(h, weight, teacher_h, 0.4)[0], h, dh)
    assert_slope(lambda w: hidden_mse(h, w, teacher_h, 0.4)[0], weight, dweight)


@each_soft
def test_temperature_does_not_change_the_size_of_the_gradient_of_tiny_logits(loss):
    """q - p = (z - t, less its mean) / (V tau) + O(1 / tau^2): times tau it does not depend on tau, to 1e-3 here."""
    z, t, targets = inputs(size=1e-3)
    norms = [np.linalg.norm(loss(z, t, targets, 1.0, tau)[1]) for tau in (1.0, 4.0)]
    assert norms[1] / norms[0] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl])
def test_hot_kl_matches_logits(loss):
    """Hinton et al. 2015: as tau grows, the gradient becomes that of half the squared difference of centred logits."""
    z, t, targets = inputs()
    _, dlogits = loss(z, t, targets, 1.0, 1e5)
    gap = z - t
    want = (gap - gap.mean(-1, keepdims=True)) / V * (targets != IGNORE)[..., None]
    np.testing.assert_allclose(dlogits, want, atol=1e-3)


@each_soft
def test_a_divergence_is_zero_at_the_teacher_and_positive_elsewhere(loss):
    z, t, targets = inputs()
    at_teacher, dlogits = loss(t, t, targets, SCALE, TAU)
    assert at_teacher == pytest.approx(0, abs=1e-13)
    np.testing.assert_allclose(dlogits, 0, atol=1e-13)
    assert loss(z, t, targets, SCALE, TAU)[0] > 0.1


@pytest.mark.parametrize(("beta", "weight", "limit"), [(1e-6, 1e-6, forward_kl), (1 - 1e-6, 1e-6, reverse_kl)])
def test_jensen_shannon_over_its_weight_tends_to_forward_and_reverse_kl(beta, weight, limit):
    z, t, targets = inputs(size=1.0)
    got, want = jensen_shannon(z, t, targets, SCALE, TAU, beta), limit(z, t, targets, SCALE, TAU)
    assert got[0] / weight == pytest.approx(want[0], rel=1e-4)
    np.testing.assert_allclose(got[1] / weight, want[1], rtol=1e-3, atol=1e-5)


def test_jensen_shannon_swaps_student_and_teacher_with_one_minus_beta_and_is_at_most_log_two():
    z, t, targets = inputs(size=100.0)
    there, back = jensen_shannon(z, t, targets, 1.0, 1.0, 0.3), jensen_shannon(t, z, targets, 1.0, 1.0, 0.7)
    assert there[0] == pytest.approx(back[0], rel=1e-12)
    num_scored = np.count_nonzero(targets != IGNORE)
    assert 0.5 * np.log(2) < jensen_shannon(z, t, targets, 1 / num_scored)[0] <= np.log(2)


def test_top_k_of_all_tokens_is_forward_kl_to_the_last_bit():
    z, t, targets = inputs(dtype=np.float32)
    got, want = cached(z, t, targets, SCALE, TAU, k=V), forward_kl(z, t, targets, SCALE, TAU)
    assert got[0] == want[0]
    np.testing.assert_array_equal(got[1], want[1])


def test_top_k_keeps_the_likeliest_tokens_and_their_probabilities_among_all():
    logits = np.log([[0.1, 0.4, 0.1, 0.3, 0.1]])
    ids, log_probs = top_k(logits, 3)
    np.testing.assert_array_equal(ids, [[1, 3, 0]])
    np.testing.assert_allclose(np.exp(log_probs), [[0.4, 0.3, 0.1]], rtol=1e-12)
    np.testing.assert_allclose(np.exp(top_k(2 * logits, 3, tau=2)[1]), np.exp(log_probs), rtol=1e-12)


def test_top_k_grows_with_k_from_above_zero_to_forward_kl():
    """The data-processing inequality: splitting the tail further only adds divergence."""
    z, t, targets = inputs()
    losses = [cached(z, t, targets, SCALE, TAU, k)[0] for k in range(1, V + 1)]
    assert losses[0] > 0
    assert np.all(np.diff(losses) >= 0) and losses[1] < losses[-1]


def test_the_tail_is_an_outcome_and_not_dropped():
    """Teacher 0.5 on token 0; a student with more there: without the tail the loss would be 0.5 log(0.5 / 0.8) < 0."""
    t, z, targets = np.log([[[0.5, 0.3, 0.2]]]), np.log([[[0.8, 0.1, 0.1]]]), np.zeros((1, 1), int)
    loss, dlogits = cached(z, t, targets, 1.0, k=1)
    assert loss == pytest.approx(0.5 * np.log(0.5 / 0.8) + 0.5 * np.log(0.5 / 0.2), rel=1e-12)
    np.testing.assert_allclose(dlogits[0, 0], [0.3, -0.15, -0.15], rtol=1e-12)  # the student's own shares of the tail


def test_a_tail_that_the_student_all_but_rules_out_is_measured_by_its_logits():
    t, z, targets = np.log([[[0.5, 0.3, 0.2]]]), np.array([[[0.0, -3e4, -3e4]]]), np.zeros((1, 1), int)
    loss, dlogits = cached(z, t, targets, 1.0, k=1)
    assert loss == pytest.approx(0.5 * np.log(0.5) + 0.5 * (np.log(0.5) - np.log(2) + 3e4), rel=1e-12)
    np.testing.assert_allclose(dlogits[0, 0], [0.5, -0.25, -0.25], rtol=1e-12)


def test_all_tokens_of_a_coarse_cache_leave_no_tail():
    """Rounded to float16 the probabilities may add up to less than 1, and the rest would go to no token at all."""
    z, t, targets = inputs(dtype=np.float32)
    ids, log_probs = top_k(t, V, TAU)
    coarse = log_probs.astype(np.float16).astype(np.float32)
    assert np.any(np.exp(coarse).sum(-1) < 1 - 1e-4)
    loss, dlogits = top_k_kl(z, ids, coarse, targets, SCALE, TAU)
    want = forward_kl(z, t, targets, SCALE, TAU)
    assert loss == pytest.approx(want[0], rel=0.01)  # float16 keeps three digits
    np.testing.assert_allclose(dlogits, want[1], atol=0.01)


def test_a_teacher_kept_in_float16_costs_no_more_than_its_own_rounding():
    z, t, targets = inputs(size=1.0)
    t = t.astype(np.float16)
    got, want = forward_kl(z, t, targets, SCALE, TAU), forward_kl(z, t.astype(np.float64), targets, SCALE, TAU)
    assert got[0] == want[0]
    np.testing.assert_array_equal(got[1], want[1])
    ids, log_probs = top_k(t.astype(np.float64), 4, TAU)
    log_probs = log_probs.astype(np.float16)
    got = top_k_kl(z, ids, log_probs, targets, SCALE, TAU)
    want = top_k_kl(z, ids, log_probs.astype(np.float64), targets, SCALE, TAU)
    assert got[0] == pytest.approx(want[0], rel=1e-12)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_a_teacher_without_a_tail_is_safe_even_if_the_student_has_none_either(masked):
    z, t, targets = inputs()
    t[..., 4:] = -np.inf
    if masked:
        z[..., 4:] = -np.inf
    got, want = cached(z, t, targets, SCALE, TAU, k=4), forward_kl(z, t, targets, SCALE, TAU)
    assert got[0] == pytest.approx(want[0], rel=1e-12)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-12, atol=1e-15)


@each_loss
@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e300])
def test_what_stands_at_ignored_positions_does_not_matter(loss, filler):
    z, t, targets = inputs()
    want = loss(z, t, targets, SCALE, TAU)
    ignored = targets == IGNORE
    z[ignored] = filler
    clean = loss(z, t, targets, SCALE, TAU)
    t[ignored] = filler
    with np.errstate(invalid="ignore"):  # top_k knows no targets, and inf - inf is NaN
        both = loss(z, t, targets, SCALE, TAU)
    for got in (clean, both):
        assert got[0] == want[0]
        np.testing.assert_array_equal(got[1], want[1])
        np.testing.assert_array_equal(got[1][ignored], 0)


@each_loss
def test_padding_and_cutting_into_micro_batches_change_nothing(loss):
    z, t, targets = inputs()
    want = loss(z, t, targets, SCALE, TAU)
    pad = partial(np.pad, pad_width=((0, 1), (0, 4), (0, 0)), constant_values=7.0)
    longer = np.pad(targets, ((0, 1), (0, 4)), constant_values=IGNORE)
    padded = loss(pad(z), pad(t), longer, SCALE, TAU)
    assert padded[0] == want[0]
    np.testing.assert_array_equal(padded[1][:B, :T], want[1])
    parts = [loss(z[b : b + 1], t[b : b + 1], targets[b : b + 1], SCALE, TAU) for b in range(B)]
    assert sum(part for part, _ in parts) == pytest.approx(want[0], rel=1e-12)
    np.testing.assert_allclose(np.concatenate([dz for _, dz in parts]), want[1], rtol=1e-12)


@each_loss
def test_a_batch_without_targets_has_neither_loss_nor_gradient(loss):
    z, t, targets = inputs()
    value, dlogits = loss(z, t, np.full_like(targets, IGNORE), SCALE, TAU)
    assert value == 0 and dlogits.shape == z.shape and not dlogits.any()


@each_loss
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_of_ten_thousand_are_finite_and_the_dtype_is_kept(loss, dtype):
    z, t, targets = inputs(size=1e4, dtype=dtype)
    value, dlogits = loss(z, t.astype(np.float64), targets, SCALE, TAU)
    assert np.isfinite(value) and value > 0
    assert dlogits.dtype == dtype and np.isfinite(dlogits).all() and dlogits.any()


def test_float32_agrees_with_float64():
    for loss in LOSSES.values():
        got, want = (loss(*inputs(dtype=dtype), SCALE, TAU) for dtype in (np.float32, np.float64))
        np.testing.assert_allclose(got[1], want[1], atol=1e-5)
        assert got[0] == pytest.approx(want[0], rel=1e-5)


@pytest.mark.parametrize("loss", [forward_kl, SOFT["jensen-shannon"], cached])
def test_a_token_which_the_teacher_rules_out_adds_nothing_itself(loss):
    z, t, targets = inputs()
    t[..., 3] = -np.inf
    got = loss(z, t, targets, SCALE, TAU)
    t[..., 3] = -1e5  # its probability underflows to 0
    want = loss(z, t, targets, SCALE, TAU)
    assert np.isfinite(got[0]) and got[0] == pytest.approx(want[0], rel=1e-12)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-12, atol=1e-15)
    assert np.all(got[1][0, 0, 3] > 0)  # the student is told not to say it


def test_reverse_kl_needs_a_student_that_stays_within_what_the_teacher_may_say():
    z, t, targets = inputs()
    t[..., 3] = -np.inf
    with pytest.raises(ValueError, match=r"reverse_kl is infinite: .*try forward_kl"):
        reverse_kl(z, t, targets, SCALE)
    z[..., 3] = -np.inf
    kept = np.arange(V) != 3
    got, want = reverse_kl(z, t, targets, SCALE), reverse_kl(z[..., kept], t[..., kept], targets, SCALE)
    assert got[0] == pytest.approx(want[0], rel=1e-12)
    np.testing.assert_allclose(got[1][..., kept], want[1], rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(got[1][..., 3], 0)


def test_nan_at_a_scored_position_shows_in_the_loss():
    for loss in LOSSES.values():
        for place in (0, 1):
            arrays = inputs()
            arrays[place][0, 0, 2] = np.nan
            with np.errstate(invalid="ignore"):  # as in a training step
                assert np.isnan(loss(*arrays, SCALE, TAU)[0])


def test_alpha_zero_is_next_token_prediction_and_alpha_one_is_the_teacher_alone():
    z, t, targets = inputs()
    soft = forward_kl(z, t, targets, SCALE, TAU)
    losses, saved = ops.cross_entropy_forward(z, targets)
    hard = SCALE * losses.sum(), ops.cross_entropy_backward(np.full_like(losses, SCALE), saved)[0]
    for alpha, want in ((0, hard), (1, soft)):
        got = Distil("forward", TAU, alpha).loss(z, t, targets, SCALE)
        assert got[0] == pytest.approx(want[0], rel=1e-12)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-12, atol=1e-15)
    from_cache = mix(cached(z, t, targets, SCALE, TAU, k=V), z, targets, SCALE, 0.7)
    assert from_cache[0] == pytest.approx(mixed(z, t, targets, SCALE, TAU)[0], rel=1e-12)


@pytest.mark.parametrize("divergence", ["forward", "reverse", "jensen-shannon"])
def test_as_an_objective_the_gradient_does_not_depend_on_the_micro_batches(divergence):
    config = ModelConfig(vocab_size=V, context_len=T, num_layers=1, num_heads=2, channels=8)
    student = Model(config, initialise(config, 0, np.float64), ops)
    _, _, targets = inputs()
    batch = Batch(np.random.default_rng(3).integers(0, V, (B, T)), targets)
    answers = {row.tobytes(): np.random.default_rng(row).standard_normal((T, V)) for row in batch.ids}

    def objective(ops, logits, batch, scale):
        teacher_logits = np.stack([answers[row.tobytes()] for row in batch.ids])
        return Distil(divergence).loss(logits, teacher_logits, batch.targets, scale)

    results = []
    for size in (1, B):
        grads = student.weights.zeros_like()
        loss, count = mean_gradient(student, split_rows(batch, size), grads, objective)
        results.append((loss, grads.vector))
        assert count == np.count_nonzero(targets != IGNORE)
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-12)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-9, atol=1e-14)
    assert np.linalg.norm(results[0][1]) > 0


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, jensen_shannon, mixed])
def test_another_vocabulary_is_refused_with_what_to_do(loss):
    z, t, targets = inputs()
    with pytest.raises(ValueError, match=r"share a vocabulary: teacher 9 tokens, student 11; .*one tokenizer.*:9\]"):
        loss(z, t[..., :9], targets, SCALE)
    with pytest.raises(ValueError, match=r"same ids: logits \(3, 4, 11\), \(3, 5, 11\)"):
        loss(z, t[:, :4], targets, SCALE)
    with pytest.raises(ValueError, match="one target per row of logits"):
        loss(z, t, targets[:, 0], SCALE)


def test_a_teacher_that_rules_out_every_token_is_refused():
    z, t, targets = inputs()
    t[0, 0] = -np.inf
    with pytest.raises(ValueError, match="all -inf at a scored position; set its target to IGNORE"):
        forward_kl(z, t, targets, SCALE)


@each_loss
@pytest.mark.parametrize("tau", [0.0, -1.0, np.inf, np.nan])
def test_a_temperature_must_be_positive_and_finite(loss, tau):
    with pytest.raises(ValueError, match=f"positive and finite: got {tau}"):
        loss(*inputs(), SCALE, tau)


def test_settings_out_of_range_are_refused():
    for beta in (0, 1, -0.1, np.nan):
        with pytest.raises(ValueError, match="use forward_kl for 0, reverse_kl for 1"):
            jensen_shannon(*inputs(), SCALE, beta=beta)
        with pytest.raises(ValueError, match="beta must lie between 0 and 1"):
            Distil(beta=beta)
    for alpha in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="alpha, the weight of the teacher"):
            Distil(alpha=alpha)
        with pytest.raises(ValueError, match="alpha, the weight of the teacher"):
            mix((0.0, np.zeros((B, T, V))), *inputs()[::2], SCALE, alpha)
    with pytest.raises(ValueError, match="positive and finite: got 0"):
        Distil(tau=0)
    with pytest.raises(ValueError, match="divergence must be one of forward, reverse, jensen-shannon: got 'kl'"):
        Distil("kl")


def test_a_cache_that_does_not_fit_is_refused():
    z, t, targets = inputs()
    ids, log_probs = top_k(t, 4, TAU)
    for k in (0, V + 1):
        with pytest.raises(ValueError, match=f"k must be 1 to 11, the size of the vocabulary: got {k}"):
            top_k(t, k)
    with pytest.raises(ValueError, match="ids and log_probs must be"):
        top_k_kl(z, ids, log_probs[..., :3], targets, SCALE)
    with pytest.raises(ValueError, match="ids and log_probs must be"):
        top_k_kl(z, ids[:, :4], log_probs[:, :4], targets, SCALE)
    with pytest.raises(ValueError, match="ids of a row must differ"):
        top_k_kl(z, np.zeros_like(ids), log_probs, targets, SCALE)
    with pytest.raises(ValueError, match=r"ids must be in \[0, 9\)"):
        top_k_kl(z[..., :9], ids, log_probs, targets, SCALE)
    with pytest.raises(ValueError, match="log_probs must be those of top_k, not logits"):
        top_k_kl(z, ids, log_probs + 2, targets, SCALE)


@pytest.mark.parametrize("shapes", [((7, 2), (5, 3), (7, 5)), ((7, 3), (5, 3), (6, 5)), ((7, 3), (5, 3), (7, 4))])
def test_hidden_states_that_do_not_fit_are_refused(shapes):
    with pytest.raises(ValueError, match=r"must be \(N, C_s\), \(C_t, C_s\), \(N, C_t\): got \(7, "):
        hidden_mse(*(np.zeros(shape) for shape in shapes), 1.0)
