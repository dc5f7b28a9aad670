"""Muon: orthogonalisation and its step."""

import numpy as np
import pytest

from minillm.optim import muon, orthogonalize
from minillm.optim.muon import MOMENTUM


def scalar_quintic(s):
    """What five iterations do to one singular value."""
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5, 33), (33, 5), (16, 16), (1, 7), (7, 1), (1, 1)])
def test_singular_values_end_near_one_and_directions_stay(rng, shape, dtype):
    U, _, Vt = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    S = np.linspace(0.1, 1, min(shape))  # after the division by the norm: above 0.02
    y = orthogonalize(((U * S) @ Vt).astype(dtype))
    values = np.diag(U.T @ y @ Vt.T)
    assert y.dtype == dtype
    assert y.shape == shape
    assert values.min() > 0.6
    assert values.max() < 1.3
    tolerance = 1e-12 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(y, (U * scalar_quintic(S / np.linalg.norm(S))) @ Vt, atol=tolerance)


def test_the_range_that_the_docstring_states():
    values = scalar_quintic(np.linspace(0.01, 1, 100_001))
    assert values.min() > 0.67
    assert values.max() < 1.14


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_zero_matrix_stays_zero_and_scale_does_not_matter(rng, dtype):
    assert (orthogonalize(np.zeros((5, 3), dtype)) == 0).all()
    matrix = rng.standard_normal((5, 3)).astype(dtype)
    np.testing.assert_allclose(orthogonalize(2.0**-10 * matrix), orthogonalize(matrix), rtol=1e-6)
    assert np.isfinite(orthogonalize(1e-30 * matrix)).all()


def test_the_argument_is_not_changed(rng):
    for shape in ((3, 5), (5, 3)):
        matrix = rng.standard_normal(shape)
        before = matrix.copy()
        orthogonalize(matrix)
        np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
def test_five_steps_equal_pytorch(rng, shape, monkeypatch):
    """PyTorch iterates in bfloat16: its own float64 iteration is put there, so all else must agree exactly."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    weights, mean = rng.standard_normal(shape), np.zeros(shape)
    parameter = torch.nn.Parameter(torch.tensor(weights))
    peer = torch.optim.Muon([parameter], lr=0.02, weight_decay=0.1, momentum=MOMENTUM)
    for _ in range(5):
        grads = rng.standard_normal(shape)
        parameter.grad = torch.tensor(grads)
        peer.step()
        muon(weights, grads, mean, 0.02, 0.1)
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, peer.state[parameter]["momentum_buffer"].numpy(), rtol=1e-12, atol=1e-14)


def test_a_tall_matrix_takes_a_longer_step_and_a_wide_one_does_not(rng):
    for shape, scale in (((12, 3), 2.0), ((3, 12), 1.0)):
        weights, grads = np.zeros(shape), rng.standard_normal(shape)
        muon(weights, grads, np.zeros(shape), 0.5, 0.1)
        np.testing.assert_allclose(weights, -0.5 * scale * orthogonalize(grads), rtol=1e-12)


def test_float32_stays_float32_and_zero_gradients_only_decay(rng):
    weights = rng.standard_normal((4, 3)).astype(np.float32)
    before, mean = weights.copy(), np.zeros((4, 3), np.float32)
    muon(weights, np.zeros((4, 3), np.float32), mean, 0.02, 0.1)
    assert weights.dtype == mean.dtype == np.float32
    np.testing.assert_array_equal(weights, before * np.float32(1 - 0.02 * 0.1))
