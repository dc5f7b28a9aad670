"""How text is drawn from a model."""

from dataclasses import dataclass

from minillm.config.checks import check_at_least


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
