"""Optimizers on the flat vector: how gradients become steps."""

from minillm.optim.muon import muon, orthogonalize
from minillm.optim.optimizer import Optimizer, StepReport
from minillm.optim.schedule import learning_rate_factor

__all__ = ["Optimizer", "StepReport", "learning_rate_factor", "muon", "orthogonalize"]
