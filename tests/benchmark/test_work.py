"""What each piece of work must compute and move, against counting by hand."""

import numpy as np
import pytest

from minillm.benchmark.ceilings import Ceilings, measure
from minillm.benchmark.command import SHAPES, TRAINING
from minillm.benchmark.work import FULL, Decoding, FineTuning, OpCall, Prefill, Training, causal_flops
from minillm.config import LoraConfig, ModelConfig
from minillm.estimate import activation_numbers, num_parameters

GPT2 = ModelConfig("gpt2", vocab_size=7, context_len=3, num_layers=1, num_heads=2, channels=4)
LLAMA = ModelConfig(vocab_size=7, context_len=9, num_layers=2, num_heads=2, num_kv_heads=1, channels=4, ffn_channels=6)


def test_flops_of_a_training_step_by_hand():
    """Per token: query, key, value, output 4 * 4*4, feed-forward 2 * 4*16, head 7*4 weights, each used in 2 FLOPs.
    Attention: 1 + 2 + 3 scores of 4 channels, once for q k and once for p v, 2 FLOPs each."""
    per_row = 3 * 2 * (4 * 16 + 2 * 64 + 28) + 2 * 2 * (1 + 2 + 3) * 4
    assert causal_flops(GPT2, 3) == per_row
    assert Training("", GPT2, batch=5, micro=2).flops == 3 * 5 * per_row


def test_fine_tuning_fully_costs_what_a_step_of_training_does():
    work = FineTuning(Training("", GPT2, batch=5, micro=5))
    assert work.flops == work.flops_of(FULL) == work.training.flops
    assert work.memory_of(FULL) == work.training.memory
    assert work.checkpoint_of(FULL) == 3 * 4 * num_parameters(GPT2)


def test_fine_tuning_by_adapters_by_hand():
    """Adapters of rank 3 on query and value, of 4 * 4; frozen weights, 4 * 16 + 2 * 64 + 28, without their gradients.
    Three micro-batches have a gradient each; activations: 3 a token for each adapter, and gone are the inputs of
    feed-forward 4 and 16 and of the head 4."""
    work = FineTuning(Training("", GPT2, batch=5, micro=2), LoraConfig(targets="query-value"))
    adapters, tokens = 2 * 3 * (4 + 4), 5 * 3
    assert work.estimate("rank 3").trained == adapters
    saved = 2 * tokens * (4 * 16 + 2 * 64 + 28)
    assert work.flops_of("rank 3") == work.flops - saved + 6 * tokens * adapters
    kept = activation_numbers(GPT2, 5, 3, backend="cpu") + tokens * (2 * 3 - 4 - 16 - 4)
    assert work.memory_of("rank 3") == 4 * (num_parameters(GPT2) + 6 * adapters + kept)
    assert work.checkpoint_of("rank 3") == 3 * 4 * adapters


def test_flops_of_decoding_are_those_of_its_tokens_one_by_one():
    work = Decoding("", LLAMA, batch=3, prompt=2, new=5)
    assert work.steps == 4 and work.tokens == 12
    assert work.flops == 3 * (causal_flops(LLAMA, 6) - causal_flops(LLAMA, 2))


def test_bytes_of_decoding_by_hand():
    """Two steps that see 3 and 4 keys of 1 head of 2 channels in 2 layers, for 3 rows; all weights are read, twice."""
    work = Decoding("", LLAMA, batch=3, prompt=2, new=3)
    assert work.bytes == 4 * (2 * num_parameters(LLAMA) + 3 * (3 + 4) * 2 * 2 * 2)


def test_of_an_untied_table_only_the_rows_looked_up_are_read():
    untied = ModelConfig(vocab_size=1000, context_len=9, num_layers=1, num_heads=2, channels=4, tied=False)
    tied = ModelConfig(vocab_size=1000, context_len=9, num_layers=1, num_heads=2, channels=4)
    more = Decoding("", untied, 3, 2, 2).bytes - Decoding("", tied, 3, 2, 2).bytes
    assert more == 4 * 3 * 4  # three rows of four channels; the head is read whole in both


def test_a_prefill_unembeds_one_token_only():
    assert Prefill("", LLAMA, 1).flops == causal_flops(LLAMA, 1)
    assert Prefill("", LLAMA, 8).flops == causal_flops(LLAMA, 8) - 7 * 2 * 7 * 4
    assert Prefill("", LLAMA, 8).bytes == 4 * (num_parameters(LLAMA) + 2 * 2 * 2 * 8)


def test_bytes_and_flops_of_ops():
    x, weight, bias = OpCall("linear", False).inputs
    (B, N, I), O = x.shape, len(weight)
    assert x.dtype == np.float32
    assert OpCall("linear", False).flops == 2 * B * N * I * O
    assert OpCall("linear", True).flops == 4 * B * N * I * O
    inputs = x.nbytes + weight.nbytes + bias.nbytes
    assert OpCall("linear", False).bytes == inputs + 4 * B * N * O
    assert OpCall("linear", True).bytes == 2 * inputs + 4 * B * N * O
    ids, _ = OpCall("embedding", False).inputs
    assert OpCall("embedding", False).bytes == ids.nbytes + 2 * 4 * ids.size * 384, "of the table only what is named"
    assert OpCall("gelu_tanh", False).flops == 0


def test_the_shapes_are_the_published_ones():
    assert num_parameters(SHAPES["15M"]) == pytest.approx(15e6, rel=0.02)
    assert num_parameters(SHAPES["110M"]) == pytest.approx(110e6, rel=0.01)
    assert {name: (w.batch, w.micro) for name, w in TRAINING.items()} == {"A": (12, 6), "B": (8, 4)}


def test_the_slower_ceiling_limits():
    ceilings = Ceilings(100.0, 10.0, 50.0, 8.0)
    assert ceilings.seconds(flops=2e11) == 2
    assert ceilings.seconds(flops=2e11, num_bytes=1e10) == 2
    assert ceilings.seconds(flops=2e11, num_bytes=5e10) == 5


def test_the_best_of_two_measurements_counts_number_by_number():
    assert Ceilings(1, 20, 3, 4).best(Ceilings(10, 2, 30, 1)) == Ceilings(10, 20, 30, 4)


def test_ceilings_are_measured():
    assert all(value > 0 for value in vars(measure(size=16, array_bytes=1 << 12, repeats=1)).values())
