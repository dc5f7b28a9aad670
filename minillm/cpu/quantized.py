"""Linear layers of small integers: see minillm/ops/quantized.py.

With activations as they are, a few rows of weights at a time become float32 and are multiplied as such: what is read
from memory is small, which is what counts while decoding.  With rounded activations the products are those of bytes
(minillm/cpu/lanes.py), which also does four times the arithmetic of float32 in an instruction.
"""

from typing import Any

import numpy as np

from minillm import ops, store, threads
from minillm.cpu.dots import few_rows
from minillm.cpu.gemm import gemm
from minillm.cpu.jit import kernel
from minillm.cpu.lanes import add_scaled, dot_bytes, dot_nibbles, nothing, total
from minillm.cpu.linear import FEW, pieces
from minillm.cpu.rows import rows_of, spread, twin
from minillm.ops.check_inputs import last_axis
from minillm.ops.quantized import BLOCK, HALF, LARGEST

ZERO, ONE = np.float32(0), np.float32(1)
NO_BIAS = np.empty(0, np.float32)
TILE = 32  # rows of weights that are unpacked together


@twin(ops.quantized_linear)
def quantized_linear(x, w, bias=None):
    last_axis("quantized linear", "x", x, w.inputs, f"weight {w.shape}")
    if w.scale.dtype != np.float32:
        return ops.quantized_linear(x, w, bias)
    rows, bias = rows_of(x), NO_BIAS if bias is None else bias
    y = store.empty((len(rows), len(w.q)))
    _over_outputs(_multiply, len(rows), w, rows, w.q, w.scale, w.zero, w.bits == 4, w.group, bias, y)
    return y.reshape(*x.shape[:-1], len(w.q))


