"""Optimizers on the flat vector: how gradients become steps."""

from minillm.optim.adamw import adamw
from minillm.optim.clip import clip, gradient_norm
from minillm.optim.muon import muon, orthogonalize
from minillm.optim.optimizer import Optimizer, StepReport
from minillm.optim.schedule import learning_rate_factor

__all__ = ["Optimizer", "StepReport", "adamw", "clip", "gradient_norm", "learning_rate_factor", "muon", "orthogonalize"]
