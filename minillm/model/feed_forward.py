"""The feed-forward layer: widen, apply the nonlinearity, narrow.  GELU in gpt2, a SiLU gate in llama."""

from typing import Any, NamedTuple

from minillm.model.linear import linear_backward, linear_forward
from minillm.tree import Tree


class FeedForwardSaved(NamedTuple):
    """What each op of the layer saved; gate is None in gpt2."""

    gate: Any
    up: Any
    activation: Any
    down: Any


def feed_forward_forward(x, w, run):
    """x, y: (B, T, C)."""
    up, saved_up = linear_forward(x, w.up, run)  # (B, T, F)
    if run.config.family == "llama":
        gate, saved_gate = linear_forward(x, w.gate, run)
        h, activation = run.ops.swiglu_forward(gate, up)
    else:
        saved_gate = None
        h, activation = run.ops.gelu_tanh_forward(up)
    y, down = linear_forward(h, w.down, run)
    return run.reduce(y), FeedForwardSaved(saved_gate, saved_up, activation, down)


def feed_forward_backward(dy, saved, run):
    """dx and the gradients of w."""
    dh, ddown = linear_backward(dy, saved.down, run)
    if run.config.family == "llama":
        dgate, dup = run.ops.swiglu_backward(dh, saved.activation)
        dx_gate, grads_gate = linear_backward(dgate, saved.gate, run)
        dx_up, grads_up = linear_backward(dup, saved.up, run)
        return run.reduce(run.ops.add(dx_gate, dx_up)), Tree(gate=grads_gate, up=grads_up, down=ddown)
    dup = run.ops.gelu_tanh_backward(dh, saved.activation)
    dx, grads_up = linear_backward(dup, saved.up, run)
    return run.reduce(dx), Tree(up=grads_up, down=ddown)
