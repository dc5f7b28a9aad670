"""First lessons of a model: lists, from which it is to tell what stood beside a word.

To find an earlier token and what stood beside it takes two layers that work together, and neither is of use without the
other; so a model may read millions of tokens before it does (Olsson et al. 2022, arXiv 2209.11895).  On lists alone,
where nothing else is to be learned, it takes some hundred steps, and every later task that asks for a fact from its
context begins there.
"""

import numpy as np

from minillm.datasets.packing import pack
from minillm.datasets.sampler import Batch
from minillm.datasets.tasks import look_up
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import Rendered

MOST_TRIES = 100  # for the first list of a row


class ListRows:
    """Rows of T tokens for a `Sampler`: as many lists as fit, none seeing another, with the answers as targets."""

    def __init__(self, tokenizer: Tokenizer, T: int, num: int, seed: int) -> None:
        self.tokenizer, self.T, self.num, self.seed = tokenizer, T, num, seed

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> Batch:
        """Row `number`; it depends on nothing but that and the seed.  ValueError if of many lists none fits in it."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, number]))
        lists: list[Rendered] = []
        made, room = self._that_fits(generator), self.T
        while (length := len(made.ids) - 1) <= room:
            lists.append(made)
            made, room = self._render(generator), room - length
        return pack(lists, self.T)

    def _that_fits(self, generator: np.random.Generator) -> Rendered:
        for _ in range(MOST_TRIES):
            if len((made := self._render(generator)).ids) - 1 <= self.T:
                return made
        raise ValueError(
            f"a list of {len(made.ids) - 1} tokens does not fit in a context of {self.T}; "
            "train without list_steps, or with a longer context_len or a larger vocab_size"
        )

    def _render(self, generator: np.random.Generator) -> Rendered:
        question = look_up(generator)
        end = [self.tokenizer.eot]
        asked, answer = (self.tokenizer.encode(text) for text in (f"{question.prompt}\n", question.answer))
        return Rendered(end + asked + answer + end, [False] * (1 + len(asked)) + [True] * (len(answer) + 1))
