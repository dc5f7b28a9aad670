"""The transformer: embed | trunk | unembed, forward above backward (Radford et al. 2019; Touvron et al. 2023).

The three parts are separate so that a pipeline can put them on different machines.  The backward adds each gradient
into `grads`, a tree like the weights; a tied head is one array there under two names and receives both its parts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from minillm.model.block import block_backward, block_forward
from minillm.model.dropout import EMBEDDING, drop_backward, drop_forward
from minillm.model.norm import norm_backward, norm_forward
from minillm.tree import add_into


class EmbedSaved(NamedTuple):
    """What the embedding saved; positions is None in llama."""

    tokens: Any
    positions: Any
    drop: Any


class TransformerSaved(NamedTuple):
    """What the three parts saved; the hidden state between the last two, (B, T, C), only where the run keeps it."""

    embed: EmbedSaved
    blocks: list
    unembed: tuple
    hidden: Any


def no_callback(layer: int) -> None:
    """Nobody waits for a block's gradients."""


def embed_forward(ids, w, run):
    """x = embed[ids] (+ positions[position] in gpt2).  ids: (B, T)  ->  x: (B, T, C)."""
    x, tokens = run.ops.embedding_forward(ids, w.embed)
    positions = None
    if w.positions is not None:
        p, positions = run.ops.embedding_forward(run.positions, w.positions)
        x = run.ops.add(x, p)
    x, drop = drop_forward(x, 0, EMBEDDING, run)
    return x, EmbedSaved(tokens, positions, drop)


def embed_backward(dx, saved, grads, run):
    """Adds into grads.embed and grads.positions."""
    dx = drop_backward(dx, saved.drop, run)
    run.ops.add_into(grads.embed, run.ops.embedding_backward(dx, saved.tokens)[1])
    if saved.positions is not None:
        run.ops.add_into(grads.positions, run.ops.embedding_backward(dx, saved.positions)[1])


def trunk_forward(x, blocks, run):
    """All blocks in order.  x: (B, T, C).  With run.recompute, a block saves its input and weights alone."""
    saved = []
    for layer, w in enumerate(blocks):
        y, inside = block_forward(x, w, layer, run)
        saved.append((x, w) if run.recompute else inside)
        x = y
    return x, saved


def trunk_backward(dx, saved, grads, run, on_block: Callable[[int], None] = no_callback):
    """dx at the first block; adds into grads.blocks.  on_block(layer) runs as soon as a block's gradients are final."""
    for layer in reversed(range(len(saved))):
        inside = saved.pop()  # freed as we go
        if run.recompute:
            x, w = inside
            inside = block_forward(x, w, layer, run)[1]
        dx, dblock = block_backward(dx, inside, run)
        add_into(grads.blocks[layer], dblock, run.ops.add_into)
        on_block(layer)
    return dx


def unembed_forward(x, w, run):
    """logits = norm(x) head^T.  x: (B, T, C)  ->  logits: (B, T, V)."""
    x, norm = norm_forward(x, w.norm, run)
    logits, head = run.ops.linear_forward(x, w.head)
    return logits, (norm, head)


def unembed_backward(dlogits, saved, grads, run):
    """dx; adds into grads.norm and grads.head."""
    norm, head = saved
    dx, dhead, _ = run.ops.linear_backward(dlogits, head)
    run.ops.add_into(grads.head, dhead)
    dx, dnorm = norm_backward(dx, norm, run)
    add_into(grads.norm, dnorm, run.ops.add_into)
    return dx


def transformer_forward(ids, w, run):
    """ids: (B, T) integers in [0, V)  ->  logits: (B, T, V)."""
    if ids.shape != run.positions.shape:
        raise ValueError(f"one position per token: ids {ids.shape}, positions {run.positions.shape}")
    x, embed = embed_forward(ids, w, run)
    x, blocks = trunk_forward(x, w.blocks, run)
    logits, unembed = unembed_forward(x, w, run)
    return logits, TransformerSaved(embed, blocks, unembed, x if run.keep_hidden else None)


def transformer_backward(dlogits, saved, grads, run, on_block: Callable[[int], None] = no_callback, dhidden=None):
    """Adds the gradient of every weight into `grads`.  dlogits: (B, T, V).  Consumes `saved`.

    dhidden: (B, T, C), where a loss looks at the hidden state too, and not only by way of the logits.
    """
    dx = unembed_backward(dlogits, saved.unembed, grads, run)
    if dhidden is not None:
        dx = run.ops.add(dx, dhidden)
    dx = trunk_backward(dx, saved.blocks, grads, run, on_block)
    embed_backward(dx, saved.embed, grads, run)
