"""The transformer block: x + attention(norm(x)), then x + feed_forward(norm(x)); backward is that read upwards."""

from typing import Any, NamedTuple

from minillm.model.attention import AttentionSaved, attention_backward, attention_forward
from minillm.model.dropout import ATTENTION, FEED_FORWARD, drop_backward, drop_forward
from minillm.model.feed_forward import FeedForwardSaved, feed_forward_backward, feed_forward_forward
from minillm.model.norm import norm_backward, norm_forward
from minillm.tree import Tree


class BlockSaved(NamedTuple):
    """What each part of the block saved."""

    norm1: Any
    attention: AttentionSaved
    drop1: Any
    norm2: Any
    mlp: FeedForwardSaved
    drop2: Any


def block_forward(x, w, layer, run):
    """x, y: (B, T, C)."""
    h, norm1 = norm_forward(x, w.norm1, run)
    a, attention = attention_forward(h, w.attention, layer, run)
    a, drop1 = drop_forward(a, layer, ATTENTION, run)
    x = run.ops.add(x, a)
    h, norm2 = norm_forward(x, w.norm2, run)
    m, mlp = feed_forward_forward(h, w.mlp, run)
    m, drop2 = drop_forward(m, layer, FEED_FORWARD, run)
    return run.ops.add(x, m), BlockSaved(norm1, attention, drop1, norm2, mlp, drop2)


def block_backward(dy, saved, run):
    """dx and the gradients of w."""
    dm = drop_backward(dy, saved.drop2, run)
    dh, dmlp = feed_forward_backward(dm, saved.mlp, run)
    dx, dnorm2 = norm_backward(dh, saved.norm2, run)
    dx = run.ops.add(dy, dx)  # the residual path and the branch
    da = drop_backward(dx, saved.drop1, run)
    dh, dattention = attention_backward(da, saved.attention, run)
    dx_branch, dnorm1 = norm_backward(dh, saved.norm1, run)
    return run.ops.add(dx, dx_branch), Tree(norm1=dnorm1, attention=dattention, norm2=dnorm2, mlp=dmlp)
