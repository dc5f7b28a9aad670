"""Every setting of the project, as frozen dataclasses; and the letters that name shapes everywhere.

    B batch    T query time    S key time    C channels    H heads    G key/value heads    D head size
    F feed-forward channels    V vocabulary    L layers    R rank    P page

Each class checks itself when it is made, so a wrong setting fails before any work is done.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer: all that is needed to count, allocate and run its weights."""

    family: Literal["gpt2", "llama"] = "llama"
    """gpt2: layer norm, learned positions, GELU, biases.  llama: RMS norm, RoPE, SwiGLU, grouped heads, no biases."""
    vocab_size: int = 1024
    """V: number of token ids, special tokens included.  A training run takes it from its tokenizer."""
    context_len: int = 256
    """The longest sequence, in tokens."""
    num_layers: int = 4
    """L: number of blocks."""
    num_heads: int = 4
    """H: number of query heads."""
    num_kv_heads: int | None = None
    """G: number of key/value heads, each shared by H/G query heads (grouped-query attention); None: as many as H."""
    channels: int = 128
    """C: width of the residual stream."""
    ffn_channels: int | None = None
    """F: width inside the feed-forward layer; None: 4C for gpt2, 8C/3 rounded up to a multiple of 32 for llama."""
    norm_eps: float = 1e-5
    """Added to the variance (or mean square) before its root is taken."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies (llama)."""
    init_std: float = 0.02
    """Standard deviation of initial matrices; 0.02 in GPT-2 and Llama, whose C is many times larger than here."""
    tied: bool = True
    """The output head is the embedding table itself."""
    dropout: float = 0.0
    """Probability of zeroing an element of the embedding and of each residual branch while training."""

    def __post_init__(self) -> None:
        check_choice("model.family", self.family, ("gpt2", "llama"))
        for name in ("vocab_size", "context_len", "num_layers", "num_heads", "channels"):
            check_at_least(f"model.{name}", getattr(self, name), 1)
        for name in ("num_kv_heads", "ffn_channels"):
            if getattr(self, name) is not None:
                check_at_least(f"model.{name}", getattr(self, name), 1)
        C, H = self.channels, self.num_heads
        if C % H:
            nearest = max(H, round(C / H) * H)
            raise ValueError(f"channels must divide evenly among heads: {C} channels, {H} heads; try {nearest}")
        if H % self.kv_heads:
            raise ValueError(
                f"query heads must divide evenly among key/value heads: {H} heads, {self.kv_heads} key/value heads; "
                f"try {max(g for g in range(1, self.kv_heads + 1) if H % g == 0)} key/value heads"
            )
        if self.family == "gpt2" and self.kv_heads != H:
            raise ValueError(f"gpt2 has one key/value head per head: {H} heads, {self.kv_heads} key/value heads")
        if self.family == "llama" and self.head_size % 2:
            raise ValueError(
                f"rotary positions turn pairs of channels, so the head size must be even: {C} channels / {H} heads = "
                f"{self.head_size}; try {C + H} channels"
            )
        if not self.norm_eps > 0:
            raise ValueError(f"model.norm_eps must be positive: got {self.norm_eps}")
        if not self.init_std > 0:
            raise ValueError(f"model.init_std must be positive: got {self.init_std}")
        if not self.rope_theta > 0:
            raise ValueError(f"model.rope_theta must be positive: got {self.rope_theta}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1): got {self.dropout}")

    @property
    def kv_heads(self) -> int:
        """G."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """D."""
        return self.channels // self.num_heads

    @property
    def ffn(self) -> int:
        """F."""
        if self.ffn_channels is not None:
            return self.ffn_channels
        return 4 * self.channels if self.family == "gpt2" else -(-8 * self.channels // 96) * 32

    @classmethod
    def of_depth(cls, depth: int, **rest: Any) -> "ModelConfig":
        """The one dial: `depth` layers, `depth` heads of 32 channels each.  Anything in `rest` overrides."""
        check_at_least("depth", depth, 1)
        return cls(**{"num_layers": depth, "num_heads": depth, "channels": 32 * depth} | rest)


@dataclass(frozen=True)
class DataConfig:
    """Which text to learn from and how to cut it into tokens."""

    source: str = "tales"
    """tales: generated children's stories.  stdlib: the source of the running Python.  Else: a file or folder."""
    num_stories: int = 20_000
    """How many stories to write (tales only)."""
    vocab_size: int = 1024
    """Size of the tokenizer's vocabulary: 256 bytes, the merges, three special tokens."""
    pattern: str = "gpt2"
    """How text is split before merging: gpt2, cl100k, or a regular expression."""
    val_fraction: float = 0.05
    """Share of the documents that is kept for validation, at least one document."""
    seed: int = 0
    """Chooses the stories and which documents validate."""

    def __post_init__(self) -> None:
        check_at_least("data.num_stories", self.num_stories, 2)
        check_at_least("data.vocab_size", self.vocab_size, 259)
        check_at_least("data.seed", self.seed, 0)
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"data.val_fraction must be between 0 and 1, exclusive: got {self.val_fraction}")


