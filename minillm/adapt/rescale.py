"""Rescaling columns: what one matrix's inputs are divided by, the layer before it can multiply.

    x W^T = (x / s) (W s)^T        s: (I,)

A norm before the matrix takes 1/s into its weight (and bias); the matrix `up` before `down` takes it into its rows, as
what lies between is linear in it (in SwiGLU).  So nothing changes but what is easy to round.  SmoothQuant (Xiao et al.
2022, arXiv 2211.10438) chooses s so that activations and weights are equally hard to round; AWQ (Lin et al. 2023, arXiv
2306.00978) so that the weights which meet large activations lose least.
"""

from collections.abc import Callable

import numpy as np

from minillm import tree
from minillm.adapt.calibrate import PARTS, SITES, Inputs
from minillm.adapt.rounding import quantize_matrix
from minillm.config import ModelConfig, QuantizeConfig
from minillm.ops.quantized import dequantize
from minillm.tree import Tree

STRENGTH = 0.5  # of SmoothQuant: 0 leaves the activations as they are, 1 makes all of their channels equally large
POWERS = np.linspace(0, 1, 11)  # of the activations' size, that AWQ tries


def smooth_scales(matrices: list[np.ndarray], inputs: Inputs, config: QuantizeConfig) -> np.ndarray:
    """s = max|x|^a / max|W|^(1 - a), of each channel."""
    del config
    weights = np.max([np.abs(m).max(axis=0) for m in matrices], axis=0)
    s = _safe(inputs.largest) ** STRENGTH / _safe(weights) ** (1 - STRENGTH)
    return _safe(s).astype(np.float32)


def awq_scales(matrices: list[np.ndarray], inputs: Inputs, config: QuantizeConfig) -> np.ndarray:
    """s = (root mean square of x)^p with the p that gives the least squared error of the outputs, of those tried."""
    size = _safe(np.sqrt(inputs.mean_square))
    best, least = np.ones_like(size), np.inf
    for power in POWERS:
        s = size**power
        s /= np.sqrt(s.max() * s.min())
        error = sum(output_error(m, dequantize(quantize_matrix(m * s, config)) / s, inputs) for m in matrices)
        if error < least:
            best, least = s, error
    return best.astype(np.float32)


def output_error(matrix: np.ndarray, rounded: np.ndarray, inputs: Inputs) -> float:
    """Sum over all calibration rows x of |x (W - W')^T|^2."""
    difference = matrix - rounded
    return float(np.sum((difference @ inputs.moments) * difference))


def rescale(block: Tree, config: ModelConfig, sites: dict[str, Inputs], choose: Callable, how: QuantizeConfig) -> Tree:
    """A copy of a block that computes the same, its columns rescaled wherever the layer before can make up for it."""
    block = tree.map(lambda part: part, block)  # a copy of the nodes
    before = {"attention": [block.norm1], "mlp": [block.norm2]}
    if config.family == "llama":
        before["down"] = [block.mlp.up]
    for site, sources in before.items():
        layers = [block[PARTS[site]][name] for name in SITES[site] if name in block[PARTS[site]]]
        s = choose([layer.weight for layer in layers], sites[site], how)
        for layer in layers:
            layer.weight = layer.weight * s
        for source in sources:
            source.weight = source.weight / (s if source.weight.ndim == 1 else s[:, None])
            if source.bias is not None:
                source.bias = source.bias / s
    return block


def _safe(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 1)