@twin(ops.integer_linear)
def integer_linear(x, w, bias=None, whole=False):
    last_axis("integer linear", "x", x, w.inputs, f"weight {w.shape}")
    if w.scale.dtype != np.float32 or (w.group % HALF and w.scale.shape[1] > 1):
        return ops.integer_linear(x, w, bias, whole)  # a half of a block has one scale here
    rows, bias = rows_of(x), NO_BIAS if bias is None else bias
    N, num_blocks = len(rows), -(-w.inputs // BLOCK)
    r, step = np.empty((N, num_blocks * BLOCK), np.int8), np.empty((N, num_blocks), np.float32)
    sums = np.empty((N, w.scale.shape[1]), np.float32)
    spread(round_rows, N, w.inputs, rows, whole, w.group, r, step, sums)
    y = store.empty((N, len(w.q)))
    if N <= FEW:
        integers = w.q, w.scale, w.zero, w.bits == 4, group_of_halves(w)
        _over_outputs(_multiply_integers, N, w, r, step, sums, *integers, bias, y)
    else:  # BLAS is as fast on what the integers stand for, when rows are many
        rounded = (r.reshape(N, num_blocks, BLOCK) * step[:, :, None]).reshape(N, -1)[:, : w.inputs]
        _over_outputs(_multiply, N, w, rows_of(rounded), w.q, w.scale, w.zero, w.bits == 4, w.group, bias, y)
    return y.reshape(*x.shape[:-1], len(w.q))


def group_of_halves(w):
    """(2, blocks): the group of each block's first half, and of its second."""
    starts = np.arange(0, w.inputs, BLOCK)
    return np.minimum(np.stack([starts, starts + HALF]) // w.group, w.scale.shape[1] - 1)  # the last may be padding


def _over_outputs(function, N, w, *args):
    """In pieces of the outputs, whichever side is longer: rows of weights are what must be read."""
    num = max(len(pieces(FEW, len(w.q), max(N, 1) * w.inputs)), 1)
    cuts = [(len(w.q) * i // num, len(w.q) * (i + 1) // num) for i in range(num)]
    threads.run_all(lambda cut: function(*cut, *args), cuts)


@kernel
def _multiply(first, last, x, q, scale, zero, half_bytes, group, bias, y):
    """y[:, o] for o in [first, last), by tiles of weights as float32."""
    N, I = x.shape
    tile = np.empty((TILE, I), np.float32)
    for begin in range(first, last, TILE):
        count = min(TILE, last - begin)
        for o in range(count):
            unpack_row(q[begin + o], scale[begin + o], zero[begin + o], half_bytes, group, tile[o])
        if N <= FEW:
            few_rows(x, tile, 0, count, False, y[:, begin:])
        else:
            gemm(N, count, I, ONE, x, False, tile, True, ZERO, y[:, begin:])
    _add_bias(first, last, bias, y)


@kernel
def unpack_row(q, scale, zero, half_bytes, group, out):
    """One row as float32."""
    I = out.size
    if half_bytes:
        for start in range(0, I, BLOCK):
            low, high = min(HALF, I - start), min(HALF, I - start - HALF)
            part = q[start // 2 : start // 2 + HALF]
            for i in range(low):
                out[start + i] = np.float32(part[i] & np.uint8(15))
            for i in range(high):
                out[start + HALF + i] = np.float32(part[i] >> np.uint8(4))
    else:
        for i in range(I):
            out[i] = np.float32(q[i])
    for g in range(scale.size):
        s, z = scale[g], np.float32(zero[g])
        for i in range(g * group, min((g + 1) * group, I)):
            out[i] = s * (out[i] - z)


@kernel
def round_rows(start, stop, x, whole, group, r, step, sums):
    """Rows [start, stop) of x as integers, their steps, and sums[n, g]: of the rounded activations of one group."""
    I = x.shape[1]
    for n in range(start, stop):
        row, steps, into = x[n], step[n], r[n]
        of_all = ZERO
        for b in range(steps.size):
            largest = ZERO
            for i in range(b * BLOCK, min((b + 1) * BLOCK, I)):
                largest = max(largest, abs(row[i]))
            steps[b] = largest / np.float32(LARGEST)
            of_all = max(of_all, steps[b])
        sums[n] = ZERO
        into[I:] = 0
        for b in range(steps.size):
            if whole:
                steps[b] = of_all
            safe = ONE if steps[b] == ZERO else steps[b]
            for start in range(b * BLOCK, min((b + 1) * BLOCK, I), HALF):
                of_half = np.int32(0)
                for i in range(start, min(start + HALF, I)):
                    into[i] = np.int8(np.rint(row[i] / safe))
                    of_half += np.int32(into[i])
                sums[n, start // group] += steps[b] * np.float32(of_half)


@kernel
def _multiply_integers(first, last, r, step, sums, q, scale, zero, half_bytes, places, bias, y):
    """y[:, o] for o in [first, last), by tiles of weights, which stay in the cache until all rows have met them."""
    for begin in range(first, last, TILE):
        end = min(begin + TILE, last)
        for n in range(len(r)):
            dot_integers(
                begin, end, r[n], step[n], sums[n], q.ctypes.data, scale, zero, half_bytes, places, False, y[n]
            )
    _add_bias(first, last, bias, y)


@kernel
def dot_integers(first, last, r, step, sums, q, scale, zero, half_bytes, places, add, y):
    """y[o] (+)= for o in [first, last), of one row of activations.  places: (2, blocks), the groups of block halves.

    q: the address of the matrix.  Its rows are found by theirs: to make an array of each would take as long as to
    multiply by it.
    """
    width, at_r, low, high = step.size * (HALF if half_bytes else BLOCK), r.ctypes.data, places[0], places[1]
    at_q = q + first * width
    for o in range(first, last):
        totals: Any = nothing()
        if half_bytes:
            for b in range(step.size):
                products = dot_nibbles(at_q + b * HALF, at_r + b * BLOCK)
                totals = add_scaled(totals, products, scale[o, low[b]] * step[b], scale[o, high[b]] * step[b])
        else:
            for b in range(step.size):
                products = dot_bytes(at_q + b * BLOCK, at_r + b * BLOCK)
                totals = add_scaled(totals, products, scale[o, low[b]] * step[b], scale[o, high[b]] * step[b])
        offset = ZERO
        for g in range(sums.size):
            offset += scale[o, g] * np.float32(zero[o, g]) * sums[g]
        y[o] = total(totals) - offset + (y[o] if add else ZERO)
        at_q += width


@kernel
def _add_bias(first, last, bias, y):
    if bias.size:
        for n in range(len(y)):
            for o in range(first, last):
                y[n, o] += bias[o]
