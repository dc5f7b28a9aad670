"""On-policy distillation: the student answers, and its teacher judges each token of what it said.

(GKD, Agarwal et al. 2023, arXiv 2306.13649.)  From given answers alone a student never learns what to say after a
mistake of its own.  What it says is drawn from its distribution as it is, and counts as given: nothing is
differentiated through the draws.
"""

from typing import Any, NamedTuple

import numpy as np

from minillm.config import SamplingConfig
from minillm.datasets.packing import PackedRows
from minillm.datasets.sampler import Sampler, stack
from minillm.inference.answers import answer
from minillm.model.model import Model
from minillm.ops.cross_entropy import IGNORE
from minillm.tokenizer.chat import ChatTemplate, Rendered

ON_POLICY = 1  # sets these draws apart from others of the same seed


class Mixed(NamedTuple):
    """A Batch in some of whose rows the student speaks.  (B, T) each.

    targets: what the teacher judges, whoever said it.  answers: those of them that are given, and hence are right.
    """

    ids: Any
    targets: Any
    positions: Any
    segments: Any
    answers: Any


class OnPolicySampler(Sampler):
    """A Sampler that lets the student answer in about `share` of the rows.

    In such a row it answers one turn of each conversation, chosen at random; what was said before is given.  Answers
    have lengths of their own, so they are packed anew, and a batch has not always B rows.  All draws are functions of
    the seed and of the place in the stream: whoever restores a state, and has the same student, goes on as before.
    """

    def __init__(self, rows: PackedRows, B: int, seed: int, student: Model, template: ChatTemplate, share: float,
                 max_tokens: int) -> None:  # fmt: skip
        """student: whose weights are read anew each time.  max_tokens: an answer is cut there, and judged as it is."""
        super().__init__(rows, B, seed)
        self.rows: PackedRows = rows
        self.student, self.template, self.share, self.max_tokens = student, template, share, max_tokens

    def next(self) -> Mixed:
        """The next rows, the student's behind the given ones."""
        first, prompts, given = self.num_drawn, [], []
        for place, number in enumerate(self._next_numbers()):
            generator = np.random.default_rng([self.seed, first + place, ON_POLICY])
            asked = self._prompts(number, generator) if generator.random() < self.share else []
            prompts += asked
            if not asked:  # nothing is, where prompts fill the context
                given.append(self.rows[number])
        written = PackedRows(self._answered(prompts, first), self.rows.T)
        own = [written[number] for number in range(len(written))]
        return stack([Mixed(*row, row.targets) for row in given]
                     + [Mixed(*row, np.full_like(row.targets, IGNORE)) for row in own])  # fmt: skip

    def _prompts(self, number: int, generator: np.random.Generator) -> list[list[int]]:
        """A beginning of each conversation of a row, up to where an answer begins that has room for two tokens."""
        prompts = []
        for i in self.rows.members[number]:
            ids, mask = self.rows.examples[i]
            turns = [t for t in range(1, len(ids)) if mask[t] and not mask[t - 1] and t < self.rows.T]
            if turns:
                prompts.append(ids[: turns[generator.integers(len(turns))]])
        return prompts

    def _answered(self, prompts: list[list[int]], first: int) -> list[Rendered]:
        """Each prompt with the student's answer, which alone is judged."""
        seed = int(np.random.default_rng([self.seed, first, ON_POLICY]).integers(2**62))
        sampling = SamplingConfig(temperature=1, max_tokens=self.max_tokens, seed=seed)
        done = answer(self.student, self.template, prompts, sampling)
        return [Rendered(p + c.ids, [False] * len(p) + [True] * len(c.ids)) for p, c in zip(prompts, done)]
