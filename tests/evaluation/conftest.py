"""A model of which nothing is known but that it is deterministic, and a tokenizer that can chat."""

import pytest

from minillm import ops
from minillm.config import ModelConfig
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import CONTROL


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train(["the red cat saw the blue dog; user assistant"] * 4, 270, special=CONTROL)


@pytest.fixture(scope="session")
def model(tokenizer):
    config = ModelConfig(vocab_size=tokenizer.vocab_size, context_len=48, num_layers=2, num_heads=2, channels=16)
    return Model(config, initialise(config, 0), ops)


@pytest.fixture(scope="session")
def small_model(tokenizer):
    """With a context long enough for the generated questions."""
    config = ModelConfig(vocab_size=tokenizer.vocab_size, context_len=400, num_layers=1, num_heads=2, channels=16)
    return Model(config, initialise(config, 1), ops)
