"""Attention on a GPU (forward), a ladder of kernels: each file says what it changes and what that saves.

    naive           one thread for each query row; scores are computed twice and never stored
"""

from collections.abc import Callable

from gpu.array import Array
from gpu.attention.call import AttentionSaved
from gpu.attention import naive, tiled

RUNGS: dict[str, Callable[..., tuple[Array, AttentionSaved]]] = {"naive": naive.attention_forward, "tiled": tiled.attention_forward}
TOP_RUNG = "tiled"


def attention_forward(q: Array, k: Array, v: Array, segments: Array | None = None) -> tuple[Array, AttentionSaved]:
    """y = softmax(q k^T / sqrt(D) + mask) v, for each head, by the top rung; see `minillm.ops.attention_forward`."""
    return RUNGS[TOP_RUNG](q, k, v, segments)
