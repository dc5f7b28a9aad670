"""Predictions against what is really allocated and computed."""

from dataclasses import replace

import numpy as np
import pytest

from minillm import backend, ops
from minillm.adapt.lora import attach
from minillm.backend import BACKENDS
from minillm.config import LoraConfig, ModelConfig, OptimConfig
from minillm.datasets.sampler import Batch
from minillm.estimate import (
    activation_numbers,
    estimate,
    forward_flops,
    num_parameters,
    tuning_estimate,
    tuning_flops,
)
from minillm.model.model import Model
from minillm.model.run import positions_of, run_of
from minillm.model.transformer import transformer_forward
from minillm.model.weights import allocate, initialise
from minillm.optim.optimizer import Optimizer
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient

GPT2 = ModelConfig(family="gpt2", vocab_size=97, context_len=33, num_layers=3, num_heads=4, channels=40)
LLAMA = ModelConfig(
    vocab_size=97, context_len=33, num_layers=3, num_heads=4, num_kv_heads=2, channels=40, ffn_channels=70
)
LORAS = [
    LoraConfig(rank=0),
    LoraConfig(rank=3, targets="query-value"),
    LoraConfig(rank=5, targets="attention"),
    LoraConfig(rank=2),
]
QWEN = replace(LLAMA, qkv_bias=True, qk_norm=True, head_channels=14)
CONFIGS = [GPT2, LLAMA, replace(GPT2, tied=False), replace(LLAMA, tied=False, num_kv_heads=1), QWEN]


@pytest.mark.parametrize("config", CONFIGS)
def test_parameters_are_counted_exactly(config):
    assert num_parameters(config) == allocate(config).num_parameters


def test_the_published_sizes_come_out():
    gpt2 = ModelConfig(family="gpt2", vocab_size=50257, context_len=1024, num_layers=12, num_heads=12, channels=768)
    assert num_parameters(gpt2) == 124_439_808
    smollm2 = ModelConfig(
        vocab_size=49152, num_layers=30, num_heads=9, num_kv_heads=3, channels=576, ffn_channels=1536, context_len=2048
    )
    assert num_parameters(smollm2) == 134_515_008


class Counting:
    """The ops, with the multiplications and additions of every matrix product counted."""

    def __init__(self):
        self.flops = 0

    def __getattr__(self, name):
        return getattr(ops, name)

    def linear_forward(self, x, weight, bias=None):
        self.flops += 2 * x[..., 0].size * weight.size
        return ops.linear_forward(x, weight, bias)

    def linear_backward(self, dy, saved):
        self.flops += 2 * 2 * dy[..., 0].size * saved[1].size
        return ops.linear_backward(dy, saved)

    def linear_backward_input(self, dy, weight):
        self.flops += 2 * dy[..., 0].size * weight.size
        return ops.linear_backward_input(dy, weight)

    def attention_forward(self, q, k, v):
        B, T, H, D = q.shape
        self.flops += 2 * 2 * B * H * T * k.shape[1] * D
        return ops.attention_forward(q, k, v)

    def attention_backward(self, dy, saved):
        self.flops += 2 * 4 * dy.size * dy.shape[1]
        return ops.attention_backward(dy, saved)


@pytest.mark.parametrize("config", CONFIGS)
def test_flops_equal_those_of_the_products_that_are_run(config):
    counting = Counting()
    run = run_of(config, counting, positions_of(2, 9))
    transformer_forward(np.zeros((2, 9), int), initialise(config, 0).tree, run)
    assert counting.flops == 2 * forward_flops(config, 9)


@pytest.mark.parametrize("lora", LORAS)
@pytest.mark.parametrize("config", CONFIGS)
def test_flops_of_a_step_equal_those_of_the_products_that_are_run(config, lora):
    counting = Counting()
    model = tuned(config, counting, lora)
    batches = [Batch(*np.zeros((2, B, 33), int)) for B in (2, 1)]
    mean_gradient(model, batches, model.weights.zeros_like(), next_token)
    assert counting.flops == 3 * tuning_flops(config, lora, 33)
    assert tuning_estimate(config, lora).flops_per_token == tuning_flops(config, lora, 33) // 33


