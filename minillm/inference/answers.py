"""Many prompts answered, a batch at a time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from minillm.config import SamplingConfig, check_at_least
from minillm.inference.generate import Completion, stream_ids
from minillm.model.model import Model
from minillm.tokenizer.chat import ChatTemplate


def answer(model: Model, template: ChatTemplate, prompts: Sequence[list[int]], sampling: SamplingConfig,
           batch_size: int = 16, show: str = "") -> list[Completion]:  # fmt: skip
    """What the model says to each prompt (ids) until its turn ends, in the order of the input.

    The same model, prompts, settings and batch size give the same answers.  show: the title of a progress bar.
    """
    check_at_least("batch_size", batch_size, 1)
    completions = [Completion() for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # rows of a batch of about the same length
    with tqdm(total=len(prompts), desc=show, unit="answer", disable=not show, dynamic_ncols=True) as bar:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            done = [completions[i] for i in rows]
            seed = None if sampling.seed is None else _seed(sampling.seed, start)
            batch = [prompts[i] for i in rows]
            for _ in stream_ids(model, template.tokenizer, batch, replace(sampling, seed=seed), template.stop, done):
                pass
            bar.update(len(rows))
    return completions


def _seed(seed: int, start: int) -> int:
    """Another one for each batch, whose rows draw from (seed, row)."""
    return int(np.random.default_rng([seed, start]).integers(2**62))
