"""Models of small integers: each method does what it promises, on inputs where the promise can be broken."""

from dataclasses import replace

import numpy as np
import pytest

from minillm import backend, tree
from minillm.adapt.calibrate import SITES, Inputs, calibrate
from minillm.adapt.gptq import gptq_matrix, inverse_factor
from minillm.adapt.quantize import dequantized, quantize
from minillm.adapt.rescale import awq_scales, output_error, rescale, smooth_scales
from minillm.adapt.rounding import quantize_matrix
from minillm.config import ModelConfig, QuantizeConfig
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.ops.quantized import Quantized, dequantize, round_activations

LLAMA = ModelConfig("llama", 97, 40, num_layers=2, num_heads=4, num_kv_heads=2, channels=64, init_std=0.1)
GPT2 = ModelConfig("gpt2", 97, 40, num_layers=2, num_heads=2, channels=36, init_std=0.1, tied=False)
SCHEMES = [
    QuantizeConfig(),
    QuantizeConfig(activations="float"),
    QuantizeConfig(activations="int8-token", method="smoothquant"),
    QuantizeConfig(bits=4, group=32),
    QuantizeConfig(bits=4, group=32, symmetric=False),
    QuantizeConfig(bits=4, group=64, range="mse"),
    QuantizeConfig(bits=4, range="percentile"),
    QuantizeConfig(bits=4, group=32, method="awq"),
    QuantizeConfig(bits=4, group=32, method="gptq"),
    QuantizeConfig(bits=4, method="gptq", activations="float"),
]


def model_of(config, backend_name="numpy", seed=0):
    model = Model(config, initialise(config, seed), backend.load(backend_name))
    r = np.random.default_rng(seed)
    for array in model.weights.named().values():
        if array.ndim == 1:  # norms and biases as training leaves them
            array += 0.1 * r.standard_normal(array.shape).astype(np.float32)
    return model


def ids(config, seed=3, B=2, T=20):
    return np.random.default_rng(seed).integers(0, config.vocab_size, (B, T))


def outliers(O=24, I=64, N=400, seed=0):
    """A matrix, and inputs that are correlated and much larger in a few channels."""
    r = np.random.default_rng(seed)
    x = r.standard_normal((N, 8)) @ r.standard_normal((8, I)) + 0.3 * r.standard_normal((N, I))
    x[:, :4] *= 20
    inputs = Inputs(np.zeros(I), np.zeros((I, I)))
    inputs.add(x)
    return r.standard_normal((O, I)), x, inputs


