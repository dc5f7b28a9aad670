"""Tales: short children's stories written by the grammar in data/tales, each with its exact probability."""

from functools import cache
from pathlib import Path

import numpy as np

import minillm
from minillm.datasets.grammar import Grammar, Story


def data_folder() -> Path:
    """Where data/ lies: inside an installed package, beside it in a checkout."""
    package = Path(minillm.__file__).parent
    return package / "data" if (package / "data").is_dir() else package.parent / "data"


@cache
def tales() -> Grammar:
    """The grammar of the tales."""
    return Grammar.load(data_folder() / "tales")


def tale(seed: int, index: int) -> Story:
    """Story number `index` of the corpus `seed`; it depends on nothing else, so a corpus can grow or be split."""
    return tales().write(np.random.Generator(np.random.Philox(key=[seed, index])))
