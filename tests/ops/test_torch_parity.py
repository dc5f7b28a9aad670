"""Values and every gradient of each op against PyTorch, in float64."""

import numpy as np
import pytest

from minillm import ops
from minillm.ops.cases import OPS
from minillm.ops.check import call, gradients

torch = pytest.importorskip("torch")
from torch_ops import TORCH  # noqa: E402

# PyTorch gives NaN for a softmax row that is all -inf; ours gives 0 (tested apart)
ROWS = [(n, c) for n in TORCH for c in OPS[n].cases if c != "benchmark" and not ("softmax" in n and c == "masked")]


def test_every_op_but_dropout_has_a_peer():
    assert set(OPS) - set(TORCH) == {"dropout"}  # its masks come from another generator


@pytest.mark.parametrize(("name", "case"), ROWS)
def test_values_and_gradients_agree_with_pytorch(name, case):
    inputs = OPS[name].cases[case](np.random.default_rng(3))
    y, saved = call(getattr(ops, f"{name}_forward"), inputs)
    dy = np.random.default_rng(4).standard_normal(y.shape)
    grads = gradients(getattr(ops, f"{name}_backward"), dy, saved)

    peers = [torch.tensor(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x for x in inputs]
    leaves = [p.requires_grad_() for p, g in zip(peers, grads, strict=False) if g is not None]
    peer_y = TORCH[name](*peers)
    np.testing.assert_allclose(y, peer_y.detach().numpy(), rtol=1e-10, atol=1e-10 * max(1, np.abs(y).max(initial=0)))
    peer_grads = torch.autograd.grad(peer_y, leaves, torch.tensor(dy))
    for got, want in zip([g for g in grads if g is not None], peer_grads, strict=True):
        scale = max(1, np.abs(got).max(initial=0))
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-11 * scale)
