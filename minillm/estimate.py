"""Parameters, FLOPs and bytes, predicted from the config alone."""

from dataclasses import dataclass

from minillm.config import LoraConfig, ModelConfig

FULL = LoraConfig(rank=0)
"""No adapters: every weight learns."""


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


@dataclass(frozen=True)
class TuningEstimate:
    """What fine-tuning costs: all weights of a model, or adapters beside frozen ones."""

    trained: int
    """Parameters that learn."""
    weight_bytes: int
    """Of all weights, frozen ones too."""
    gradient_bytes: int
    """Of one gradient; each micro-batch of a step has one."""
    moment_bytes: int
    """What the optimizer remembers."""
    flops_per_token: int
    """Forward and backward, at full context."""

    @property
    def state_bytes(self) -> int:
        """What is held between steps: weights, a gradient and moments."""
        return self.weight_bytes + self.gradient_bytes + self.moment_bytes


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


def tuning_estimate(
    config: ModelConfig, lora: LoraConfig, optimizer: str = "adamw", itemsize: int = 4
) -> TuningEstimate:
    """Of fine-tuning by adapters, or fully where lora.rank is 0.

    AdamW remembers two numbers a parameter.  Muon, which moves the matrices inside blocks, one of theirs.
    """
    N, T = num_parameters(config), config.context_len
    trained = num_adapter_parameters(config, lora) if lora.rank else N
    by_muon = trained if lora.rank else config.num_layers * _matrix_numbers(config)
    return TuningEstimate(
        trained=trained,
        weight_bytes=(N + trained if lora.rank else N) * itemsize,
        gradient_bytes=trained * itemsize,
        moment_bytes=(2 * trained - (by_muon if optimizer == "muon" else 0)) * itemsize,
        flops_per_token=tuning_flops(config, lora, T) // T,
    )


def num_parameters(config: ModelConfig) -> int:
    """Weights and biases; a tied head counts once."""
    V, C, L, F = config.vocab_size, config.channels, config.num_layers, config.ffn
    Q, K = config.query_channels, config.kv_heads * config.head_size
    if config.family == "gpt2":
        block = 2 * 2 * C + 4 * (C * C + C) + (F * C + F) + (C * F + C)
        ends = V * C + config.context_len * C + 2 * C
    else:
        block = 2 * C + 2 * Q * C + 2 * K * C + 3 * F * C
        block += (Q + 2 * K if config.qkv_bias else 0) + (2 * config.head_size if config.qk_norm else 0)
        ends = V * C + C
    return L * block + ends + (0 if config.tied else V * C)


def num_adapter_parameters(config: ModelConfig, lora: LoraConfig) -> int:
    """A (R, I) and B (O, R) for every adapted matrix (O, I)."""
    adapted = [shape for name, shape in block_matrices(config).items() if name in lora.matrices]
    return config.num_layers * lora.rank * sum(O + I for O, I in adapted)


def block_matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """The shape (O, I) of every matrix of a block."""
    C, F, Q, K = config.channels, config.ffn, config.query_channels, config.kv_heads * config.head_size
    gate = {} if config.family == "gpt2" else {"gate": (F, C)}
    return {"query": (Q, C), "key": (K, C), "value": (K, C), "output": (C, Q), **gate, "up": (F, C), "down": (C, F)}


def forward_flops(config: ModelConfig, T: int) -> int:
    """Multiplications and additions of the matrix products for one row of T tokens.  The backward takes twice as many.

    A product of (m, k) and (k, n) is 2mkn.  Attention counts the full T x T scores, as the reference computes them.
    """
    V, C, L = config.vocab_size, config.channels, config.num_layers
    return 2 * T * (L * _matrix_numbers(config) + V * C) + L * 2 * (2 * T * T * config.query_channels)


def tuning_flops(config: ModelConfig, lora: LoraConfig, T: int) -> int:
    """Forward and backward for one row of T tokens; 2T FLOPs for every number of a matrix it is multiplied by.

    Fully: 3 times the forward.  With adapters frozen matrices get no gradient of their own, a third of their part;
    A and B cost three products each, like any matrix that learns.
    """
    forward = forward_flops(config, T)
    if lora.rank == 0:
        return 3 * forward
    frozen = config.num_layers * _matrix_numbers(config) + config.vocab_size * config.channels
    return 3 * forward - 2 * T * frozen + 3 * 2 * T * num_adapter_parameters(config, lora)


def _matrix_numbers(config: ModelConfig) -> int:
    """Of one block."""
    return sum(O * I for O, I in block_matrices(config).values())


def activation_numbers(config: ModelConfig, B: int, T: int, recompute: bool = False, backend: str = "numpy",
                       lora: LoraConfig = FULL) -> int:  # fmt: skip
    """Numbers that a backend keeps between forward and backward, B rows of T tokens, the logits left out.

    Per block and token, llama: both norms' inputs 2C, their outputs 2C, turned queries Q, keys and values 2K, merged
    heads Q, and in the reference probabilities HT, the angles 2D, and 4F in the feed-forward layer.  gpt2 keeps the
    norms' normalised inputs, no angles, and 3F.  Normalised heads keep what they were, Q + K.  The cpu backend keeps 2H
    instead of HT, no angles, and F less; its layer norms keep two numbers a row, not one.  With recomputation a block
    keeps its input C and one block is whole at a time.

    A frozen matrix keeps no input, so one that no adapter reads and no other op keeps is gone; an adapter keeps R.
    With dropout each has an input of its own, whose mask, a byte each, is left out here.
    """
    C, H, F, D, L = config.channels, config.num_heads, config.ffn, config.head_size, config.num_layers
    Q, K = config.query_channels, config.kv_heads * D
    llama = config.family == "llama"
    if backend == "numpy":
        norm, inside = 1, H * T + (2 * D + 4 * F if llama else 3 * F)
    else:
        norm, inside = (1 if llama else 2), 2 * H + (3 * F if llama else 2 * F)
    block = 2 * (2 * C + norm) + Q + 2 * K + Q + inside
    block += Q + K + H + config.kv_heads if config.qk_norm else 0
    ends = 2 * C + norm
    if lora.rank:
        block += _adapter_numbers(config, lora, backend)
        ends -= C  # the head's input
    kept = L * C + block if recompute else L * block
    return B * T * (kept + ends)


def _adapter_numbers(config: ModelConfig, lora: LoraConfig, backend: str) -> int:
    """What adapters keep of a token and block, less what is kept no longer because its readers are frozen."""
    matrices = {name: shape for name, shape in block_matrices(config).items() if name in lora.matrices}
    inputs = {name: I for name, (_, I) in matrices.items()}
    shared = [("query", "key", "value"), ("gate", "up"), ("down",)]
    if backend == "numpy":
        shared.append(("output",))  # elsewhere attention itself keeps its result
    gone = [readers for readers in shared if lora.dropout or not any(name in inputs for name in readers)]
    own = sum(inputs.values()) if lora.dropout else 0
    return lora.rank * len(inputs) + own - sum(block_matrices(config)[readers[-1]][1] for readers in gone)