def test_flops_of_large_matrices_and_short_rows_approach_the_rule_of_thumb():
    """6 FLOPs a weight and token fully, 4 with small adapters."""
    wide = ModelConfig(vocab_size=8192, context_len=1, num_layers=2, num_heads=4, channels=2048)
    for lora, factor in ((LORAS[0], 6), (LoraConfig(rank=1), 4)):
        assert tuning_flops(wide, lora, 1) == pytest.approx(factor * num_parameters(wide), rel=0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("lora", LORAS)
@pytest.mark.parametrize("config", CONFIGS)
def test_fine_tuning_holds_the_predicted_bytes_exactly(config, lora, optimizer):
    model = tuned(config, ops, lora)
    held = Optimizer(model.weights, OptimConfig(optimizer=optimizer), 1, ops)
    predicted = tuning_estimate(config, lora, optimizer)
    frozen = num_bytes(model.base.weights) if lora.rank else 0
    assert predicted.trained == model.weights.num_parameters
    assert predicted.weight_bytes == frozen + num_bytes(model.weights)
    assert predicted.gradient_bytes == num_bytes(model.weights.zeros_like())
    assert predicted.moment_bytes == sum(moment.nbytes for moment in held.state()[0].values())
    assert predicted.state_bytes == predicted.weight_bytes + predicted.gradient_bytes + predicted.moment_bytes


def tuned(config, ops, lora):
    model = Model(config, initialise(config, 0), ops)
    return attach(model, lora, 0) if lora.rank else model


def num_bytes(packed):
    return sum(array.nbytes for array in packed.named().values())


def numbers_kept(saved, *weights):
    """Distinct memory behind `saved`, in numbers, leaving out the vectors `weights`, ids and masks."""
    seen = {}

    def visit(x):
        if isinstance(x, np.ndarray):
            owner = x
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            if owner.dtype.kind == "f" and not any(owner is vector for vector in weights):
                seen[id(owner)] = owner.size
            elif x.dtype.kind == "f" and owner.dtype == np.uint8:  # aligned within a little more memory
                seen[x.__array_interface__["data"][0]] = x.size
        elif isinstance(x, tuple | list):
            for part in x:
                visit(part)

    visit(saved)
    return sum(seen.values())


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("config", CONFIGS)
def test_activation_memory_is_predicted_within_five_percent(config, recompute, backend_name):
    B, T = 2, 33
    weights = initialise(config, 0)
    run = run_of(config, backend.load(backend_name), positions_of(B, T), recompute=recompute)
    _, saved = transformer_forward(np.zeros((B, T), int), weights.tree, run)
    kept = numbers_kept(saved, weights.vector)
    predicted = activation_numbers(config, B, T, recompute, backend_name)
    if recompute:  # the whole block that the backward rebuilds is not there yet
        predicted -= activation_numbers(replace(config, num_layers=1), B, T, backend=backend_name) - B * T * (
            2 * config.channels + 1
        )
    assert kept == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("targets", ["query-value", "attention", "all"])
@pytest.mark.parametrize("config", CONFIGS)
def test_activation_memory_with_adapters_is_predicted_within_two_percent(config, targets, dropout, backend_name):
    B, T, lora = 64, 33, LoraConfig(rank=8, targets=targets, dropout=dropout)
    model = tuned(config, backend.load(backend_name), lora)
    _, saved = transformer_forward(
        np.zeros((B, T), int), model.training_tree(0, 0), run_of(config, model.ops, positions_of(B, T))
    )
    kept = numbers_kept(saved, model.base.weights.vector, model.weights.vector)
    assert kept == pytest.approx(activation_numbers(config, B, T, backend=backend_name, lora=lora), rel=0.02)


def test_bytes_follow_from_the_counts():
    e = estimate(LLAMA, batch_size=4)
    assert e.weight_bytes == 4 * e.parameters
    assert e.training_bytes == 16 * e.parameters
    assert e.cache_bytes_per_token == 2 * 3 * 2 * 10 * 4
    assert estimate(LLAMA, 4, recompute=True).activation_bytes < e.activation_bytes / 2
