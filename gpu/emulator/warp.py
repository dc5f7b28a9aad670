"""What a warp does together: each operation once, for all 32 lanes, on their mail.

`mail` is (32, 64) of uint32: a row for each lane, operands from column 0, results from column RESULT.  `active` says
which lanes take part.  Fragments are laid out as drawn in `gpu/ptx.py`.
"""

import numpy as np
from numba import carray

from gpu.emulator import record as r
from gpu.emulator.native import bits_of, float_of, halves_at, native

U32, F32 = np.uint32, np.float32
OUT = r.RESULT
INDEX, UP, DOWN, XOR = range(4)  # how a shuffle chooses its source
ALL, ANY, EQUAL, BALLOT = range(4)  # what a vote asks
NOBODY = -1


@native
def perform(operation, mail, active, shared):
    """Do it.  Returns the lane that asked for a value of a lane that takes no part, or NOBODY."""
    if operation == r.SHUFFLE:
        return shuffle(mail, active)
    if operation == r.VOTE:
        vote(mail, active)
    elif operation in (r.MATCH_ANY, r.MATCH_ALL):
        match(mail, active, operation == r.MATCH_ALL)
    elif operation in (r.LDMATRIX, r.LDMATRIX_TRANSPOSED):
        return ldmatrix(mail, active, shared, operation == r.LDMATRIX_TRANSPOSED)
    elif operation == r.MMA_BF16:
        return mma_bf16(mail, active)
    elif operation == r.MMA_TF32:
        return mma_tf32(mail, active)
    elif operation == r.MMA_INT8:
        return mma_int8(mail, active)
    return NOBODY


@native
def shuffle(mail, active):
    """Operands: mode, value, where, clamp.  Results: the value of another lane, and whether there was one."""
    lost = NOBODY
    for lane in range(32):
        if not active[lane]:
            continue
        mode, where = mail[lane, 0], np.int64(mail[lane, 2])
        source = where & 31
        if mode == UP:
            source = lane - where
        elif mode == DOWN:
            source = lane + where
        elif mode == XOR:
            source = lane ^ where
        inside = 0 <= source < 32
        if inside and not active[source]:
            lost = lane
        mail[lane, OUT] = mail[source if inside else lane, 1]
        mail[lane, OUT + 1] = inside
    return lost


@native
def vote(mail, active):
    """Operands: mode, condition.  Results: the ballot (bit i is lane i's condition), and the answer."""
    ballot, asked = U32(0), U32(0)
    for lane in range(32):
        if active[lane]:
            asked |= U32(1) << U32(lane)
            ballot |= U32(mail[lane, 1] & U32(1)) << U32(lane)
    for lane in range(32):
        if active[lane]:
            mode = mail[lane, 0]
            every, some = ballot == asked, ballot != 0
            answer = every if mode == ALL else some if mode == ANY else every or not some
            mail[lane, OUT], mail[lane, OUT + 1] = ballot, answer


@native
def match(mail, active, everyone):
    """Operand: a value of two words.  Results: the mask of the lanes with the same one, and whether all have it.

    everyone: the mask is 0 unless all have it.
    """
    for lane in range(32):
        if active[lane]:
            same, others = U32(0), U32(0)
            for other in range(32):
                if active[other] and mail[other, 0] == mail[lane, 0] and mail[other, 1] == mail[lane, 1]:
                    same |= U32(1) << U32(other)
                elif active[other]:
                    others = U32(1)
            mail[lane, OUT] = U32(0) if everyone and others else same
            mail[lane, OUT + 1] = U32(1) - others


@native
def ldmatrix(mail, active, shared, transposed):
    """Operands: address of a row (in shared memory), number of matrices.  Results: a pair of each."""
    for matrix in range(mail[0, 1]):
        for lane in range(32):
            if not active[lane]:
                return lane
            g, q = lane // 4, lane % 4
            pair = U32(0)
            for half in range(2):
                row, column = (2 * q + half, g) if transposed else (g, 2 * q + half)
                address = shared + np.int64(np.int32(mail[8 * matrix + row, 0]))
                pair |= U32(carray(halves_at(address), 8)[column]) << U32(16 * half)
            mail[lane, OUT + matrix] = pair
    return NOBODY


@native
def mma_bf16(mail, active):
    """D = A B + C, 16 x 16 by 16 x 8; products and sums in float32."""
    a, b = np.empty((16, 16), F32), np.empty((16, 8), F32)
    for lane in range(32):
        if not active[lane]:
            return lane
        g, q = lane // 4, lane % 4
        for half in range(2):
            for part in range(4):
                a[g + 8 * (part % 2), 2 * q + half + 8 * (part // 2)] = bf16(mail[lane, part], half)
            for part in range(2):
                b[2 * q + half + 8 * part, g] = bf16(mail[lane, 4 + part], half)
    accumulate(mail, a, b)
    return NOBODY


@native
def mma_tf32(mail, active):
    """D = A B + C, 16 x 8 by 8 x 8; the lowest 13 bits of each operand are not looked at."""
    a, b = np.empty((16, 8), F32), np.empty((8, 8), F32)
    seen = U32(0xFFFFE000)
    for lane in range(32):
        if not active[lane]:
            return lane
        g, q = lane // 4, lane % 4
        for part in range(4):
            a[g + 8 * (part % 2), q + 4 * (part // 2)] = float_of(mail[lane, part] & seen)
        for part in range(2):
            b[q + 4 * part, g] = float_of(mail[lane, 4 + part] & seen)
    accumulate(mail, a, b)
    return NOBODY


@native
def mma_int8(mail, active):
    """D = A B + C, 16 x 32 by 32 x 8, in int32, which wraps around."""
    a, b = np.empty((16, 32), np.int32), np.empty((32, 8), np.int32)
    for lane in range(32):
        if not active[lane]:
            return lane
        g, q = lane // 4, lane % 4
        for byte in range(4):
            for part in range(4):
                a[g + 8 * (part % 2), 4 * q + byte + 16 * (part // 2)] = int8(mail[lane, part], byte)
            for part in range(2):
                b[4 * q + byte + 16 * part, g] = int8(mail[lane, 4 + part], byte)
    for lane in range(32):
        for part in range(4):
            row, column = lane // 4 + 8 * (part // 2), 2 * (lane % 4) + part % 2
            total = np.int32(mail[lane, 6 + part])
            for k in range(32):
                total = np.int32(total + a[row, k] * b[k, column])
            mail[lane, OUT + part] = U32(total)
    return NOBODY


@native
def accumulate(mail, a, b):
    """Add the product of two small matrices to the accumulator fragments in float32."""
    for lane in range(32):
        for part in range(4):
            row, column = lane // 4 + 8 * (part // 2), 2 * (lane % 4) + part % 2
            total = F32(0)
            for k in range(a.shape[1]):
                total += a[row, k] * b[k, column]
            mail[lane, OUT + part] = bits_of(F32(total + float_of(mail[lane, 6 + part])))


@native
def bf16(pair, half):
    """The lower (0) or upper (1) bfloat16 of a pair, as float32."""
    return float_of(U32(pair & U32(0xFFFF0000)) if half else U32(pair << U32(16)))


@native
def int8(four, byte):
    """One signed byte of four."""
    value = np.int32((four >> U32(8 * byte)) & U32(255))
    return value - np.int32(256) if value > 127 else value
