"""How a model's matrices become small integers."""

from dataclasses import dataclass
from typing import Literal

from minillm.config.checks import check_at_least, check_choice


@dataclass(frozen=True)
class QuantizeConfig:
    """Which integers, how their scales are chosen, and how errors are kept from mattering."""

    bits: Literal[4, 8] = 8
    """Of each weight.  The embedding and the head, which decide most, always have 8."""
    group: int = 0
    """Columns that share a scale, a multiple of 32 for speed; 0: a whole row."""
    symmetric: bool = True
    """The range reaches as far below zero as above; else from the least weight to the greatest."""
    range: Literal["absmax", "percentile", "mse"] = "absmax"
    """absmax: nothing is clipped.  percentile: the outermost weights are.  mse: so many as lessens squared error."""
    method: Literal["plain", "smoothquant", "awq", "gptq"] = "plain"
    """plain: each weight to the nearest integer.  smoothquant: columns are rescaled so that activations round well.
    awq: so that the weights that large activations meet do.  gptq: later columns make up for the errors of earlier."""
    activations: Literal["float", "int8", "int8-token"] = "int8"
    """What they multiply: float32, or integers of 8 bits with a step for each 64 channels, or for each token."""

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"quantize.bits must be 4 or 8: got {self.bits!r}")
        check_at_least("quantize.group", self.group, 0)
        check_choice("quantize.range", self.range, ("absmax", "percentile", "mse"))
        check_choice("quantize.method", self.method, ("plain", "smoothquant", "awq", "gptq"))
        check_choice("quantize.activations", self.activations, ("float", "int8", "int8-token"))
        if self.range != "absmax" and not self.symmetric:
            raise ValueError(f"quantize.range {self.range} clips both ends alike: it needs symmetric")
