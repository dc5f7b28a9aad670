"""Parameters, FLOPs and bytes, predicted from the config alone."""

from dataclasses import dataclass

from minillm.config import ModelConfig


@dataclass(frozen=True)
class Estimate:
    """What a model costs; see each function for what is counted."""

    parameters: int
    flops_per_token: int
    """Forward and backward, at full context."""
    weight_bytes: int
    training_bytes: int
    """Weights, gradients and AdamW's two moments."""
    activation_bytes: int
    """Kept by the forward of one batch for its backward."""
    cache_bytes_per_token: int


def estimate(
    config: ModelConfig, batch_size: int, itemsize: int = 4, recompute: bool = False, backend: str = "cpu"
) -> Estimate:
    """All predictions for rows of a full context.  itemsize: bytes per number."""
    N, T = num_parameters(config), config.context_len
    return Estimate(
        parameters=N,
        flops_per_token=3 * forward_flops(config, T) // T,
        weight_bytes=N * itemsize,
        training_bytes=4 * N * itemsize,
        activation_bytes=activation_numbers(config, batch_size, T, recompute, backend) * itemsize,
        cache_bytes_per_token=2 * config.num_layers * config.kv_heads * config.head_size * itemsize,
    )


def num_parameters(config: ModelConfig) -> int:
    """Weights and biases; a tied head counts once."""
    V, C, L, F = config.vocab_size, config.channels, config.num_layers, config.ffn
    K = config.kv_heads * config.head_size
    if config.family == "gpt2":
        block = 2 * 2 * C + 4 * (C * C + C) + (F * C + F) + (C * F + C)
        ends = V * C + config.context_len * C + 2 * C
    else:
        block = 2 * C + 2 * C * C + 2 * K * C + 3 * F * C
        ends = V * C + C
    return L * block + ends + (0 if config.tied else V * C)


def forward_flops(config: ModelConfig, T: int) -> int:
    """Multiplications and additions of the matrix products for one row of T tokens.  The backward takes twice as many.

    A product of (m, k) and (k, n) is 2mkn.  Attention counts the full T x T scores, as the reference computes them.
    """
    V, C, L, F = config.vocab_size, config.channels, config.num_layers, config.ffn
    K = config.kv_heads * config.head_size
    num_wide = 2 if config.family == "gpt2" else 3
    per_token = L * (2 * C * C + 2 * K * C + num_wide * F * C) + V * C
    return 2 * T * per_token + L * 2 * (2 * T * T * C)


def activation_numbers(config: ModelConfig, B: int, T: int, recompute: bool = False, backend: str = "numpy") -> int:
    """Numbers that a backend keeps between forward and backward, B rows of T tokens, the logits left out.

    Per block and token, llama: both norms' inputs 2C, their outputs 2C, turned queries C, keys and values 2K, merged
    heads C, and in the reference probabilities HT, the angles 2D, and 4F in the feed-forward layer.  gpt2 keeps the
    norms' normalised inputs, no angles, and 3F.  The cpu backend keeps 2H instead of HT, no angles, and F less; its
    layer norms keep two numbers a row, not one.  With recomputation a block keeps its input C and one block is whole
    at a time.
    """
    C, H, F, D, L = config.channels, config.num_heads, config.ffn, config.head_size, config.num_layers
    K = config.kv_heads * D
    llama = config.family == "llama"
    if backend == "numpy":
        norm, inside = 1, H * T + (2 * D + 4 * F if llama else 3 * F)
    else:
        norm, inside = (1 if llama else 2), 2 * H + (3 * F if llama else 2 * F)
    block = 2 * (2 * C + norm) + C + 2 * K + C + inside
    kept = L * C + block if recompute else L * block
    return B * T * (kept + 2 * C + norm)
