"""GPTQ: columns are rounded one after another, and later ones make up for the errors of earlier (Frantar et al. 2022,
arXiv 2210.17323).

The squared error of the outputs is  tr(E H E^T),  E = W - W',  H = sum of x^T x.  With column j rounded, the best
change of the columns behind it is  -e_j U[j, j+1:] / U[j, j],  where U is the upper Cholesky factor of H's inverse:
the least-squares step, without inverting H anew for each column.
"""

import numpy as np
from scipy.linalg import cholesky, lapack

from minillm.adapt.calibrate import Inputs
from minillm.adapt.rounding import group_of, nearest, ranges
from minillm.config import QuantizeConfig
from minillm.ops.quantized import Quantized, quantized_pack

DAMPING = 0.01  # of H's mean diagonal, added to it: channels that never spoke must not be worth nothing
BLOCK = 128  # columns, about, after which the error is carried to all others at once


def gptq_matrix(weight: np.ndarray, inputs: Inputs, config: QuantizeConfig) -> Quantized:
    """weight: (O, I) float.  A group's range is chosen when its first column's turn has come."""
    (O, I), group = weight.shape, group_of(weight, config)
    W, U = weight.astype(np.float64), inverse_factor(inputs.moments)
    q = np.empty((O, I), np.uint8)
    scale, zero = np.empty((2, O, -(-I // group)))
    width = BLOCK if group == I else group * max(1, BLOCK // group)  # a group that is chosen lies within
    for start in range(0, I, width):
        end = min(start + width, I)
        errors = np.empty((O, end - start))
        for j in range(start, end):
            g = j // group
            if j % group == 0:
                chosen = ranges(W[:, j : j + group], config)
                scale[:, g], zero[:, g] = chosen[0][:, 0], chosen[1][:, 0]
            q[:, j] = nearest(W[:, j], scale[:, g], zero[:, g], config.bits)
            rounded = scale[:, g] * (q[:, j] - zero[:, g])
            errors[:, j - start] = (W[:, j] - rounded) / U[j, j]
            W[:, j:end] -= np.outer(errors[:, j - start], U[j, j:end])
        W[:, end:] -= errors @ U[start:end, end:]
    return quantized_pack(q, scale.astype(weight.dtype), zero, config.bits, group)


def inverse_factor(moments: np.ndarray) -> np.ndarray:
    """U, upper, with U^T U = H^-1, H the damped moments.  (I, I) float64."""
    H = moments.astype(np.float64)
    diagonal = np.arange(len(H))
    mean = float(np.mean(H[diagonal, diagonal]))
    H[diagonal, diagonal] += DAMPING * mean if mean > 0 else 1
    inverse, info = lapack.dpotri(cholesky(H, lower=True), lower=True)
    assert info == 0, f"a damped matrix of moments has an inverse: dpotri gave {info}"
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    return cholesky(inverse, lower=False)
