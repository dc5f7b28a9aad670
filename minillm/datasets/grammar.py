"""A probabilistic grammar that writes stories, and knows the probability of every text exactly.

Its word lists and rules are readable files; grammar_files.py describes their format.  A story is a sequence of choices:
which row of a list, which way to write a rule.  With p_i the probability of choice i, given those before it,

    P(derivation) = prod_i p_i,     P(text) = sum of P over the derivations that write it,     nats = -log P(text).

A grammar where each text has one derivation is unambiguous; then the mean of `nats` over stories is the entropy of the
choices, sum_i E[-log p_i].  No model that has seen any number of stories can have a lower expected loss per story.
"""

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minillm.datasets.grammar_check import check_grammar
from minillm.datasets.grammar_files import Alternative, Call, Choice, Mention, Row, Rule, read_grammar


class Story(NamedTuple):
    """A text and minus the logarithm of its probability."""

    text: str
    nats: float


class Measure(NamedTuple):
    """What can follow from here: the number of derivations and the expected nats of their choices."""

    derivations: int
    nats: float


Env = tuple[Row | Choice | None, ...]
"""What a reader knows of each variable: its row, or the choice that is still open, or nothing (out of scope)."""
States = dict[tuple[int, Env], float]
"""Partial readings: characters read and what is known, with the probability of all the ways to get there."""


class Grammar:
    """Rules by name.  `story` is the one to begin with."""

    def __init__(self, rules: dict[str, Rule]) -> None:
        self.rules = rules
        self.probabilities = {rule: shares(rule.alternatives) for rule in rules.values()}
        self.cumulative = {rule: list(accumulate(p)) for rule, p in self.probabilities.items()}
        names = dict.fromkeys(choice.variable for rule in rules.values() for choice in rule.choices)
        self.slots = {name: slot for slot, name in enumerate(names)}

    @classmethod
    def load(cls, folder: Path) -> "Grammar":
        """Read and check the files in folder/words and folder/rules; ValueError names file and line of a fault."""
        rules = read_grammar(Path(folder))
        check_grammar(rules)
        return cls(rules)

    def write(self, generator: np.random.Generator) -> Story:
        """Draw one story."""
        parts: list[str] = []
        nats = self._write("story", {}, generator.random, parts)
        return Story("".join(parts), nats)

    def nats(self, text: str) -> float | None:
        """-log P(text), or None if the grammar cannot write it."""
        reader = Reader(self, text)
        probability = sum(p for (position, _), p in reader.read_all().items() if position == len(text))
        return -math.log(probability) if probability else None

    def longest_prefix(self, text: str) -> int:
        """How many characters of `text` a story can begin with."""
        reader = Reader(self, text)
        reader.read_all()
        return reader.furthest

    def num_stories(self) -> int:
        """How many derivations there are; as many different stories if the grammar is unambiguous."""
        return Measurer(self).measure("story", 0, {}).derivations

    def entropy(self) -> float:
        """Expected nats of a derivation; of a story if the grammar is unambiguous."""
        return Measurer(self).measure("story", 0, {}).nats

    def _write(self, name: str, env: dict[str, Row], uniform: Callable[[], float], parts: list[str]) -> float:
        """Write a rule into `parts`; return -log p of the choices made."""
        rule = self.rules[name]
        nats = 0.0
        for choice in rule.choices:
            rows = choice.allowed(tuple([env[name] for name in choice.depends_on]))
            env[choice.variable] = rows[int(uniform() * len(rows))]
            nats += math.log(len(rows))
        taken = 0
        if len(rule.alternatives) > 1:
            taken = min(bisect(self.cumulative[rule], uniform()), len(rule.alternatives) - 1)
            nats -= math.log(self.probabilities[rule][taken])
        for item in rule.alternatives[taken].items:
            if isinstance(item, str):
                parts.append(item)
            elif isinstance(item, Mention):
                parts.append(env[item.variable].forms[item.form])
            else:
                nats += self._write(item.rule, env, uniform, parts)
        return nats


def shares(alternatives: list[Alternative]) -> list[float]:
    """Weights as probabilities."""
    total = sum(alternative.weight for alternative in alternatives)
    return [alternative.weight / total for alternative in alternatives]


