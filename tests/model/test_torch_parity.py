"""Same weights, same batches: our hand-written gradients and AdamW against a PyTorch model."""

from dataclasses import replace

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig, OptimConfig, RopeScaling
from minillm.model.run import positions_of, run_of
from minillm.model.transformer import transformer_backward, transformer_forward
from minillm.model.weights import initialise

torch = pytest.importorskip("torch")
from torch_model import torch_forward, torch_optimizer, torch_weights  # noqa: E402

CONFIGS = {
    "gpt2": ModelConfig(family="gpt2", vocab_size=211, context_len=48, num_layers=4, num_heads=4, channels=64),
    "llama": ModelConfig(vocab_size=211, context_len=48, num_layers=4, num_heads=4, num_kv_heads=2, channels=64),
    "llama untied": ModelConfig(vocab_size=211, context_len=48, num_layers=2, num_heads=4, channels=64, tied=False),
    "llama biases, wide normalised heads": ModelConfig(
        vocab_size=211,
        context_len=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        channels=64,
        head_channels=24,
        qkv_bias=True,
        qk_norm=True,
        rope_scaling=RopeScaling("factors", factors=tuple(np.linspace(1, 9, 12))),
    ),
}
OPTIM = OptimConfig(learning_rate=3e-3, warmup_steps=0, final_fraction=1.0, clip_norm=1.0)
STEPS, B, T = 20, 3, 40


def batches(config, steps):
    """Random tokens with a pattern to learn: every other token repeats the one before."""
    generator = np.random.default_rng(0)
    for _ in range(steps):
        rows = np.repeat(generator.integers(0, config.vocab_size, (B, T // 2 + 1)), 2, axis=1)[:, : T + 1]
        yield rows[:, :-1], rows[:, 1:]


def our_gradient(config, packed, ids, targets):
    """Mean loss and its gradient."""
    run = run_of(config, ops, positions_of(B, T), dtype=packed.vector.dtype)
    logits, saved = transformer_forward(ids, packed.tree, run)
    losses, saved_loss = ops.cross_entropy_forward(logits, targets)
    dlogits, _ = ops.cross_entropy_backward(np.full_like(losses, 1 / targets.size), saved_loss)
    grads = packed.zeros_like()
    transformer_backward(dlogits, saved, grads.tree, run)
    return losses.mean(dtype=np.float64), grads


def torch_loss(config, weights, ids, targets):
    logits = torch_forward(torch.tensor(ids), weights, config)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())


def clip_exactly(weights, longest):
    """torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm, which would show at 1e-9."""
    norm = sum((p.grad**2).sum() for p in weights.values()) ** 0.5
    for p in weights.values():
        p.grad *= min(1.0, longest / norm)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_gradient_of_the_first_step_agrees_in_float64(name):
    config = CONFIGS[name]
    packed = initialise(config, 0, np.float64)
    weights = torch_weights(packed)
    ids, targets = next(batches(config, 1))
    loss, grads = our_gradient(config, packed, ids, targets)
    peer = torch_loss(config, weights, ids, targets)
    peer.backward()
    assert loss == pytest.approx(peer.item(), rel=1e-13)
    for weight_name, grad in grads.named().items():
        want = weights[weight_name].grad.numpy()
        # a key bias shifts a query's every score alike, which softmax does not see: its gradient is rounding noise
        unseen = "key.bias" in weight_name and config.family == "gpt2"
        scale = 1e-5 if unseen else np.abs(want).max()
        assert np.abs(grad - want).max() <= 1e-10 * scale, weight_name


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1e-4), (np.float64, 1e-9)])
@pytest.mark.parametrize("name", CONFIGS)
def test_twenty_adamw_steps_follow_the_same_losses(name, dtype, bound):
    optim = pytest.importorskip("minillm.optim.optimizer")
    config = CONFIGS[name]
    packed = initialise(config, 0, dtype)
    weights = torch_weights(packed)
    ours, peer = optim.Optimizer(packed, OPTIM, STEPS), torch_optimizer(weights, OPTIM)
    losses = []
    for ids, targets in batches(config, STEPS):
        loss, grads = our_gradient(config, packed, ids, targets)
        ours.step(grads)
        peer.zero_grad()
        peer_loss = torch_loss(config, weights, ids, targets)
        peer_loss.backward()
        clip_exactly(weights, OPTIM.clip_norm)
        peer.step()
        losses.append((loss, peer_loss.item()))
    difference = max(abs(a - b) / b for a, b in losses)
    print(f"{name} {dtype.__name__}: largest relative difference of {STEPS} losses {difference:.1e}")
    assert difference <= bound
    assert losses[-1][0] < losses[0][0] - 0.2, "nothing was learned"


def test_the_peer_differs_when_its_config_does():
    config = CONFIGS["llama"]
    packed = initialise(config, 0, np.float64)
    ids, targets = next(batches(config, 1))
    loss, _ = our_gradient(config, packed, ids, targets)
    other = torch_loss(replace(config, rope_theta=500.0), torch_weights(packed), ids, targets)
    assert abs(loss - other.item()) > 1e-6
