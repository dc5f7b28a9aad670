"""The attention layer: project to heads, normalise them in some families, turn them by position, attend, project."""

from typing import Any, NamedTuple

from minillm.model.linear import linear_backward, linear_forward
from minillm.model.norm import norm_backward, norm_forward
from minillm.tree import Tree


class AttentionSaved(NamedTuple):
    """What each op of the layer saved; the norms None where the config has none."""

    query: Any
    key: Any
    value: Any
    norm_query: Any
    norm_key: Any
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
    norm_query = norm_key = None
    if run.config.qk_norm:
        q, norm_query = norm_forward(q, w.query_norm, run)
        k, norm_key = norm_forward(k, w.key_norm, run)
    q, rope_query = turn_forward(q, run)
    k, rope_key = turn_forward(k, run)
    y, attend = run.attend.forward(layer, q, k, v)
    y, output = linear_forward(y.reshape(B, T, -1), w.output, run)
    saved = AttentionSaved(query, key, value, norm_query, norm_key, rope_query, rope_key, attend, output)
    return run.reduce(y), saved


def attention_backward(dy, saved, run):
    """dx and the gradients of w."""
    B, T, _ = dy.shape
    D = run.config.head_size
    dy, doutput = linear_backward(dy, saved.output, run)
    dq, dk, dv = run.attend.backward(dy.reshape(B, T, -1, D), saved.attend)
    dk = turn_backward(dk, saved.rope_key, run)
    dq = turn_backward(dq, saved.rope_query, run)
    norms = {}
    if run.config.qk_norm:
        dk, norms["key_norm"] = norm_backward(dk, saved.norm_key, run)
        dq, norms["query_norm"] = norm_backward(dq, saved.norm_query, run)
    dq, dk, dv = (a.reshape(B, T, -1) for a in (dq, dk, dv))
    dx_value, dvalue = linear_backward(dv, saved.value, run)
    dx_key, dkey = linear_backward(dk, saved.key, run)
    dx_query, dquery = linear_backward(dq, saved.query, run)
    dx = run.reduce(run.ops.add(run.ops.add(dx_query, dx_key), dx_value))
    return dx, Tree(query=dquery, key=dkey, value=dvalue, output=doutput, **norms)


def turn_forward(x, run):
    """Rotate the heads by position where the family does so; else x itself."""
    if run.rope is None:
        return x, None
    return run.ops.rope_forward(x, run.positions, *run.rope)


def turn_backward(dy, saved, run):
    """dx."""
    return dy if run.rope is None else run.ops.rope_backward(dy, saved)
