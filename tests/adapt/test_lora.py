"""Adapters: the right gradients, merged equals unmerged, and a base that nobody writes to.  Rank is never alpha."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from minillm import backend, checkpoint, ops, tree
from minillm.adapt.lora import ADAPTER, LoraWeight, attach, lora_ops, merge
from minillm.config import DataConfig, LoraConfig, ModelConfig, OptimConfig, SFTConfig, TrainConfig
from minillm.datasets.sampler import Batch
from minillm.model.model import Model
from minillm.model.run import Dropout
from minillm.model.weights import initialise
from minillm.training import pretrain, sft
from minillm.training.folder import RunFolder
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient

CONFIG = LoraConfig(rank=3, alpha=12.0)
DROPPING = replace(CONFIG, dropout=0.3)


def base_of(family="llama", dtype=np.float64, name="numpy", **rest):
    shape = {"vocab_size": 31, "context_len": 9, "num_layers": 2, "num_heads": 4, "channels": 24}
    if family == "llama":
        shape["num_kv_heads"] = 2
    config = ModelConfig(family, **shape | rest)
    return Model(config, initialise(config, 0, dtype), backend.load(name))


def adapted(base, config=CONFIG, seed=1):
    """With random B: a fresh adapter has B = 0, which hides most faults."""
    model = attach(base, config, seed)
    r = np.random.default_rng(seed)
    for name, array in model.weights.named().items():
        if name.endswith(".b"):
            array[...] = 0.3 * r.standard_normal(array.shape)
    return model


def batch_of(seed=0):
    r = np.random.default_rng(seed)
    return Batch(r.integers(0, 31, (3, 9)), r.integers(0, 31, (3, 9)))


def gradient(model, batches=None, **options):
    grads = model.weights.zeros_like()
    loss, _ = mean_gradient(model, batches or [batch_of()], grads, next_token, **options)
    return loss, grads.named()


def assert_same_bytes(one, two):
    """Of two (loss, gradients)."""
    assert one[0] == two[0]
    assert all(one[1][name].tobytes() == two[1][name].tobytes() for name in one[1] | two[1])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("targets", ["query-value", "attention", "all"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_gradients_are_those_of_the_whole_matrix_in_the_factors(family, targets, recompute):
    """dA = s B^T dW and dB = s dW A^T, dW being that of the merged model."""
    model = adapted(base_of(family), replace(CONFIG, targets=targets))
    loss, grads = gradient(model, recompute=recompute)
    whole_loss, whole = gradient(merge(model))
    assert loss == pytest.approx(whole_loss, rel=1e-12)
    factors = model.weights.named()
    assert len(grads) == 2 * 2 * {"query-value": 2, "attention": 4, "all": 6 if family == "gpt2" else 7}[targets]
    for name, got in grads.items():
        matrix, kind = name.rsplit(".", 1)
        a, b, dw = factors[f"{matrix}.a"], factors[f"{matrix}.b"], whole[matrix]
        expected = 4.0 * (b.T @ dw if kind == "a" else dw @ a.T)
        np.testing.assert_allclose(got, expected, atol=1e-12 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("config", [CONFIG, DROPPING])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_gradients_match_finite_differences(family, config):
    """Every pass of one step drops the same."""
    model = adapted(base_of(family, ffn_channels=40), config)
    _, grads = gradient(model)
    r = np.random.default_rng(3)
    for name, array in model.weights.named().items():
        direction, before, step = r.standard_normal(array.shape), array.copy(), 1e-6
        losses = []
        for sign in (1, -1):
            array[...] = before + sign * step * direction
            losses.append(gradient(model)[0])
        array[...] = before
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(np.sum(grads[name] * direction), rel=1e-5), name


def layer(rate, dtype=np.float64, step=0):
    """A matrix (5, 7) with an adapter of rank 2, whose scale is 1.5, in a training pass, and inputs (6, 7)."""
    r = np.random.default_rng(5)
    weight, a, b, x = (r.standard_normal(shape).astype(dtype) for shape in [(5, 7), (2, 7), (5, 2), (6, 7)])
    return x, LoraWeight(weight, a, b, 1.5, Dropout(rate, seed=3, step=step) if rate else None, number=4)


def test_of_what_is_dropped_only_the_adapter_knows():
    """y = x W^T + s (x m A^T) B^T, with a mask m of zeros and 1 / (1 - rate)."""
    x, w = layer(0.25)
    y, _ = lora_ops(ops).linear_forward(x, w)
    kept, _ = ops.dropout_forward(np.ones_like(x), 0.25, w.dropout.generator(4, ADAPTER))
    assert set(kept.reshape(-1)) == {0, 1 / 0.75}
    np.testing.assert_allclose(y, x @ w.weight.T + 1.5 * (x * kept) @ w.a.T @ w.b.T, rtol=1e-12)


def test_dropout_keeps_the_expected_output_and_gradient():
    """Means over many masks, within five times their own standard error."""
    drawn = []
    for step in range(2000):
        x, w = layer(0.4, step=step)
        y, saved = lora_ops(ops).linear_forward(x, w)
        dx, dw, _ = lora_ops(ops).linear_backward(np.ones_like(y), saved)
        drawn.append(np.concatenate([part.reshape(-1) for part in (y, dx, dw.a, dw.b)]))
    x, w = layer(0)
    y, saved = lora_ops(ops).linear_forward(x, w)
    dx, dw, _ = lora_ops(ops).linear_backward(np.ones_like(y), saved)
    error = np.std(drawn, axis=0) / len(drawn) ** 0.5
    assert error.min() > 0
    whole = np.concatenate([part.reshape(-1) for part in (y, dx, dw.a, dw.b)])
    assert (np.abs(np.mean(drawn, axis=0) - whole) < 5 * error).all()


def test_without_dropout_nothing_is_drawn_and_the_bytes_are_those_of_the_plain_tree():
    model = adapted(base_of("llama", np.float32, "cpu"))
    assert model.training_tree(seed=1, step=2) == model.tree
    assert_same_bytes(gradient(model, seed=1), gradient(model, seed=2))


def test_the_frozen_path_is_never_dropped():
    """With B = 0 the adapter's dropout changes no loss."""
    base = base_of()
    losses = {gradient(attach(base, config, 0), seed=seed)[0] for config in (CONFIG, DROPPING) for seed in range(3)}
    assert losses == {gradient(base)[0]}


