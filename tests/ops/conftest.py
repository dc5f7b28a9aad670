"""What the tests of single ops share."""

import numpy as np
import pytest


@pytest.fixture
def rng():
    """A fresh generator of random numbers, the same for every test."""
    return np.random.default_rng(7)
