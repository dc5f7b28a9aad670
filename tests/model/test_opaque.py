"""The model touches arrays only through ops and reshape: it runs on a type that offers nothing else.

Device arrays are like that.  NumPy arrays are forgiving, so without this test a stray `x + a` would go unnoticed.
"""

import importlib.util
import inspect
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minillm import ops, tree
from minillm.config import ModelConfig
from minillm.model import attention, block, feed_forward, transformer
from minillm.model.run import Dropout, Segmented, positions_of, run_of
from minillm.model.weights import initialise

CONFIGS = {
    "gpt2": ModelConfig(family="gpt2", vocab_size=19, context_len=6, num_layers=2, num_heads=2, channels=8),
    "llama": ModelConfig(vocab_size=19, context_len=6, num_layers=2, num_heads=4, num_kv_heads=2, channels=16),
    "llama normalised": ModelConfig(
        vocab_size=19, context_len=6, num_layers=2, num_heads=2, channels=16, qkv_bias=True, qk_norm=True
    ),
}


class Opaque:
    """What a device array offers: shape, dtype, reshape."""

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def reshape(self, *shape):
        return Opaque(self._array.reshape(*shape))


def wrap(x):
    if isinstance(x, np.ndarray):
        return Opaque(x)
    if isinstance(x, tuple):
        return type(x)(*map(wrap, x)) if hasattr(x, "_fields") else tuple(map(wrap, x))
    return x


def unwrap(x):
    if isinstance(x, Opaque):
        return x._array
    if isinstance(x, tuple):
        return type(x)(*map(unwrap, x)) if hasattr(x, "_fields") else tuple(map(unwrap, x))
    return x


def opaque(function):
    return lambda *args: wrap(function(*map(unwrap, args)))


OPAQUE_OPS = SimpleNamespace(**{name: opaque(getattr(ops, name)) for name in ops.__all__})


def gradients(config, module, run_ops, lift, **options):
    """The flat gradient, with every array that goes in lifted by `lift`."""
    packed = initialise(config, 0, np.float64)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, 6))
    segments = np.array([[0, 0, 1, 1, 1, 1], [0] * 6])
    options |= {"dtype": np.float64, "dropout": Dropout(0.2, 0, 0), "keep_hidden": True}
    run = run_of(config, run_ops, positions_of(2, 6), **options)
    run = replace(run, positions=lift(run.positions), rope=lift(run.rope), attend=Segmented(run_ops, lift(segments)))
    grads = packed.zeros_like()
    logits, saved = module.transformer_forward(lift(ids), tree.map(lift, packed.tree), run)
    module.transformer_backward(logits, saved, tree.map(lift, grads.tree), run, dhidden=saved.hidden)
    return grads.vector


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_runs_on_arrays_that_only_have_a_shape(name, recompute):
    config = CONFIGS[name]
    plain = gradients(config, transformer, ops, lambda x: x, recompute=recompute)
    hidden = gradients(config, transformer, OPAQUE_OPS, wrap, recompute=recompute)
    assert plain.any()
    np.testing.assert_array_equal(plain, hidden)


STRAYS = [
    (block, "run.ops.add(x, a)", "x + a"),
    (block, "run.ops.add(dy, dx)", "dy + dx"),
    (attention, "y.reshape(B, T, -1)", "y.transpose(0, 1, 2, 3).reshape(B, T, -1)"),
    (attention, "run.ops.add(run.ops.add(dx_query, dx_key), dx_value)", "sum([dx_query, dx_key, dx_value])"),
    (feed_forward, "run.ops.add(dx_gate, dx_up)", "dx_gate + dx_up"),
    (transformer, "run.ops.add(x, p)", "x + p"),
    (transformer, "run.ops.add(dx, dhidden)", "dx + dhidden"),
    (transformer, "run.ops.linear_forward(x, w.head)", "run.ops.linear_forward(x[:], w.head)"),
]


@pytest.mark.parametrize(("module", "right", "stray"), STRAYS, ids=[stray for _, _, stray in STRAYS])
def test_an_operation_past_the_ops_is_noticed(module, right, stray, monkeypatch):
    source = inspect.getsource(module)
    assert source.count(right) == 1
    rewrite(monkeypatch, module, source.replace(right, stray))
    config = CONFIGS["gpt2" if "p" in stray.split() else "llama"]
    with pytest.raises((TypeError, AttributeError)):
        gradients(config, sys.modules["minillm.model.transformer"], OPAQUE_OPS, wrap)


def rewrite(monkeypatch, module, source):
    """Put changed source in the place of `module`, and reload what stands above it."""
    for above in (module, block, transformer):
        text = source if above is module else inspect.getsource(above)
        fresh = importlib.util.module_from_spec(importlib.util.spec_from_loader(above.__name__, loader=None))
        monkeypatch.setitem(sys.modules, above.__name__, fresh)
        exec(compile(text, above.__name__, "exec"), fresh.__dict__)
        if above is transformer:
            break
