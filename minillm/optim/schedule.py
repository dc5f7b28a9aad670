"""Learning rate over a run: warm-up, then a cosine, or stable and a straight decay."""

import math

from minillm.config import OptimConfig, check_at_least


def learning_rate_factor(step: int, steps: int, config: OptimConfig) -> float:
    """The share of the peak learning rate at `step` (0 is the first) of a run of `steps`.

        warm-up, step < W:   (step + 1) / (W + 1)                     the first step already moves
        cosine:              f + (1 - f) * (1 + cos(pi * p)) / 2      p = (step - W) / (steps - W)
        wsd:                 1, then f + (1 - f) * (1 - p)            p = (step - S) / (steps - S)
        step >= steps:       f

    f is `final_fraction`.  W is `warmup_steps`, at most steps - 1, so every run reaches its peak, which is step W.
    S, where decay starts, is `decay_fraction` of the steps before the end and not before W.

    What holds: the factor is in (0, 1]; it rises strictly up to step W, where it is exactly 1, and never again;
    from W on it is in [f, 1].  It reaches f at step == steps, just after the last: with f = 0, too, every step moves.
    (cosine: Loshchilov & Hutter 2017, arXiv 1608.03983; wsd: Hu et al. 2024, arXiv 2404.06395.)
    """
    check_at_least("step", step, 0)
    check_at_least("steps", steps, 1)
    final, warmup = config.final_fraction, min(config.warmup_steps, steps - 1)
    start = warmup if config.schedule == "cosine" else max(warmup, steps - round(config.decay_fraction * steps))
    if step >= steps:
        return final
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if step < start:
        return 1.0
    progress = (step - start) / (steps - start)
    left = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return final + (1 - final) * left
