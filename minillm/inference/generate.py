"""Plain generation with a cache: the oracle that every faster engine must equal, token for token."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from minillm.config import SamplingConfig
from minillm.inference.cache import Cache, extend
from minillm.inference.sampler import sample
from minillm.inference.text import TextStream
from minillm.model.model import Model
from minillm.tokenizer import Tokenizer

UNSEEN = 0  # fills places that no token attends to


@dataclass
class Completion:
    """What a prompt was continued with."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: Literal["", "stop", "length"] = ""
    """stop: the model ended the text or a stop string came.  length: max_tokens or the context ran out."""


def generate_ids(
    model: Model, prompts: list[list[int]], config: SamplingConfig, eot: int
) -> Iterator[list[int | None]]:
    """Continue each prompt of ids; yields one new token per row and step, None for rows that have ended.

    A row ends with `eot` (yielded), after max_tokens, or when the context is full.  Send nothing in; just stop early.
    """
    _check_prompts(model, prompts)
    if not prompts:
        return
    lengths = np.array([len(p) for p in prompts])
    budgets = np.minimum(model.config.context_len - lengths, config.max_tokens)
    seeds = [None if config.seed is None else [config.seed, row] for row in range(len(prompts))]
    generators = [np.random.default_rng(seed) for seed in seeds]
    seen = [list(p) for p in prompts]
    padding = lengths.max() - lengths
    cache = Cache(model, padding, capacity=int(lengths.max() + budgets.max()))
    ids = np.array([[UNSEEN] * pad + p for pad, p in zip(padding, prompts)])  # left padding: all rows end together
    ended = budgets <= 0
    for step in range(int(budgets.max())):
        logits = extend(model, ids, cache, last_only=True)[:, 0]
        tokens = [None if end else sample(logits[b], seen[b], config, generators[b]) for b, end in enumerate(ended)]
        for b, token in enumerate(tokens):
            if token is not None:
                seen[b].append(token)
                if token == eot or step + 1 >= budgets[b]:
                    ended[b] = True
                    cache.end_row(b)
        yield tokens
        if ended.all():
            return
        ids = np.array([[UNSEEN if token is None else token] for token in tokens])


def stream(model: Model, tokenizer: Tokenizer, prompts: list[str], config: SamplingConfig,
           completions: list[Completion] | None = None) -> Iterator[tuple[int, str]]:  # fmt: skip
    """Continue each prompt; yields (row, new text) as soon as the text is certain.  Fills `completions` if given.

    ValueError if a prompt leaves no room in the context.
    """
    encoded = [[tokenizer.eot, *tokenizer.encode(p)] for p in prompts]  # a document starts after an end
    return stream_ids(model, tokenizer, encoded, config, tokenizer.eot, completions)


def stream_ids(model: Model, tokenizer: Tokenizer, prompts: list[list[int]], config: SamplingConfig, end: int,
               completions: list[Completion] | None = None) -> Iterator[tuple[int, str]]:  # fmt: skip
    """As `stream`, of prompts that are ids already, until the model says `end`."""
    done = [Completion() for _ in prompts] if completions is None else completions
    texts = [TextStream(tokenizer, config.stop) for _ in prompts]
    for tokens in generate_ids(model, prompts, config, end):
        for b, token in enumerate(tokens):
            if token is None or done[b].finish:
                continue
            done[b].ids.append(token)
            piece = texts[b].push(token) if token != end else texts[b].flush()
            if texts[b].stopped or token == end:
                done[b].finish = "stop"
            done[b].text += piece
            if piece:
                yield b, piece
        if all(d.finish for d in done):
            break
    for b, completion in enumerate(done):
        if not completion.finish:
            completion.finish = "length"
            piece = texts[b].flush()
            completion.text += piece
            if piece:
                yield b, piece


def generate(model: Model, tokenizer: Tokenizer, prompts: list[str], config: SamplingConfig) -> list[Completion]:
    """Continue each prompt to its end."""
    completions = [Completion() for _ in prompts]
    for _ in stream(model, tokenizer, prompts, config, completions):
        pass
    return completions


def _check_prompts(model: Model, prompts: list[list[int]]) -> None:
    context = model.config.context_len
    for number, prompt in enumerate(prompts):
        if not 1 <= len(prompt) < context:
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens and the context {context}: at least one token is needed and "
                "one place must be left to continue in; shorten it or use a model with a longer context_len"
            )