class Reader:
    """The forward algorithm: read a text along all derivations at once, and merge those that come to the same state.

    A chosen row stays open until the text mentions it; only then do readings part, one per row that fits.  A row that
    is never mentioned may be any: its probabilities sum to 1.
    """

    def __init__(self, grammar: Grammar, text: str) -> None:
        self.grammar, self.text = grammar, text
        self.furthest = 0

    def read_all(self) -> States:
        """The readings of a story that begins at the beginning of the text."""
        return self.read_rule("story", {(0, (None,) * len(self.grammar.slots)): 1.0})

    def read_rule(self, name: str, states: States) -> States:
        """Every way to read a rule from `states`."""
        rule = self.grammar.rules[name]
        for choice in rule.choices:
            states = {(at, self.put(env, choice.variable, choice)): p for (at, env), p in states.items()}
        ends: States = defaultdict(float)
        for alternative, share in zip(rule.alternatives, self.grammar.probabilities[rule]):
            now = {state: p * share for state, p in states.items()}
            for item in alternative.items:
                if isinstance(item, Call):
                    now = self.read_rule(item.rule, now)
                elif isinstance(item, Mention):
                    now = self.read_mention(item, now)
                else:
                    now = {(at + len(item), env): p for (at, env), p in now.items() if self.has(item, at)}
                if not now:
                    break
            for state, p in now.items():
                ends[state] += p
        for choice in reversed(rule.choices):
            ends = self.close(choice, ends)
        return ends

    def has(self, words: str, at: int) -> bool:
        """Whether the text goes on with `words`; keeps the record of how far any reading came."""
        fits = self.text.startswith(words, at)
        while self.furthest < at + len(words) and self.text.startswith(words[: self.furthest + 1 - at], at):
            self.furthest += 1
        return fits

    def read_mention(self, mention: Mention, states: States) -> States:
        """Read what a variable is called; if its row is open, the rows that fit part here."""
        ends: States = defaultdict(float)
        for (at, env), p in states.items():
            known = env[self.grammar.slots[mention.variable]]
            for row in [known] if isinstance(known, Row) else self.candidates(known, env):
                words = row.forms[mention.form]
                if self.has(words, at):
                    ends[at + len(words), self.put(env, mention.variable, row)] += p
        return ends

    def candidates(self, choice: Choice | None, env: Env) -> tuple[Row, ...]:
        """The rows that an open choice may still turn out to be; `close` weighs them."""
        assert choice is not None, "check_grammar lets no variable be mentioned outside its rule"
        others = [row for row in self.others(choice, env) if isinstance(row, Row)]
        return choice.allowed(tuple(others)) if len(others) == len(choice.depends_on) else choice.table.rows

    def close(self, choice: Choice, states: States) -> States:
        """Leave the scope of a variable: count its probability, forget its row."""
        ends: States = defaultdict(float)
        for (at, env), p in states.items():
            row = env[self.grammar.slots[choice.variable]]
            for settled in self.settle(choice, env) if isinstance(row, Row) else [env]:
                share = 1.0
                if isinstance(row, Row):
                    rows = choice.allowed(tuple([r for r in self.others(choice, settled) if isinstance(r, Row)]))
                    share = (row in rows) / len(rows)
                if share:
                    ends[at, self.put(settled, choice.variable, None)] += p * share
        return ends

    def settle(self, choice: Choice, env: Env) -> list[Env]:
        """Every way to decide the open choices on which this one depends."""
        envs = [env]
        for name in choice.depends_on:
            slot = self.grammar.slots[name]
            envs = [
                self.put(e, name, row)
                for e in envs
                for row in ([e[slot]] if isinstance(e[slot], Row) else self.candidates(e[slot], e))  # type: ignore[arg-type]
            ]
        return envs

    def others(self, choice: Choice, env: Env) -> list[Row | Choice | None]:
        """What is known of the variables on which a choice depends."""
        return [env[self.grammar.slots[name]] for name in choice.depends_on]

    def put(self, env: Env, variable: str, value: Row | Choice | None) -> Env:
        """`env` with one entry replaced."""
        slot = self.grammar.slots[variable]
        return (*env[:slot], value, *env[slot + 1 :])


@dataclass
class Measurer:
    """Counts and entropies from the bottom up, each worked out once for all contexts in which it is the same."""

    grammar: Grammar

    def __post_init__(self) -> None:
        self._measures: dict[tuple[str, int, tuple[Row, ...]], Measure] = {}
        self._needs: dict[tuple[str, int], tuple[str, ...]] = {}

    def measure(self, name: str, step: int, env: dict[str, Row]) -> Measure:
        """Of a rule from its choice number `step` on, where `env` has the rows chosen before."""
        key = name, step, tuple([env[variable] for variable in self.needs(name, step)])
        if key not in self._measures:
            rule = self.grammar.rules[name]
            if step < len(rule.choices):
                self._measures[key] = self.over_rows(rule, step, env)
            else:
                self._measures[key] = self.over_alternatives(rule, env)
        return self._measures[key]

    def over_rows(self, rule: Rule, step: int, env: dict[str, Row]) -> Measure:
        """count = sum_r count_r,  nats = log R + mean_r nats_r  over the R rows that are allowed."""
        choice = rule.choices[step]
        rows = choice.allowed(tuple(env[name] for name in choice.depends_on))
        rests = [self.measure(rule.name, step + 1, env | {choice.variable: row}) for row in rows]
        return Measure(sum(m.derivations for m in rests), math.log(len(rows)) + sum(m.nats for m in rests) / len(rows))

    def over_alternatives(self, rule: Rule, env: dict[str, Row]) -> Measure:
        """count = sum_a prod_i count_ai,  nats = sum_a p_a (-log p_a + sum_i nats_ai)  over alternatives a, calls i."""
        count, nats = 0, 0.0
        for alternative, p in zip(rule.alternatives, self.grammar.probabilities[rule]):
            calls = [self.measure(item.rule, 0, env) for item in alternative.items if isinstance(item, Call)]
            count += math.prod(m.derivations for m in calls)
            nats += p * (-math.log(p) + sum(m.nats for m in calls))
        return Measure(count, nats)

    def needs(self, name: str, step: int) -> tuple[str, ...]:
        """The variables from before that decide what can be chosen from here on."""
        if (name, step) not in self._needs:
            rule = self.grammar.rules[name]
            if step < len(rule.choices):
                choice = rule.choices[step]
                later = [v for v in self.needs(name, step + 1) if v != choice.variable]
                found = [*choice.depends_on, *later]
            else:
                items = [item for alternative in rule.alternatives for item in alternative.items]
                found = [v for item in items if isinstance(item, Call) for v in self.needs(item.rule, 0)]
            self._needs[name, step] = tuple(dict.fromkeys(found))
        return self._needs[name, step]
