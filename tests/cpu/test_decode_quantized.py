"""One token of a model of integers in one compiled call: the logits are those of its layers one by one."""

from types import SimpleNamespace

import numpy as np
import pytest

from minillm import backend, threads
from minillm.adapt.quantize import quantize
from minillm.config import ModelConfig, QuantizeConfig
from minillm.inference.cache import Cache, extend
from minillm.model.model import Model
from minillm.model.weights import initialise

SHAPE = {"vocab_size": 41, "context_len": 24, "init_std": 0.3}
CONFIGS = {
    "llama": ModelConfig(num_layers=2, num_heads=6, num_kv_heads=2, channels=72, **SHAPE),
    "llama, untied": ModelConfig(num_layers=1, num_heads=1, channels=130, tied=False, **SHAPE),
    "gpt2": ModelConfig(family="gpt2", num_layers=2, num_heads=3, channels=33, **SHAPE),
}
SCHEMES = [
    QuantizeConfig(),
    QuantizeConfig(activations="int8-token"),
    QuantizeConfig(bits=4, group=32),
    QuantizeConfig(bits=4, group=64, symmetric=False),
]


@pytest.fixture(autouse=True)
def as_before():
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)


def model_of(config, scheme, fused):
    weights = initialise(config, 0)
    r = np.random.default_rng(1)
    for array in weights.named().values():
        if array.ndim == 1:
            array += 0.3 * r.standard_normal(array.shape)
    ops = backend.load("cpu")
    if not fused:
        ops = SimpleNamespace(**{name: getattr(ops, name) for name in ops.__all__}, __all__=ops.__all__)
    return quantize(Model(config, weights, ops), scheme)


def run(model, B):
    """Logits of 9 tokens in B rows, the first 4 in one pass; row b is padded by b % 3.  What nobody sees is 0."""
    padding = np.arange(B) % 3
    ids = np.random.default_rng(0).integers(0, 41, (B, 9))
    cache = Cache(model, padding)
    parts = [extend(model, ids[:, :4], cache)] + [extend(model, ids[:, t : t + 1], cache) for t in range(4, 9)]
    logits = np.concatenate(parts, axis=1)
    logits[np.arange(9) < padding[:, None]] = 0
    return logits, cache


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_compiled_call_gives_the_logits_of_the_layers_one_by_one(name, scheme, B, num_threads):
    threads.set_num_threads(num_threads)
    got, cache = run(model_of(CONFIGS[name], scheme, fused=True), B)
    want, other = run(model_of(CONFIGS[name], scheme, fused=False), B)
    assert cache.decoder is not None
    assert other.decoder is None
    # a sum that rounds otherwise in its last bit can tip one activation to the next integer: 1/127 of its block
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
    assert np.median(np.abs(got - want)) < 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("scheme", [QuantizeConfig(activations="float"), QuantizeConfig(bits=4, group=24)])
def test_what_the_call_cannot_read_goes_layer_by_layer(scheme):
    _, cache = run(model_of(CONFIGS["llama"], scheme, fused=True), 2)
    assert cache.decoder is None