@pytest.mark.parametrize("backend_name", ["numpy", "cpu"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("config", [LLAMA, GPT2])
def test_a_quantized_model_answers_as_its_own_weights_do(config, scheme, backend_name):
    model = model_of(config, backend_name)
    inputs = calibrate(model, [ids(config)])
    small = quantize(model, scheme, inputs)
    got, plain = small.logits(ids(config, 4)), dequantized(small, model.ops).logits(ids(config, 4))
    exact = model.logits(ids(config, 4))
    spread = np.abs(exact).max()
    bound = 2e-6 if scheme.activations == "float" else 0.06  # the integers of activations round too
    assert np.abs(got - plain).max() < bound * spread
    assert np.abs(got - exact).max() < (0.1 if scheme.bits == 8 else 0.8) * spread
    assert small.num_bytes < model.weights.vector.nbytes * (0.5 if scheme.bits == 8 else 0.45)


def test_what_is_not_a_matrix_stays_as_it_is():
    model = model_of(GPT2)
    small = quantize(model, QuantizeConfig())
    kept = {name: part for name, part in tree.walk(small.tree) if not isinstance(part, Quantized)}
    assert kept.keys() == {n for n, a in model.weights.named().items() if a.ndim == 1 or n == "positions"}
    for name, part in kept.items():
        assert np.array_equal(part, model.weights.named()[name])


def test_a_tied_head_is_held_once():
    small = quantize(model_of(LLAMA), QuantizeConfig())
    assert small.tree.head is small.tree.embed


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_is_off_by_half_a_step_at_most_and_zero_stays_zero(bits):
    w = np.random.default_rng(0).standard_normal((6, 70))
    w[2], w[3, :32], w[4, 5] = 0, 0, 0
    for symmetric in (True, False):
        q = quantize_matrix(w, QuantizeConfig(bits=bits, group=32, symmetric=symmetric))
        back, of = dequantize(q), np.arange(70) // 32
        assert (np.abs(back - w) <= q.scale[:, of] / 2 * (1 + 1e-9)).all() or not symmetric
        assert (np.abs(back - w) <= q.scale[:, of] * (1 + 1e-9)).all()
        assert not back[w == 0].any()
        assert np.isfinite(back).all()


def test_a_range_that_lies_to_one_side_is_worth_a_bit_when_asymmetric():
    w = np.random.default_rng(0).random((8, 64))
    errors = [np.square(dequantize(quantize_matrix(w, QuantizeConfig(4, 64, symmetric=s))) - w).sum() for s in (1, 0)]
    assert errors[1] < 0.35 * errors[0]


def test_mse_clips_an_outlier_that_absmax_serves():
    w = np.random.default_rng(0).standard_normal((8, 256))
    w[:, 7] = 12
    error = {
        how: np.square(dequantize(quantize_matrix(w, QuantizeConfig(4, range=how))) - w).sum()
        for how in ("absmax", "mse", "percentile")
    }
    assert error["mse"] < 0.9 * error["absmax"]
    assert error["mse"] <= error["percentile"]


def test_gptq_loses_less_of_the_outputs_than_the_nearest_integers():
    w, _, inputs = outliers()
    for group in (0, 16, 32):
        config = QuantizeConfig(bits=4, group=group)
        nearest = output_error(w, dequantize(quantize_matrix(w, config)), inputs)
        assert output_error(w, dequantize(gptq_matrix(w, inputs, config)), inputs) < 0.6 * nearest


def test_gptq_of_channels_that_do_not_speak_together_is_the_nearest_integer():
    w, _, inputs = outliers()
    alone = Inputs(inputs.largest, np.diag(np.diag(inputs.moments)), inputs.num_rows)
    config = QuantizeConfig(bits=4, group=32)
    assert np.array_equal(gptq_matrix(w, alone, config).q, quantize_matrix(w, config).q)


def test_gptq_does_not_depend_on_how_columns_are_blocked(monkeypatch):
    w, _, inputs = outliers()
    config = QuantizeConfig(bits=4, group=8)
    results = []
    for width in (1, 24, 1000):
        monkeypatch.setattr("minillm.adapt.gptq.BLOCK", width)
        results.append(gptq_matrix(w, inputs, config).q)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_the_factor_is_that_of_the_inverse_even_where_channels_never_spoke():
    _, _, inputs = outliers()
    inputs.moments[:, 9] = inputs.moments[9] = 0
    U = inverse_factor(inputs.moments)
    damped = inputs.moments + np.eye(64) * 0.01 * np.diag(inputs.moments).mean()
    assert np.allclose(U.T @ U @ damped, np.eye(64), atol=1e-7)
    assert np.array_equal(U, np.triu(U))
    assert np.isfinite(inverse_factor(np.zeros((5, 5)))).all()


def test_awq_loses_less_of_the_outputs_than_the_nearest_integers():
    w, _, inputs = outliers()
    config = QuantizeConfig(bits=4, group=32)
    s = awq_scales([w], inputs, config)
    plain = output_error(w, dequantize(quantize_matrix(w, config)), inputs)
    assert output_error(w, dequantize(quantize_matrix(w * s, config)) / s, inputs) < 0.8 * plain


def test_smoothquant_makes_activations_round_better():
    w, x, inputs = outliers()
    s = smooth_scales([w], inputs, QuantizeConfig())

    def lost(x, w):
        r, step = round_activations(x, whole=True)
        rounded = (r.reshape(len(x), -1, 64) * step[..., None]).reshape(len(x), -1)
        back = dequantize(quantize_matrix(w, QuantizeConfig()))
        return np.square(rounded @ back.T - x @ w.T).sum()

    assert lost(x / s, w * s) < 0.5 * lost(x, w)


@pytest.mark.parametrize("choose", [smooth_scales, awq_scales])
@pytest.mark.parametrize("config", [LLAMA, GPT2])
def test_rescaling_alone_changes_nothing(config, choose):
    model = model_of(config)
    inputs = calibrate(model, [ids(config)])
    blocks = [rescale(b, config, seen, choose, QuantizeConfig(4, 32)) for b, seen in zip(model.tree.blocks, inputs)]
    other = model_of(config)
    for block, into in zip(blocks, other.tree.blocks):
        for (_, a), (_, b) in zip(tree.walk(block), tree.walk(into), strict=True):
            b[...] = a
    assert not np.allclose(blocks[0].attention.query.weight, model.tree.blocks[0].attention.query.weight)
    assert np.allclose(other.logits(ids(config)), model.logits(ids(config)), atol=2e-5)


def test_calibration_sees_what_each_site_reads_whatever_the_batches():
    model = model_of(LLAMA)
    batch = ids(LLAMA, B=4)
    whole, halves = calibrate(model, [batch]), calibrate(model, [batch[:1], batch[1:]])
    assert len(whole) == LLAMA.num_layers
    for one, two in zip(whole, halves):
        assert one.keys() == SITES.keys()
        for site in SITES:
            assert one[site].num_rows == two[site].num_rows == batch.size
            assert np.allclose(one[site].moments, two[site].moments, rtol=1e-4, atol=1e-3)
            assert np.allclose(one[site].largest, two[site].largest, rtol=1e-5)
    normed = whole[0]["attention"].moments.trace() / batch.size  # after a norm, whose mean square is about 1
    assert 0.5 * LLAMA.channels < normed < 2 * LLAMA.channels


def test_methods_that_need_inputs_say_so():
    for method in ("smoothquant", "awq", "gptq"):
        with pytest.raises(ValueError, match=f"{method} looks at what the layers read"):
            quantize(model_of(LLAMA), QuantizeConfig(method=method))
    with pytest.raises(ValueError, match="no text to calibrate with"):
        calibrate(model_of(LLAMA), [])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits": 3}, "bits must be 4 or 8: got 3"),
        ({"group": -1}, "quantize.group"),
        ({"method": "magic"}, "quantize.method must be one of"),
        ({"symmetric": False, "range": "mse"}, "it needs symmetric"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(QuantizeConfig(), **wrong)
