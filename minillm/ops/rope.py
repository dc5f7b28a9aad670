"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), half-split pairs.

Channel d of a head is paired with channel d + D/2 and the pair is turned by position * theta^(-2d/D), so the dot
product of a query and a key depends on their distance alone.  Checkpoints in the interleaved convention pair channel
2d with 2d + 1 instead; `half_split_from_interleaved` reorders the output rows of their query and key weights once.
"""

import numpy as np

from minillm.ops.check_inputs import ids_in_range, last_axis


def rope_tables(num_positions, D, theta=10_000.0, dtype=np.float32, factors=1):
    """cos and sin of every angle, each (num_positions, D/2); computed in float64, then rounded to dtype.

    Pair d of the channels turns by theta^(-2d/D) / factors[d] from one position to the next.
    """
    if D % 2:
        raise ValueError(f"rope: the head size must be even, its channels turn in pairs: got {D}")
    angles = np.arange(num_positions)[:, None] * (theta ** (-np.arange(0, D, 2) / D) / factors)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def llama3_factors(D, theta, factor, low_turns, high_turns, first_context):
    """1 / (s + (1 - s) / factor),  s = (turns - low) / (high - low) within [0, 1]  ->  (D/2,), for `rope_tables`.

    A pair that turned often within the context of the first training has told near positions apart, and is left as it
    is; one that hardly turned would meet angles it never saw, and is slowed down (Llama 3.1, arXiv 2407.21783).
    """
    turns = first_context * theta ** (-np.arange(0, D, 2) / D) / (2 * np.pi)
    s = np.clip((turns - low_turns) / (high_turns - low_turns), 0, 1)
    return 1 / (s + (1 - s) / factor)


def rope_forward(x, positions, cos, sin):
    """y = [a cos - b sin, b cos + a sin],  x = [a, b] in halves, each row turned by its position's angles.

    x, y: (B, T, H, D), positions: (B, T) integers in [0, rows of the tables), cos, sin: (rows, D/2).
    """
    last_axis("rope", "x", x, 2 * cos.shape[1], f"the table {cos.shape}")
    ids_in_range("rope", "positions", positions, cos.shape[0])
    cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]  # (B, T, 1, D/2)
    return _turn(x, cos, sin), (cos, sin)


def rope_backward(dy, saved):
    """dx: the rotation undone, since the transpose of a rotation turns the other way.  dx: (B, T, H, D)."""
    cos, sin = saved
    return _turn(dy, cos, -sin)


def half_split_from_interleaved(rows):
    """Reorder a head's rows (D, ...) from pairs (2d, 2d+1) to pairs (d, d + D/2); q and k reordered alike agree."""
    return np.concatenate([rows[0::2], rows[1::2]])


def interleaved_from_half_split(rows):
    """The inverse of `half_split_from_interleaved`."""
    return np.stack(np.split(rows, 2), axis=1).reshape(rows.shape)


def _turn(x, cos, sin):
    a, b = np.split(x, 2, axis=-1)
    y = np.empty_like(x)
    half = a.shape[-1]
    y[..., :half] = a * cos - b * sin
    y[..., half:] = b * cos + a * sin
    return y
