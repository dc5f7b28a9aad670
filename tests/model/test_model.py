"""A model as its users hold it: config, weights and ops in one place."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig
from minillm.model.model import Model
from minillm.model.run import Causal, Dropout, Segmented, positions_of, run_of
from minillm.model.transformer import transformer_forward
from minillm.model.weights import initialise

GPT2 = ModelConfig(family="gpt2", vocab_size=19, context_len=9, num_layers=2, num_heads=2, channels=8)
CONFIGS = {"gpt2": GPT2, "llama": replace(GPT2, family="llama")}
IDS = np.random.default_rng(0).integers(0, 19, (2, 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_the_plain_forward_in_the_dtype_of_the_weights(name, dtype):
    config, weights = CONFIGS[name], initialise(CONFIGS[name], 0, dtype)
    plain = transformer_forward(IDS, weights.tree, run_of(config, ops, positions_of(2, 5), dtype=dtype))[0]
    logits = Model(config, weights, ops).logits(IDS)
    assert logits.dtype == dtype
    np.testing.assert_array_equal(logits, plain)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_follow_the_positions_and_the_attention_they_are_given(name):
    config, weights = CONFIGS[name], initialise(CONFIGS[name], 0, np.float64)
    model, positions = Model(config, weights, ops), np.array([[0, 1, 0, 1, 2], [0, 1, 2, 6, 8]])
    attend = Segmented(ops, np.array([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]))
    wanted = transformer_forward(IDS, weights.tree, run_of(config, ops, positions, attend, np.float64))[0]
    np.testing.assert_array_equal(model.logits(IDS, positions, attend), wanted)
    for other in (model.logits(IDS, positions), model.logits(IDS, attend=attend)):
        assert np.abs(other - wanted).max() > 1e-6


def test_what_was_chosen_at_the_edge_cannot_change_below_it():
    run = run_of(GPT2, ops, positions_of(1, 2))
    model = Model(GPT2, initialise(GPT2, 0), ops)
    for record, field in [(run, "dropout"), (model, "ops"), (Dropout(0.1, 0, 0), "step"), (Causal(ops), "ops"),
                          (Segmented(ops, None), "segments")]:  # fmt: skip
        with pytest.raises(FrozenInstanceError):
            setattr(record, field, None)