@dataclass(frozen=True)
class OptimConfig:
    """How gradients become steps."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw: for every parameter.  muon: for the matrices inside blocks, adamw for the rest."""
    learning_rate: float = 3e-3
    """Peak learning rate of AdamW."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of Muon."""
    beta1: float = 0.9
    """Decay of the running mean of gradients."""
    beta2: float = 0.95
    """Decay of the running mean of squared gradients."""
    eps: float = 1e-8
    """Keeps AdamW's division finite."""
    weight_decay: float = 0.1
    """Decoupled decay of the matrices; biases and norm weights never decay."""
    clip_norm: float = 1.0
    """Gradients longer than this are scaled down to it; 0: never."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """cosine: warm-up then half a cosine.  wsd: warm-up, stable, then linear decay."""
    warmup_steps: int = 50
    """Steps of linear warm-up; the first step has a positive rate already."""
    decay_fraction: float = 0.2
    """Share of the steps that decay (wsd)."""
    final_fraction: float = 0.1
    """Learning rate at the end, as a share of the peak."""

    def __post_init__(self) -> None:
        check_choice("optim.optimizer", self.optimizer, ("adamw", "muon"))
        check_choice("optim.schedule", self.schedule, ("cosine", "wsd"))
        check_at_least("optim.warmup_steps", self.warmup_steps, 0)
        for name in ("learning_rate", "muon_learning_rate", "weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"optim.{name} must not be negative: got {getattr(self, name)}")
        if not self.eps > 0:
            raise ValueError(f"optim.eps must be positive: got {self.eps}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optim.{name} must be in [0, 1): got {getattr(self, name)}")
        for name in ("decay_fraction", "final_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"optim.{name} must be in [0, 1]: got {getattr(self, name)}")


@dataclass(frozen=True)
class LoopConfig:
    """What every training run has, whatever it trains on: its length, its pace and where it goes."""

    run: Path = Path("runs/train")
    """Folder of the run: settings, tokens, checkpoint, metrics, plots."""
    steps: int = 1000
    """Number of optimizer steps."""
    batch_size: int = 16
    """Rows per step."""
    micro_batch_size: int = 4
    """B: rows that run through the model together.  A step's micro-batches add up, every token weighing the same."""
    threads: int = 0
    """Micro-batches that run at the same time; 0: one per core.  The result does not depend on it."""
    seed: int = 0
    """Chooses initial weights, the order of the data and dropout masks."""
    eval_every: int = 100
    """Steps between validations; 0: only at the end."""
    eval_tokens: int = 20_000
    """About how many validation tokens to score each time (all of them at the end)."""
    sample_every: int = 200
    """Steps between printed samples; 0: never."""
    save_every: int = 200
    """Steps between checkpoints; 0: only at the end."""
    recompute: bool = False
    """Keep only each block's input and run the block again in the backward pass: less memory, more time."""
    backend: Literal["numpy", "cpu"] = "cpu"
    """Which implementation of the ops runs."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "micro_batch_size", "eval_tokens"):
            check_at_least(f"train.{name}", getattr(self, name), 1)
        for name in ("seed", "threads", "eval_every", "sample_every", "save_every"):
            check_at_least(f"train.{name}", getattr(self, name), 0)
        check_choice("train.backend", self.backend, ("numpy", "cpu"))


@dataclass(frozen=True)
class TrainConfig(LoopConfig):
    """A pretraining run: everything that decides what comes out."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class SFTConfig(LoopConfig):
    """Supervised fine-tuning: teach a pretrained model to answer, by conversations."""

    run: Path = Path("runs/sft")
    """Folder of the new run."""
    base: Path = Path("runs/train")
    """Folder of the run whose model is taught; it is not changed."""
    data: str = "tasks"
    """tasks: generated questions with exact answers.  Else: a file of conversations, JSON Lines."""
    num_conversations: int = 20_000
    """How many conversations to generate (tasks only)."""
    val_fraction: float = 0.05
    """Share of the conversations of a file that is kept for validation, at least one."""
    num_val: int = 200
    """How many conversations to validate on, at most."""
    last_only: bool = False
    """Teach the last answer of a conversation alone, not every answer."""
    packing: bool = True
    """Several conversations to a row, none seeing another; else one to a row, and padding."""
    too_long: Literal["error", "truncate", "drop"] = "error"
    """What to do with a conversation that is longer than the context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("sft.num_conversations", self.num_conversations, 1)
        check_at_least("sft.num_val", self.num_val, 1)
        check_choice("sft.too_long", self.too_long, ("error", "truncate", "drop"))
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"sft.val_fraction must be between 0 and 1, exclusive: got {self.val_fraction}")


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is chosen, and when to stop."""

    temperature: float = 0.8
    """Divides the logits: below 1 sharper, above 1 flatter; 0: always the most likely token."""
    top_k: int = 0
    """Keep only the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities reach p (nucleus sampling); 1: all."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the most likely one; 0: all."""
    repetition_penalty: float = 1.0
    """Makes tokens already in the text less likely: positive logits are divided by it, negative ones multiplied."""
    max_tokens: int = 200
    """Stop after this many new tokens (or when the context is full)."""
    stop: tuple[str, ...] = ()
    """Stop before any of these strings would appear."""
    seed: int | None = None
    """Chooses the draws; prompt i of a call draws from (seed, i).  None: different every time."""

    def __post_init__(self) -> None:
        check_at_least("sampling.top_k", self.top_k, 0)
        check_at_least("sampling.max_tokens", self.max_tokens, 0)
        if self.seed is not None:
            check_at_least("sampling.seed", self.seed, 0)
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"sampling.temperature must be 0 (greedy) or positive and finite: got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p must be in (0, 1], 1 keeps every token: got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"sampling.min_p must be in [0, 1]: got {self.min_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"sampling.repetition_penalty must be positive: got {self.repetition_penalty}")
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"sampling.stop must be non-empty strings: got {self.stop!r}")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}: got {value!r}")


def check_at_least(name: str, value: int, least: int) -> None:
    """Raise ValueError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}: got {value!r}")
