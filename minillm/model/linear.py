"""A linear layer of the model: its weights are a node with `weight` and `bias` (None where the family has none)."""

from minillm.tree import Tree


def linear_forward(x, w, run):
    """x: (..., I) -> (..., O)."""
    return run.ops.linear_forward(x, w.weight, w.bias)


def linear_backward(dy, saved, run):
    """dx and the gradients of w."""
    dx, dweight, dbias = run.ops.linear_backward(dy, saved)
    return dx, Tree(weight=dweight, bias=dbias)
