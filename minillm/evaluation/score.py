"""A mean over questions, and how far chance alone may have moved it; two models compared, question by question."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class Record(Protocol):
    """One question and what a model made of it: enough to count it again without the model."""

    @property
    def task(self) -> str:
        """The group under which it is counted."""

    @property
    def question(self) -> Any:
        """What was asked, with the right answer: the same for every model."""

    @property
    def value(self) -> float:
        """How well it went: 1 for right and 0 for wrong, a probability, or bits per byte."""

    @property
    def weight(self) -> float:
        """Its share in the mean: 1, or the bytes of a text."""


class Score(NamedTuple):
    """A mean, its standard error, and of how many questions."""

    mean: float
    standard_error: float
    num: int


class Difference(NamedTuple):
    """The mean of B minus that of A on the same questions, with a 95% confidence interval."""

    mean: float
    low: float
    high: float
    num: int


def mean_of(values: Iterable[float], weights: Iterable[float] | None = None) -> Score:
    """mean = sum w v / sum w,  standard error = sqrt(n / (n - 1) * sum w^2 (v - mean)^2) / sum w.

    Without weights that is the sample's standard deviation over sqrt(n), and sqrt(p (1 - p) / (n - 1)) of ones and
    zeros.  NaN of one question, which says nothing of the next.  ValueError of none.
    """
    v = np.array(list(values), np.float64)
    n = len(v)
    if n == 0:
        raise ValueError("nothing was scored: expected at least one question")
    w = np.ones(n) if weights is None else np.array(list(weights), np.float64)
    mean = float(np.sum(w * v) / np.sum(w))
    if n == 1:
        return Score(mean, math.nan, n)
    return Score(mean, math.sqrt(n / (n - 1) * float(np.sum((w * (v - mean)) ** 2))) / float(np.sum(w)), n)


def score(records: Sequence[Record]) -> Score:
    """The mean of all records."""
    return mean_of([r.value for r in records], [r.weight for r in records])


def scores(records: Sequence[Record]) -> dict[str, Score]:
    """By task, in alphabetical order, and at last of `all`."""
    tasks = sorted({record.task for record in records})
    groups = {task or "(no task)": [r for r in records if r.task == task] for task in tasks}
    return {task: score(group) for task, group in (groups | {"all": list(records)}).items()}


def compare(a: Sequence[Record], b: Sequence[Record]) -> Difference:
    """The mean of d_i = value_i of B - value_i of A, +- 1.96 standard errors: paired, so what both find hard cancels.

    ValueError unless both answered the same questions in the same order, at least two.
    """
    if [(r.task, r.question) for r in a] != [(r.task, r.question) for r in b]:
        raise ValueError("the two evaluations asked different questions; run both with the same data, seed and number")
    if len(a) < 2:
        raise ValueError(f"a comparison needs at least two questions: got {len(a)}")
    d = mean_of([y.value - x.value for x, y in zip(a, b)], [r.weight for r in a])
    return Difference(d.mean, d.mean - 1.96 * d.standard_error, d.mean + 1.96 * d.standard_error, d.num)
