"""Matching hidden states: the student is to think as its teacher does, seen through a learned projection.

    loss = mean over positions that count of  mean_c (h W^T - h_teacher)^2,   W: (C_t, C_s)

h and h_teacher are what the last block leaves, before the final norm (Romero et al. 2014, FitNets, arXiv 1412.6550, of
a layer in the middle).  W is trained with the student and saved beside it, but is no part of the model that comes out.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from minillm.model.model import Model
from minillm.ops.cross_entropy import IGNORE
from minillm.training.divergence import hidden_mse
from minillm.training.folder import PROJECTION
from minillm.tree import Tree


def with_projection(student: Model, teacher_channels: int, seed: int) -> Model:
    """The student, and W among what is trained.

    W begins as the identity where both have the same channels, so that a copy of the teacher has nothing to learn; else
    random, of a size that keeps that of h.
    """
    channels = student.config.channels
    weights = student.weights.with_array(PROJECTION, (teacher_channels, channels))
    noise = np.random.default_rng([seed, teacher_channels]).standard_normal((teacher_channels, channels))
    weights.tree[PROJECTION][...] = np.eye(channels) if channels == teacher_channels else noise / channels**0.5
    return replace(student, weights=weights)


def match(hidden: Any, teacher_hidden: Any, targets: np.ndarray, scale: float, weights: Tree,
          grads: Tree) -> tuple[float, Any]:  # fmt: skip
    """scale * the sum of the loss over the positions that count, and dhidden; adds dW into grads.

    hidden: (B, T, C_s), teacher_hidden: (B, T, C_t), targets: (B, T), IGNORE where a position does not count.
    """
    scored = targets != IGNORE
    loss, dh, dweight = hidden_mse(hidden[scored], weights[PROJECTION], teacher_hidden[scored], scale)
    grads[PROJECTION] += dweight
    dhidden = np.zeros_like(hidden)
    dhidden[scored] = dh
    return loss, dhidden
