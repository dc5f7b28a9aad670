"""Adapters: the right gradients, merged equals unmerged, and a base that nobody writes to.  Rank is never alpha."""

import json
from dataclasses import replace

import numpy as np
import pytest

from minillm import backend, checkpoint
from minillm.adapt.lora import attach, lora_ops, merge
from minillm.config import DataConfig, LoraConfig, ModelConfig, OptimConfig, SFTConfig, TrainConfig
from minillm.datasets.sampler import Batch
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.training import pretrain, sft
from minillm.training.folder import RunFolder
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient

CONFIG = LoraConfig(rank=3, alpha=12.0)


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


def gradient(model, **options):
    grads = model.weights.zeros_like()
    loss, _ = mean_gradient(model, [batch_of()], grads, next_token, **options)
    return loss, grads.named()


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


def test_gradients_match_finite_differences():
    model = adapted(base_of())
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
    ops = backend.load("numpy")
    before = {name: getattr(ops, name) for name in ops.__all__}
    lora_ops(ops)
    assert before == {name: getattr(ops, name) for name in ops.__all__}


@pytest.mark.parametrize("rank", [0, 25])
def test_a_rank_that_cannot_be_is_refused(rank):
    with pytest.raises(ValueError, match=r"lora\.rank must be at "):
        attach(base_of(), LoraConfig(rank=rank), 0)
    for wrong in ({"rank": -1}, {"alpha": 0.0}, {"targets": "some"}):
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


def test_a_run_stopped_and_resumed_ends_with_the_same_bytes(run, resumes_exactly):
    resumes_exactly(sft, run, 1)


def test_adapters_are_not_put_on_another_base(run):
    sft.start(run).run([""], show=False)
    folder = RunFolder(run.base)
    model, arrays, meta = folder.load(folder.read_config())
    model.weights.vector[...] += 1
    folder.save(model, {k: v for k, v in arrays.items() if not k.startswith("weights.")}, meta)
    with pytest.raises(ValueError, match="trained on other weights than"):
        RunFolder(run.run).load_model()
