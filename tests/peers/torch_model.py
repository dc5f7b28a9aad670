"""The same transformer written for PyTorch's autograd: the independent peer of our forward, backward and AdamW."""

import torch
import torch.nn.functional as F


def torch_weights(packed):
    """Our named arrays as leaf tensors that require gradients; a tied head appears once, as `embed`."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in packed.named().items()}


def torch_forward(ids, w, config):
    """Logits (B, T, V) for ids (B, T)."""
    B, T = ids.shape
    H, G, D = config.num_heads, config.kv_heads, config.head_size
    llama = config.family == "llama"

    def norm(x, name):
        if llama:
            return F.rms_norm(x, (x.shape[-1],), w[f"{name}.weight"], config.norm_eps)
        return F.layer_norm(x, (x.shape[-1],), w[f"{name}.weight"], w[f"{name}.bias"], config.norm_eps)

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def turn(x):  # (B, H, T, D)
        if not llama:
            return x
        frequencies = config.rope_theta ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        if config.rope_scaling.factors:
            frequencies = frequencies / torch.tensor(config.rope_scaling.factors, dtype=torch.float64)
        angles = torch.arange(T, dtype=torch.float64)[:, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def heads(x, count, name):  # (B, T, C) -> (B, H, T, D)
        x = x.view(B, T, count, D)
        return (norm(x, name) if config.qk_norm else x).transpose(1, 2)

    x = F.embedding(ids, w["embed"])
    if not llama:
        x = x + w["positions"][:T]
    for layer in range(config.num_layers):
        p = f"blocks.{layer}"
        h = norm(x, f"{p}.norm1")
        q = turn(heads(linear(h, f"{p}.attention.query"), H, f"{p}.attention.query_norm"))
        k = turn(heads(linear(h, f"{p}.attention.key"), G, f"{p}.attention.key_norm"))
        v = linear(h, f"{p}.attention.value").view(B, T, G, D).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + linear(y.transpose(1, 2).reshape(B, T, H * D), f"{p}.attention.output")
        h = norm(x, f"{p}.norm2")
        up = linear(h, f"{p}.mlp.up")
        inside = F.silu(linear(h, f"{p}.mlp.gate")) * up if llama else F.gelu(up, approximate="tanh")
        x = x + linear(inside, f"{p}.mlp.down")
    return F.linear(norm(x, "norm"), w.get("head", w["embed"]))


def torch_optimizer(weights, config):
    """torch.optim.AdamW with decay for matrices only; `config` is our OptimConfig."""
    groups = [
        {"params": [p for p in weights.values() if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in weights.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.eps)
