"""The gradient of a frozen linear layer: dx alone, as the whole backward gives it."""

import numpy as np
import pytest

from minillm import backend, ops, threads

CPU = backend.load("cpu")


@pytest.fixture
def restored_threads():
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)


def inputs(shape, outputs, dtype):
    r = np.random.default_rng(0)
    x, weight = r.standard_normal(shape), r.standard_normal((outputs, shape[-1]))
    dy = r.standard_normal((*shape[:-1], outputs))
    return x.astype(dtype), weight.astype(dtype), dy.astype(dtype)


@pytest.mark.parametrize("shape", [(2, 3, 5), (7, 5), (1, 1), (0, 4)])
def test_dx_alone_is_the_dx_of_the_whole_backward(shape):
    x, weight, dy = inputs(shape, 6, np.float64)
    for module in (ops, CPU):
        dx = module.linear_backward_input(dy, weight)
        whole = module.linear_backward(dy, module.linear_forward(x, weight)[1])[0]
        assert dx.shape == shape and dx.tobytes() == whole.tobytes()


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 1), (0, 4), (300, 200), (2, 300, 400)])
def test_the_twin_agrees_with_the_reference_on_any_number_of_threads(shape, restored_threads):
    """The error of a sum of O products of float32 is at most about O times its epsilon, relative to the largest."""
    _, weight, dy = inputs(shape, 600, np.float32)
    exact, found = ops.linear_backward_input(dy.astype(float), weight.astype(float)), []
    for num_threads in (1, 2, 3):
        threads.set_num_threads(num_threads)
        for w in (weight, np.asfortranarray(weight)):
            dx = CPU.linear_backward_input(dy, w)
            assert dx.dtype == np.float32 and dx.shape == shape
            np.testing.assert_allclose(dx, exact, atol=600 * 1.2e-7 * np.abs(exact).max(initial=0))
            found.append(dx)  # held, so that the next result cannot lie in the same memory
    assert len({dx.tobytes() for dx in found}) == 1