@pytest.mark.parametrize("targets", ["query-value", "all"])
def test_every_adapter_of_every_step_draws_a_mask_of_its_own(targets):
    model, seen = attach(base_of(), replace(DROPPING, targets=targets), 0), []
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        parts = [part for _, part in tree.walk(model.training_tree(seed, step)) if isinstance(part, LoraWeight)]
        seen += [part.dropout.generator(part.number, ADAPTER).integers(1 << 60) for part in parts]
    places = [Dropout(0.3, 0, 0).generator(layer, place).integers(1 << 60) for layer in range(2) for place in range(3)]
    assert len(seen) == 3 * 2 * {"query-value": 2, "all": 7}[targets]
    assert len({*seen, *places}) == len(seen) + 6, "and none that the model's own dropout draws"


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_dropped_gradients_have_the_same_bytes_recomputed_and_on_any_number_of_threads(name):
    model = adapted(base_of("llama", np.float32, name, dropout=0.2), DROPPING)
    batches = [batch_of(seed) for seed in range(4)]
    plain = gradient(model, batches, seed=1, step=2)
    assert plain[0] != gradient(model, batches, seed=1, step=3)[0]
    assert_same_bytes(plain, gradient(model, batches, seed=1, step=2, recompute=True))
    for num_threads in (1, 2, 4):
        with ThreadPoolExecutor(num_threads) as pool:
            assert_same_bytes(plain, gradient(model, batches, seed=1, step=2, run_all=pool.map))


def test_micro_batches_of_one_step_drop_otherwise():
    model, batch = adapted(base_of(), DROPPING), batch_of()
    losses = [gradient(model, [batch], step=step)[0] for step in range(2)]
    assert losses[0] != losses[1]
    twice = gradient(model, [batch, batch])[0]
    assert twice == pytest.approx(sum(losses) / 2, rel=1e-12), "micro-batch 1 of 2 draws as step 1 of 1"


def test_dropout_is_off_when_the_model_answers_and_when_it_is_merged():
    base, ids = base_of(), batch_of().ids
    plain, dropping = adapted(base), adapted(base, DROPPING)
    assert gradient(plain)[0] != gradient(dropping)[0]
    assert plain.logits(ids).tobytes() == dropping.logits(ids).tobytes()
    assert merge(plain).weights.vector.tobytes() == merge(dropping).weights.vector.tobytes()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("name", "dtype", "allowed"), [("numpy", np.float64, 1e-13), ("cpu", np.float32, 1e-5)])
