"""The attention layer: project to heads, turn them by position, attend, project back."""

from typing import Any, NamedTuple

from minillm.model.linear import linear_backward, linear_forward
from minillm.tree import Tree


class AttentionSaved(NamedTuple):
    """What each op of the layer saved."""

    query: Any
    key: Any
    value: Any
    rope_query: Any
    rope_key: Any
    attend: Any
    output: Any


def attention_forward(x, w, layer, run):
    """x, y: (B, T, C)."""
    B, T, _ = x.shape
    D = run.config.head_size
    q, query = linear_forward(x, w.query, run)
    k, key = linear_forward(x, w.key, run)
    v, value = linear_forward(x, w.value, run)
    q, k, v = (a.reshape(B, T, -1, D) for a in (q, k, v))  # (B, T, H, D), (B, T, G, D) twice
    q, rope_query = turn_forward(q, run)
    k, rope_key = turn_forward(k, run)
    y, attend = run.attend.forward(layer, q, k, v)
    y, output = linear_forward(y.reshape(B, T, -1), w.output, run)
    return run.reduce(y), AttentionSaved(query, key, value, rope_query, rope_key, attend, output)


def attention_backward(dy, saved, run):
    """dx and the gradients of w."""
    B, T, _ = dy.shape
    D = run.config.head_size
    dy, doutput = linear_backward(dy, saved.output, run)
    dq, dk, dv = run.attend.backward(dy.reshape(B, T, -1, D), saved.attend)
    dk = turn_backward(dk, saved.rope_key, run)
    dq = turn_backward(dq, saved.rope_query, run)
    dq, dk, dv = (a.reshape(B, T, -1) for a in (dq, dk, dv))
    dx_value, dvalue = linear_backward(dv, saved.value, run)
    dx_key, dkey = linear_backward(dk, saved.key, run)
    dx_query, dquery = linear_backward(dq, saved.query, run)
    dx = run.reduce(run.ops.add(run.ops.add(dx_query, dx_key), dx_value))
    return dx, Tree(query=dquery, key=dkey, value=dvalue, output=doutput)


def turn_forward(x, run):
    """Rotate the heads by position where the family does so; else x itself."""
    if run.rope is None:
        return x, None
    return run.ops.rope_forward(x, run.positions, *run.rope)


def turn_backward(dy, saved, run):
    """dx."""
    return dy if run.rope is None else run.ops.rope_backward(dy, saved)
