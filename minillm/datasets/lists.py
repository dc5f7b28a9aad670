"""First lessons of a model: pairs of tokens, of which it is to tell what stood beside one.

To find an earlier token and what stood beside it takes two layers that work together, and neither is of use without the
other; so a model may read millions of tokens before it does (Olsson et al. 2022, arXiv 2209.11895).  On lists alone,
where nothing else is to be learned, it takes some hundred steps, and every later task that asks for a fact from its
context begins there.  The tokens are any of the vocabulary, so that what is learned holds for all of them.
"""

import numpy as np

from minillm.datasets.packing import pack
from minillm.datasets.sampler import Batch
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import Rendered

MOST_PAIRS = 6


class ListRows:
    """Rows of T tokens for a `Sampler`: as many lists as fit, none seeing another, with the answers as targets.

    ValueError if a list may be longer than T tokens.
    """

    def __init__(self, tokenizer: Tokenizer, T: int, num: int, seed: int, begin: int = 0) -> None:
        self.T, self.num, self.seed, self.begin = T, num, seed, begin
        self.eot, self.newline = tokenizer.eot, tokenizer.encode("\n")[0]
        aside = {self.newline, *tokenizer.special.values()}
        self.words = np.array([i for i in range(tokenizer.vocab_size) if i not in aside])
        if (longest := 6 * MOST_PAIRS + 1) > T:
            raise ValueError(
                f"a list takes up to {longest} tokens: a context of {T} is too short; "
                "train without list_steps, or with a longer context_len"
            )

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> Batch:
        """Row `number`, counted from `begin`; it depends on nothing but that and the seed."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, self.begin + number]))
        lists: list[Rendered] = []
        made, room = self._list(generator), self.T
        while (length := len(made.ids) - 1) <= room:
            lists.append(made)
            made, room = self._list(generator), room - length
        return pack(lists, self.T)

    def _list(self, generator: np.random.Generator) -> Rendered:
        """Pairs, a line each; then all of them again in another order, either token first, the second being asked."""
        num = int(generator.integers(2, MOST_PAIRS + 1))
        pairs = generator.choice(self.words, (num, 2), replace=False)
        asked = generator.permuted(generator.permutation(pairs), axis=1)
        line = [self.newline]
        ids = [self.eot, *(i for pair in pairs.tolist() for i in pair + line), *line]
        ids += [i for pair in asked.tolist() for i in pair + line]
        return Rendered(ids, [False] * (3 * num + 2) + [False, True, False] * num)