def test_merged_answers_as_unmerged_and_not_as_the_base(name, dtype, allowed, family, tied):
    base = base_of(family, dtype, name, tied=tied)
    before = base.weights.vector.copy()
    model = adapted(base)
    ids = batch_of().ids
    y, merged, plain = (m.logits(ids) for m in (model, merge(model), base))
    np.testing.assert_allclose(merged, y, atol=allowed * np.abs(y).max())
    assert np.abs(y - plain).max() > 0.01 * np.abs(plain).max()
    assert base.weights.vector.tobytes() == before.tobytes()


def test_a_fresh_adapter_changes_nothing():
    base = base_of()
    assert np.array_equal(attach(base, CONFIG, 0).logits(batch_of().ids), base.logits(batch_of().ids))


def test_several_adapters_share_one_base():
    base = base_of()
    one, two = adapted(base, seed=1), adapted(base, replace(CONFIG, rank=2), seed=2)
    before = one.logits(batch_of().ids)
    two.weights.vector[...] += 1
    assert np.array_equal(one.logits(batch_of().ids), before)
    assert one.base.weights is two.base.weights


def test_the_overlay_leaves_the_backend_as_it_was():
    before = {name: getattr(ops, name) for name in ops.__all__}
    lora_ops(ops)
    assert before == {name: getattr(ops, name) for name in ops.__all__}


@pytest.mark.parametrize("rank", [0, 25])
def test_a_rank_that_cannot_be_is_refused(rank):
    with pytest.raises(ValueError, match=r"lora\.rank must be at "):
        attach(base_of(), LoraConfig(rank=rank), 0)
    for wrong in ({"rank": -1}, {"alpha": 0.0}, {"targets": "some"}, {"dropout": -0.1}, {"dropout": 1.0},
                  {"dropout": float("nan")}):  # fmt: skip
        with pytest.raises(ValueError, match="lora\\."):
            LoraConfig(**wrong)


@pytest.fixture
def run(tmp_path):
    """A base, and the settings of a fine-tuning run with adapters."""
    (tmp_path / "text.txt").write_text("The red cat saw a blue dog. user assistant\n\n" * 20)
    shape = ModelConfig(context_len=64, num_layers=1, num_heads=2, channels=16)
    pace = {"steps": 4, "batch_size": 2, "eval_every": 0, "sample_every": 0}
    data = DataConfig(source=str(tmp_path / "text.txt"), vocab_size=280)
    base = TrainConfig(run=tmp_path / "base", model=shape, data=data, **pace)
    assert pretrain.start(base, False).run([""], show=False)
    said = [[{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}."}] for i in range(6)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in said))
    optim = OptimConfig(learning_rate=0.03, warmup_steps=1)
    where = {"run": tmp_path / "run", "base": base.run, "data": str(tmp_path / "data.jsonl")}
    return SFTConfig(**where, lora=CONFIG, optim=optim, **pace)


def test_a_run_trains_saves_and_loads_adapters_alone(run):
    before = RunFolder(run.base).checkpoint_file.read_bytes()
    trainer = sft.start(run)
    assert trainer.run([""], show=False)
    arrays, _ = checkpoint.load(RunFolder(run.run).checkpoint_file)
    names = {name for name in arrays if name.startswith("weights.")}
    assert names and all(name.endswith((".a", ".b")) for name in names)
    assert RunFolder(run.base).checkpoint_file.read_bytes() == before
    model, _ = RunFolder(run.run).load_model()
    ids = np.arange(12).reshape(2, 6)
    y = trainer.model.logits(ids)
    np.testing.assert_allclose(model.logits(ids), y, atol=1e-5 * np.abs(y).max())
    assert not np.allclose(y, RunFolder(run.base).load_model()[0].logits(ids), atol=1e-3 * np.abs(y).max())


@pytest.mark.parametrize("config", [CONFIG, DROPPING])
def test_a_run_stopped_and_resumed_ends_with_the_same_bytes(run, resumes_exactly, config):
    resumes_exactly(sft, replace(run, lora=config), 1)


def test_adapters_are_not_put_on_another_base(run):
    sft.start(run).run([""], show=False)
    folder = RunFolder(run.base)
    model, arrays, meta = folder.load(folder.read_config())
    model.weights.vector[...] += 1
    folder.save(model, {k: v for k, v in arrays.items() if not k.startswith("weights.")}, meta)
    with pytest.raises(ValueError, match="trained on other weights than"):
        RunFolder(run.run).load_model()
