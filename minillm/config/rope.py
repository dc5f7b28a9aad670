"""How the angles of rotary positions are stretched, so that a model reads longer texts than it was first trained on."""

from dataclasses import dataclass
from typing import Literal

from minillm.config.checks import check_at_least, check_choice


@dataclass(frozen=True)
class RopeScaling:
    """By how much each pair of channels turns more slowly; minillm/ops/rope.py has the formulas."""

    kind: Literal["none", "linear", "llama3", "factors"] = "none"
    """linear: all pairs by `factor`.  llama3: those that turn slowly, as Llama 3.1 does.  factors: each by its own."""
    factor: float = 1.0
    """linear: how much slower.  llama3: of the slowest pairs."""
    low_turns: float = 1.0
    """Pairs that turn less often within the first context are slowed down fully (llama3)."""
    high_turns: float = 4.0
    """Those that turn more often are left alone; in between, in between (llama3)."""
    first_context: int = 8192
    """The context before it was made longer, in tokens (llama3)."""
    factors: tuple[float, ...] = ()
    """One for each pair of a head's channels, D/2 (factors)."""

    def __post_init__(self) -> None:
        check_choice("rope_scaling.kind", self.kind, ("none", "linear", "llama3", "factors"))
        check_at_least("rope_scaling.first_context", self.first_context, 1)
        if not 0 < self.factor < float("inf") or not all(0 < f < float("inf") for f in self.factors):
            raise ValueError(f"rope_scaling: factors must be positive: got {self.factor} and {self.factors}")
        if not 0 < self.low_turns < self.high_turns < float("inf"):
            raise ValueError(
                f"rope_scaling: low_turns must be less than high_turns, both positive: got {self.low_turns}, "
                f"{self.high_turns}"
            )
        if bool(self.factors) != (self.kind == "factors"):
            raise ValueError(f"rope_scaling.factors go with the kind factors: got {self.kind}, {self.factors}")
