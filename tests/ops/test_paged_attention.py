"""Attention over pages: as attention over the same keys in one piece, whatever the pages, windows and neighbours."""

import numpy as np
import pytest

from minillm import backend
from minillm.ops import attention_forward

D, G, H = 8, 2, 6
SEQUENCES = {"decodes": [(1, 1), (1, 9), (1, 40)], "chunks": [(5, 5), (20, 33)], "mixed": [(1, 17), (12, 12), (3, 30)]}


def paged(sequences, P, dtype, seed=0):
    """q, keys, values, tables, starts, lengths of sequences of (new, all) tokens; and k and v of each in one piece."""
    r = np.random.default_rng(seed)
    counts, lengths = np.array(sequences).T
    M = -(-lengths // P)
    free = iter(r.permutation(M.sum() + 3))
    tables = np.full((len(sequences), M.max()), -1)
    keys, values = np.full((2, M.sum() + 3, P, G, D), np.nan, dtype)  # what nobody wrote must not be read
    pieces = []
    for b, S in enumerate(lengths):
        tables[b, : M[b]] = [next(free) for _ in range(M[b])]
        k, v = r.standard_normal((2, S, G, D)).astype(dtype)
        for s in range(S):
            keys[tables[b, s // P], s % P], values[tables[b, s // P], s % P] = k[s], v[s]
        pieces.append((k, v))
    q = r.standard_normal((counts.sum(), H, D)).astype(dtype)
    return (q, keys, values, tables, np.r_[0, np.cumsum(counts)], lengths), pieces


@pytest.mark.parametrize("P", [1, 4, 16])
@pytest.mark.parametrize("name", SEQUENCES)
def test_pages_change_nothing(name, P):
    inputs, pieces = paged(SEQUENCES[name], P, np.float64)
    q, starts = inputs[0], inputs[4]
    y = backend.load("numpy").paged_attention(*inputs)
    for b, (k, v) in enumerate(pieces):
        own = slice(starts[b], starts[b + 1])
        np.testing.assert_array_equal(y[own], attention_forward(q[None, own], k[None], v[None])[0][0])


@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (4, 0), (4, 2), (7, 3), (100, 4)])
def test_a_window_hides_all_but_the_last_and_the_sinks(window, sinks):
    (q, *rest), pieces = paged(SEQUENCES["mixed"], 4, np.float64)
    y = backend.load("numpy").paged_attention(q, *rest, window, sinks)
    starts, lengths = rest[3:]
    for b, (k, v) in enumerate(pieces):
        S, T = lengths[b], starts[b + 1] - starts[b]
        i, j = np.arange(S - T, S)[:, None], np.arange(S)
        seen = (j <= i) & ((j > i - window) | (j < sinks))
        k, v = (np.repeat(x, H // G, axis=1) for x in (k, v))
        scores = np.where(seen, np.einsum("thd,shd->hts", q[starts[b] : starts[b + 1]], k) * D**-0.5, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        want = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v)
        np.testing.assert_allclose(y[starts[b] : starts[b + 1]], want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (5, 0), (5, 2), (64, 1)])
@pytest.mark.parametrize("P", [1, 4, 16])
@pytest.mark.parametrize("name", SEQUENCES)
def test_the_kernel_agrees_with_the_reference(name, P, window, sinks):
    inputs, _ = paged(SEQUENCES[name], P, np.float32)
    want = backend.load("numpy").paged_attention(*inputs, window, sinks)
    got = backend.load("cpu").paged_attention(*inputs, window, sinks)
    assert got.dtype == np.float32
    assert np.abs(got - want).max() <= 2e-6  # float32 sums of at most 40 terms of about 1


def test_no_queries_give_no_rows():
    inputs, _ = paged([(1, 3)], 4, np.float32)
    empty = (inputs[0][:0], *inputs[1:4], np.array([0, 0]), inputs[5])
    for name in ("numpy", "cpu"):
        assert backend.load(name).paged_attention(*empty).shape == (0, H, D)
