"""From logits to the next token: penalty, temperature, truncation, one draw.

`distribution` is the exact distribution that `draw` samples from, so that log-probabilities and speculative
acceptance can use the very numbers that chose the token.
"""

import numpy as np

from minillm.config import SamplingConfig


def distribution(logits: np.ndarray, seen: list[int], config: SamplingConfig) -> np.ndarray:
    """Probabilities (V,) in float64 after penalty, temperature, top-k, top-p and min-p, in that order.

    logits: (V,), seen: ids already in the text.  Temperature 0 puts all mass on the best token, the lowest id in a tie.
    """
    z = penalised(logits, seen, config).astype(np.float64)
    z -= z.max()
    if config.temperature == 0:
        return np.eye(1, len(z), int(np.argmax(z)))[0]
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        p = np.exp(z / config.temperature)
    return truncate(p / p.sum(), config)


def penalised(logits: np.ndarray, seen: list[int], config: SamplingConfig) -> np.ndarray:
    """The logits after the repetition penalty.  ValueError if they are not finite at their best."""
    if not np.isfinite(logits.max()):  # NaN anywhere makes the maximum NaN
        raise ValueError("logits hold NaN or infinity: the weights are damaged or training diverged")
    if config.repetition_penalty == 1 or not seen:
        return logits
    z, ids = logits.astype(np.float64), np.unique(seen)  # once per token, however often it occurs
    z[ids] = np.where(z[ids] > 0, z[ids] / config.repetition_penalty, z[ids] * config.repetition_penalty)
    return z


def truncate(p: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """Drop unlikely tokens from p (V,) and renormalise; of equally likely ones the lower id stays."""
    order = np.argsort(-p, kind="stable")
    ranked = p[order]
    num_kept = len(p) if config.top_k == 0 else min(config.top_k, len(p))
    if config.top_p < 1:  # the token that reaches p is kept, and so is the first in any case
        mass = np.cumsum(ranked[:num_kept]) / ranked[:num_kept].sum()
        num_kept = min(num_kept, int(np.searchsorted(mass, config.top_p)) + 1)
    num_kept = min(num_kept, int(np.count_nonzero(ranked >= config.min_p * ranked[0])))
    kept = np.zeros_like(p)
    kept[order[:num_kept]] = ranked[:num_kept]
    return kept / kept.sum()


def draw(p: np.ndarray, u: float) -> int:
    """The token at u in [0, 1) of the cumulative distribution; always one with p > 0."""
    cumulative = np.cumsum(p)
    token = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(p)[-1]))


def sample(logits: np.ndarray, seen: list[int], config: SamplingConfig, generator: np.random.Generator) -> int:
    """The next token.  Greedy sampling draws nothing from the generator."""
    if config.temperature == 0:
        return int(np.argmax(penalised(logits, seen, config)))
    return draw(distribution(logits, seen, config), generator.random())
