"""The parts of minillm/cpu/decode.py: a thread's share of one product, one norm, one attention, for B rows.

Weights are named by where they begin in the model's one vector; a pair of places is a weight and its bias, -1 where
there is none.
"""

import numpy as np

from minillm.cpu.dots import few_rows
from minillm.cpu.gelu import probability
from minillm.cpu.jit import inline, kernel
from minillm.cpu.paged_attention import look_back
from minillm.cpu.scalar import sigmoid

ZERO, ONE = np.float32(0), np.float32(1)


@inline
def share(count, rank, size):
    """The range of `count` outputs that thread `rank` of `size` computes."""
    return count * rank // size, count * (rank + 1) // size


@kernel
def multiply(x, vector, places, O, first, last, add, out, shift):
    """out[:, shift + o] (+)= x W[o] + bias[o] for o in [first, last).  x: (B, I), W: (O, I) in `vector`."""
    B, I = x.shape
    few_rows(x, vector[places[0] : places[0] + O * I].reshape(O, I), first, last, add, out[:, shift:])
    if places[1] >= 0:
        for b in range(B):
            for o in range(first, last):
                out[b, shift + o] += vector[places[1] + o]


@kernel
def normalise(x, vector, places, eps, out):
    """RMS norm, or layer norm where there is a bias.  Every thread does it all, for itself: it is little."""
    B, C = x.shape
    weight = vector[places[0] : places[0] + C]
    share_of_one = ONE / np.float32(C)
    for b in range(B):
        row, mean, squares = x[b], ZERO, ZERO
        if places[1] >= 0:
            for c in range(C):
                mean += row[c]
            mean *= share_of_one
        for c in range(C):
            squares += (row[c] - mean) * (row[c] - mean)
        rstd = ONE / np.sqrt(squares * share_of_one + eps)
        for c in range(C):
            out[b, c] = (row[c] - mean) * rstd * weight[c]
        if places[1] >= 0:
            bias = vector[places[1] : places[1] + C]
            for c in range(C):
                out[b, c] += bias[c]


@kernel
def attend(rank, size, x, vector, places, H, G, D, positions, cos, sin, keys, values, tables, firsts, lasts, sinks,
           qkv, scores, y):  # fmt: skip
    """y = attention for this thread's key/value heads and the query heads that share them; fills their cache slots.

    Rows go in order, so that one of them may look back at another: several tokens of the same text.
    """
    group, begin, end = H // G, G * rank // size, G * (rank + 1) // size
    multiply(x, vector, places[0:2], H * D, begin * group * D, end * group * D, False, qkv, 0)
    multiply(x, vector, places[2:4], G * D, begin * D, end * D, False, qkv, H * D)
    multiply(x, vector, places[4:6], G * D, begin * D, end * D, False, qkv, (H + G) * D)
    look(begin, end, H, G, D, positions, cos, sin, keys, values, tables, firsts, lasts, sinks, qkv, scores, y)


@kernel
def look(begin, end, H, G, D, positions, cos, sin, keys, values, tables, firsts, lasts, sinks, qkv, scores, y):
    """The end of `attend`, for the key/value heads in [begin, end), whose products are in qkv."""
    group, P = H // G, keys.shape[1]
    for b in range(len(qkv)):
        page, slot = tables[b, lasts[b] // P], lasts[b] % P
        for g in range(begin, end):
            key, value = qkv[b, (H + g) * D : (H + g + 1) * D], qkv[b, (H + G + g) * D : (H + G + g + 1) * D]
            if cos.size:
                _turn(key, cos[positions[b]], sin[positions[b]])
            keys[page, slot, g], values[page, slot, g] = key, value
            for h in range(g * group, (g + 1) * group):
                query = qkv[b, h * D : (h + 1) * D]
                if cos.size:
                    _turn(query, cos[positions[b]], sin[positions[b]])
                look_back(
                    query, keys, values, g, tables[b], firsts[b], lasts[b], sinks, scores, y[b, h * D : (h + 1) * D]
                )


@kernel
def _turn(x, cos, sin):
    """Rotate a head in place: see minillm/ops/rope.py."""
    half = x.size // 2
    for d in range(half):
        a, b = x[d], x[half + d]
        x[d], x[half + d] = a * cos[d] - b * sin[d], b * cos[d] + a * sin[d]


@kernel
def feed(rank, size, x, vector, places, F, up, gate):
    """This thread's share of the wide layer, activation included; places: gate (or -1) and up."""
    first, last = share(F, rank, size)
    multiply(x, vector, places[2:4], F, first, last, False, up, 0)
    if places[0] >= 0:
        multiply(x, vector, places[0:2], F, first, last, False, gate, 0)
    activate(first, last, places[0] >= 0, up, gate)


@kernel
def activate(first, last, gated, up, gate):
    """up[:, f] for f in [first, last) becomes what the wide layer says: SwiGLU where there are gates, else GELU."""
    for b in range(len(up)):
        for f in range(first, last):
            up[b, f] *= gate[b, f] * sigmoid(gate[b, f]) if gated else probability(up[b, f])
