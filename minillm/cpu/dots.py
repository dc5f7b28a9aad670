"""Products with few rows, as decoding has them: nothing is reused, so all that counts is to read the weights fast.

BLAS rearranges the weights first, which pays when many rows use them: for one row it reads 5 GB/s here, this 27.
"""

import numpy as np

from minillm.cpu.jit import kernel

ZERO = np.float32(0)
BLOCK = 32  # rows of weights that stay in the second-level cache until every row of x has met them


@kernel
def few_rows(x, weight, first, last, add, out):
    """out[:, o] (+)= x W[o] for o in [first, last).  x: (B, I), weight: (O, I), out: (B, O)."""
    B = len(x)
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        for b in range(0, B - B % 4, 4):
            _four_rows(x[b : b + 4], weight, begin, end, add, out[b : b + 4])
        for b in range(B - B % 4, B):
            _one_row(x[b], weight, begin, end, add, out[b])


@kernel
def _one_row(x, weight, begin, end, add, out):
    """Weights go by as they lie in memory, so the processor fetches ahead.

    Two rows a turn, one after the other, let the end of one sum overlap with the next: 8% faster than one a turn.  Two
    rows side by side, which saves loads of x, is half as fast: two streams.
    """
    for o in range(begin, end - 1, 2):
        if add:
            out[o] += _dot(weight[o], x)
            out[o + 1] += _dot(weight[o + 1], x)
        else:
            out[o] = _dot(weight[o], x)
            out[o + 1] = _dot(weight[o + 1], x)
    if (end - begin) % 2:
        out[end - 1] = _dot(weight[end - 1], x) + (out[end - 1] if add else ZERO)


@kernel
def _dot(w, x):
    total = ZERO
    for i in range(x.size):
        total += w[i] * x[i]
    return total


@kernel
def _four_rows(x, weight, begin, end, add, out):
    """Each weight that is loaded serves four rows of x, which stay in the first-level cache."""
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    for o in range(begin, end):
        w, s0, s1, s2, s3 = weight[o], ZERO, ZERO, ZERO, ZERO
        for i in range(w.size):
            s0 += w[i] * x0[i]
            s1 += w[i] * x1[i]
            s2 += w[i] * x2[i]
            s3 += w[i] * x3[i]
        for j, s in enumerate((s0, s1, s2, s3)):
            out[j, o] = s + out[j, o] if add else s
