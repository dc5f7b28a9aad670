"""Causal attention with grouped heads (Vaswani et al. 2017, arXiv 1706.03762; Ainslie et al. 2023, arXiv 2305.13245).

Query i of T sees key j of S when  j <= i + (S - T)  (aligned at the end, so T new queries see all S - T older keys),
and, where segments are given, when both belong to the same one.  Packed documents are numbered 0, 1, 2, ...; padding
is -1 and neither sees nor is seen.  A query that sees nothing gives exactly 0, and its gradients are 0.
"""

from typing import NamedTuple

import numpy as np

from minillm.ops.softmax import softmax_backward, softmax_forward


class AttentionSaved(NamedTuple):
    """q: (B, G, H/G, T, D), k and v: (B, G, 1, S, D), probs: (B, G, H/G, T, S)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    probs: np.ndarray


def attention_forward(q, k, v, segments=None):
    """y = softmax(q k^T / sqrt(D) + mask) v, for each head.

    q, y: (B, T, H, D), k, v: (B, S, G, D) with G dividing H: query head h uses key/value head h // (H/G).
    segments: (B, S) integers, the document of each key; the last T of them are the queries'.  None: one document.
    """
    check_inputs(q, k, v, segments)
    (B, T, H, D), (_, S, G, _) = q.shape, k.shape
    q = q.reshape(B, T, G, H // G, D).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3)[:, :, None], v.transpose(0, 2, 1, 3)[:, :, None]
    scores = q @ k.swapaxes(-1, -2)  # (B, G, H/G, T, S)
    scores *= D**-0.5
    np.copyto(scores, -np.inf, where=~visible(T, S, segments))
    probs, _ = softmax_forward(scores)
    return _merge_heads(probs @ v), AttentionSaved(q, k, v, probs)


def attention_backward(dy, saved):
    """dv = P^T dy,  dS = softmax_backward(dy v^T),  dq = dS k / sqrt(D),  dk = dS^T q / sqrt(D).

    dy, dq: (B, T, H, D), dk, dv: (B, S, G, D), summed over the query heads that share them.
    """
    q, k, v, probs = saved
    B, G, group, T, D = q.shape
    dy = dy.reshape(B, T, G, group, D).transpose(0, 2, 3, 1, 4)
    dv = np.sum(probs.swapaxes(-1, -2) @ dy, axis=2, keepdims=True)
    dscores = softmax_backward(dy @ v.swapaxes(-1, -2), probs)
    dscores *= D**-0.5
    dk = np.sum(dscores.swapaxes(-1, -2) @ q, axis=2, keepdims=True)
    return _merge_heads(dscores @ k), _merge_heads(dk), _merge_heads(dv)


def visible(T, S, segments=None):
    """Which query sees which key: booleans that broadcast to (B, G, H/G, T, S)."""
    mask = np.tri(T, S, S - T, dtype=bool)[None, None, None]
    if segments is None:
        return mask
    key, query = segments[:, None, None, None, :], segments[:, None, None, S - T :, None]
    return mask & (key == query) & (key >= 0)


def _merge_heads(y):
    """(B, G, H/G, T, D) -> (B, T, H, D)."""
    B, G, group, T, D = y.shape
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2, 4)).reshape(B, T, G * group, D)


def check_inputs(q, k, v, segments):
    """Raise ValueError unless the shapes fit together."""
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"attention: q must be (B, T, H, D), k and v both (B, S, G, D): got q {q.shape}, k {k.shape}, v {v.shape}"
        )
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"attention: {q.shape[2]} query heads do not divide evenly among {k.shape[2]} key/value heads")
    if segments is not None and (segments.shape != k.shape[:2] or q.shape[1] > k.shape[1]):
        raise ValueError(
            f"attention: segments must be (B, S) = {k.shape[:2]} with no more queries than keys: "
            f"got {segments.shape} and {q.shape[1]} queries"
        )
