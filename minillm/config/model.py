"""The shape of a model."""

from dataclasses import dataclass, field
from typing import Any, Literal

from minillm.config.checks import check_at_least, check_choice
from minillm.config.rope import RopeScaling


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer: all that is needed to count, allocate and run its weights."""

    family: Literal["gpt2", "llama"] = "llama"
    """gpt2: layer norm, learned positions, GELU, biases.  llama: RMS norm, RoPE, SwiGLU, grouped heads."""
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
    head_channels: int | None = None
    """D: channels of a head; None: C/H.  Others need a projection from and to the stream that is not square (llama)."""
    ffn_channels: int | None = None
    """F: width inside the feed-forward layer; None: 4C for gpt2, 8C/3 rounded up to a multiple of 32 for llama."""
    norm_eps: float = 1e-5
    """Added to the variance (or mean square) before its root is taken."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies (llama)."""
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    """How they are stretched for longer contexts (llama)."""
    qkv_bias: bool = False
    """Queries, keys and values have biases, as in Qwen2 (llama; in gpt2 everything has)."""
    qk_norm: bool = False
    """Each head's queries and keys are normalised before they are turned, as in Qwen3 (llama)."""
    init_std: float = 0.02
    """Standard deviation of initial matrices; 0.02 in GPT-2 and Llama, whose C is many times larger than here."""
    embed_std: float | None = None
    """Standard deviation of the initial embedding; None: init_std.  Where it is large beside what the first layers add,
    a model sees from the first step on which tokens are the same, and learns in far fewer steps to look one up."""
    tied: bool = True
    """The output head is the embedding table itself."""
    dropout: float = 0.0
    """Probability of zeroing an element of the embedding and of each residual branch while training."""

    def __post_init__(self) -> None:
        check_choice("model.family", self.family, ("gpt2", "llama"))
        for name in ("vocab_size", "context_len", "num_layers", "num_heads", "channels"):
            check_at_least(f"model.{name}", getattr(self, name), 1)
        for name in ("num_kv_heads", "ffn_channels", "head_channels"):
            if getattr(self, name) is not None:
                check_at_least(f"model.{name}", getattr(self, name), 1)
        C, H = self.channels, self.num_heads
        if C % H and self.head_channels is None:
            nearest = max(H, round(C / H) * H)
            raise ValueError(f"channels must divide evenly among heads: {C} channels, {H} heads; try {nearest}")
        if H % self.kv_heads:
            raise ValueError(
                f"query heads must divide evenly among key/value heads: {H} heads, {self.kv_heads} key/value heads; "
                f"try {max(g for g in range(1, self.kv_heads + 1) if H % g == 0)} key/value heads"
            )
        if self.family == "gpt2" and self.kv_heads != H:
            raise ValueError(f"gpt2 has one key/value head per head: {H} heads, {self.kv_heads} key/value heads")
        self._check_family()
        if not 0 < self.norm_eps < float("inf"):
            raise ValueError(f"model.norm_eps must be positive: got {self.norm_eps}")
        if not self.init_std > 0:
            raise ValueError(f"model.init_std must be positive: got {self.init_std}")
        if self.embed_std is not None and not self.embed_std > 0:
            raise ValueError(f"model.embed_std must be positive: got {self.embed_std}")
        if not 0 < self.rope_theta < float("inf"):
            raise ValueError(f"model.rope_theta must be positive: got {self.rope_theta}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1): got {self.dropout}")

    def _check_family(self) -> None:
        scaling = self.rope_scaling
        if self.family == "gpt2":
            if self.head_channels or self.qkv_bias or self.qk_norm or scaling.kind != "none":
                raise ValueError("gpt2 has no head_channels, qkv_bias, qk_norm or rope_scaling of its own; llama has")
        elif self.head_size % 2:
            raise ValueError(
                f"rotary positions turn pairs of channels, so the head size must be even: {self.channels} channels / "
                f"{self.num_heads} heads = {self.head_size}; try {self.channels + self.num_heads} channels"
                if self.head_channels is None
                else f"rotary positions turn pairs of channels, so head_channels must be even: got {self.head_channels}"
            )
        elif scaling.factors and len(scaling.factors) != self.head_size // 2:
            raise ValueError(
                f"rope_scaling.factors must be one for each pair of a head's {self.head_size} channels: "
                f"got {len(scaling.factors)}"
            )

    @property
    def kv_heads(self) -> int:
        """G."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """D."""
        return self.channels // self.num_heads if self.head_channels is None else self.head_channels

    @property
    def query_channels(self) -> int:
        """H D: the heads side by side; C unless heads have a size of their own."""
        return self.num_heads * self.head_size

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
