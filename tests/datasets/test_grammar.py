"""A grammar on tiny languages whose every story and probability can be listed by hand."""

import math
import re
from collections import defaultdict
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest

from minillm.datasets.grammar import Grammar

CHILDREN = "name | they\nAnna | she\nTom | he\nMei | she\n"
TOYS = "name | where\nball | park\nowl | forest\nkite | park\n"
TINY = """
rule story
    choose hero from children
    choose friend from children but not hero
    3 | {hero} saw {friend}. [toy]
    1 | {Hero.They} hid.
        {friend} ran.

rule toy
    choose toy from toys with where = "park"
    choose other from toys with where = toy.where but not toy
    | {A toy} and {a other}, (good|bad).
"""


def grammar(folder: Path, rules: str = TINY, **lists: str) -> Grammar:
    """Write the files of a grammar and load it."""
    (folder / "words").mkdir(exist_ok=True)
    (folder / "rules").mkdir(exist_ok=True)
    for name, text in ({"children": CHILDREN, "toys": TOYS} | lists).items():
        (folder / "words" / f"{name}.txt").write_text(text)
    (folder / "rules" / "all.txt").write_text(rules)
    return Grammar.load(folder)


def every_tiny_story() -> dict[str, list[float]]:
    """The language of TINY by hand: text to the probabilities of its derivations."""
    found = defaultdict(list)
    they = {"Anna": "She", "Tom": "He", "Mei": "She"}
    for hero, friend in permutations(they, 2):
        for toy, other in permutations(("ball", "kite")):
            for end in ("good", "bad"):
                found[f"{hero} saw {friend}. A {toy} and a {other}, {end}."].append(1 / 6 * 3 / 4 / 2 / 2)
        found[f"{they[hero]} hid.\n{friend} ran."].append(1 / 6 / 4)
    return found


def test_probabilities_of_all_stories_are_those_worked_out_by_hand_and_sum_to_one(tmp_path):
    tiny, stories = grammar(tmp_path), every_tiny_story()
    for text, derivations in stories.items():
        assert tiny.nats(text) == pytest.approx(-math.log(sum(derivations)), abs=1e-12), text
    assert sum(math.exp(-tiny.nats(text)) for text in stories) == pytest.approx(1, abs=1e-12)


def test_count_and_entropy_are_those_worked_out_by_hand(tmp_path):
    tiny = grammar(tmp_path)
    derivations = [p for story in every_tiny_story().values() for p in story]
    assert tiny.num_stories() == len(derivations) == 30
    assert tiny.entropy() == pytest.approx(-sum(p * math.log(p) for p in derivations), abs=1e-12)


def test_a_text_with_several_derivations_has_the_sum_of_their_probabilities(tmp_path):
    ran = "She hid.\nTom ran."  # Anna or Mei is the hero
    tiny = grammar(tmp_path)
    assert len(every_tiny_story()[ran]) == 2
    assert tiny.nats(ran) == pytest.approx(-math.log(2 / 24), abs=1e-12)
    twice = grammar(tmp_path, "rule story\n choose hero from children\n 1 | (a|a|b)\n 3 | a\n")  # hero: never mentioned
    assert twice.nats("a") == pytest.approx(-math.log(1 / 4 * 2 / 3 + 3 / 4), abs=1e-12)
    assert twice.num_stories() == 3 * 4


def test_a_choice_that_hangs_on_an_unmentioned_one_is_weighed_exactly(tmp_path):
    rules = "rule story\n choose toy from toys\n choose other from toys with where = toy.where\n | {other}\n"
    hidden = grammar(tmp_path, rules)
    assert hidden.nats("ball") == pytest.approx(-math.log(2 / 3 / 2), abs=1e-12)
    assert hidden.nats("owl") == pytest.approx(-math.log(1 / 3), abs=1e-12)
    assert hidden.num_stories() == 5
    assert hidden.entropy() == pytest.approx(math.log(3) + 2 / 3 * math.log(2), abs=1e-12)


def test_a_row_read_late_and_the_same_row_read_early_are_added(tmp_path):
    rules = "rule story\n choose toy from toys\n | [first] and {toy}\nrule first\n 1 | ball\n 2 | {toy}\n"
    assert grammar(tmp_path, rules).nats("ball and ball") == pytest.approx(-math.log(1 / 3 * 1 / 3 + 2 / 3 * 1 / 3))
    assert grammar(tmp_path, rules).nats("owl and owl") == pytest.approx(-math.log(2 / 3 * 1 / 3))


def test_a_choice_may_hang_on_one_made_well_before(tmp_path):
    rules = """
    rule story
        choose toy from toys
        choose hero from children
        | {hero}: {toy}, [more]
    rule more
        choose other from toys with where = toy.where
        | {other}.
    """
    early = grammar(tmp_path, rules)
    assert early.num_stories() == 3 * (2 + 1 + 2)
    assert early.entropy() == pytest.approx(2 * math.log(3) + 2 / 3 * math.log(2), abs=1e-12)


def test_written_stories_come_as_often_as_they_should(tmp_path):
    tiny, generator = grammar(tmp_path), np.random.default_rng(0)
    draws, counts = 20_000, defaultdict(int)
    for _ in range(draws):
        counts[tiny.write(generator).text] += 1
    stories = every_tiny_story()
    assert counts.keys() == stories.keys()
    for text, derivations in stories.items():
        p = sum(derivations)
        assert abs(counts[text] - draws * p) < 5 * math.sqrt(draws * p), text


def test_nats_of_a_written_story_are_those_of_its_choices(tmp_path):
    rules = "rule story\n choose hero from children\n 3 | {hero} (ran|sat).\n 1 | {hero} (hid|sang).\n"
    plain, generator = grammar(tmp_path, rules), np.random.default_rng(1)
    for _ in range(50):
        story = plain.write(generator)
        weight = 3 / 4 if story.text.endswith(("ran.", "sat.")) else 1 / 4
        assert story.nats == pytest.approx(-math.log(weight / 3 / 2), abs=1e-12)
        assert plain.nats(story.text) == pytest.approx(story.nats, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Anna saw Anna. A ball and a kite, good.",
        "Anna saw Tom. A ball and a ball, good.",
        "Anna saw Tom. An owl and a kite, good.",
        "Anna saw Tom. A ball and a kite, good. ",
        "He hid.\nTom ran.",
    ],
)
def test_a_text_that_no_derivation_writes_has_no_probability(tmp_path, text):
    assert grammar(tmp_path).nats(text) is None


def test_longest_prefix_ends_where_no_story_can_go_on(tmp_path):
    tiny = grammar(tmp_path)
    assert tiny.longest_prefix("Anna saw Tom. A ball and a kite, good.") == 38
    assert tiny.longest_prefix("Anna saw Tom. A bull") == len("Anna saw Tom. A b")
    assert tiny.longest_prefix("Anna saw Anna.") == len("Anna saw ")
    assert tiny.longest_prefix("Zoe") == 0


def test_articles_and_capitals_fit_the_word(tmp_path):
    rules = "rule story\n choose word from words\n | {Word}, {a word}. {A word}: {word.Near} {a word.near}.\n"
    wanted = {f"{v.upper()}x, an {v}x. An {v}x: Tree a tree." for v in "aeiou"} | {"Bx, a bx. A bx: Tree a tree."}
    words = "name | near\n" + "".join(f"{letter}x | tree\n" for letter in "aeioub")
    read = grammar(tmp_path, rules, words=words)
    assert all(read.nats(text) == pytest.approx(math.log(6), abs=1e-12) for text in wanted)


FAULTS = {
    "unknown rule": ("rule story\n | [stroy]\n", "all.txt:2", "stroy"),
    "unknown list": ("rule story\n choose toy from tois\n | {toy}\n", "all.txt:2", "did you mean 'toys'"),
    "unbound reference": ("rule story\n | {toy}\n", "all.txt:2", "not chosen before"),
    "out of scope": (
        "rule story\n | [a] {toy}\nrule a\n choose toy from toys\n | {toy}\n",
        "all.txt:2",
        "not chosen before",
    ),
    "unbound through a call": ("rule story\n | [a]\nrule a\n | so\n   {toy}\n", "all.txt:5", "not chosen before"),
    "unknown column": ("rule story\n choose toy from toys\n | {toy.size}\n", "all.txt:3", "it has name, where"),
    "unknown test column": ('rule story\n choose toy from toys with size = "x"\n | {toy}\n', "all.txt:2", "size"),
    "chosen twice": ("rule story\n choose toy from toys\n choose toy from toys\n | {toy}\n", "all.txt:3", "already"),
    "chosen too late": ("rule story\n choose a from toys but not b\n choose b from toys\n | {a}\n", "all.txt:2", "'b'"),
    "other list": (
        "rule story\n choose a from toys\n choose b from children but not a\n | {b}\n",
        "all.txt:3",
        "same list",
    ),
    "nothing left": (
        "rule story\n choose a from toys\n choose b from toys with where = a.where but not a\n | {b}\n",
        "all.txt:3",
        "a is 'owl'",
    ),
    "no row passes": ('rule story\n choose a from toys with where = "sea"\n | {a}\n', "all.txt:2", "nothing is left"),
    "weight of zero": ("rule story\n 0 | a\n", "all.txt:2", "weight"),
    "negative weight": ("rule story\n -1 | a\n", "all.txt:2", "weight"),
    "endless weight": ("rule story\n inf | a\n", "all.txt:2", "weight"),
    "weight of words": ("rule story\n | a\n two | b\n", "all.txt:3", "weight"),
    "recursion": ("rule story\n | [a]\nrule a\n | b\n | c [story]\n", "all.txt:5", "story > a > story"),
    "unused rule": ("rule story\n | a\n\nrule b\n | b\n", "all.txt:4", "never used"),
    "rule written twice": ("rule story\n | a\nrule story\n | b\n", "all.txt:3", "all.txt:1"),
    "rule without text": ("rule story\n choose toy from toys\n", "all.txt:1", "at least one"),
    "no rule yet": ("# hello\n | a\n", "all.txt:2", "expected `rule NAME`"),
    "no story": ("rule tale\n | a\n", "rules", "story"),
    "stray line": ("rule story\n hello\n", "all.txt:2", "hello"),
    "bad choose": ("rule story\n choose toy of toys\n | a\n", "all.txt:2", "choose NAME from LIST"),
    "open bracket": ("rule story\n | a {toy\n", "all.txt:2", "bracket"),
    "nested choice": ("rule story\n | (a|(b|c))\n", "all.txt:2", "bracket"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_rule_is_refused_with_file_and_line(tmp_path, fault):
    rules, where, why = FAULTS[fault]
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        grammar(tmp_path, rules)
    assert where in str(error.value)


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("", "toys.txt:1", "at least one row"),
        ("name | where\n", "toys.txt:1", "at least one row"),
        ("# toys\nname | where\nball | park\nowl\n", "toys.txt:4", "expected 2 cells"),
        ("name | where\nball |\n", "toys.txt:2", "expected 2 cells"),
        ("name | Where\nball | park\n", "toys.txt:1", "Where"),
        ("name | name\nball | park\n", "toys.txt:1", "name"),
        ("name | where\nball | park\n\nball | park\n", "toys.txt:4", "already"),
    ],
)
def test_a_malformed_list_is_refused_with_file_and_line(tmp_path, text, where, why):
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        grammar(tmp_path, toys=text)
    assert where in str(error.value)


def test_weights_are_relative(tmp_path):
    one = grammar(tmp_path, "rule story\n 3 | a\n | b\n")
    ten = grammar(tmp_path, "rule story\n 7.5 | a\n 2.5 | b\n")
    assert [one.nats(t) for t in "ab"] == pytest.approx([ten.nats(t) for t in "ab"], abs=1e-12)


def test_entropy_counts_choices_in_the_order_of_the_rules(tmp_path):
    """Entropies of nested grammars add: each further even choice of n adds log n."""
    entropies = []
    for depth in (1, 2, 3):
        rules = "rule story\n | " + " ".join(["(a|b|c)"] * depth) + "\n"
        entropies.append(grammar(tmp_path, rules).entropy())
    assert all(b - a == pytest.approx(math.log(3), abs=1e-12) for a, b in pairwise(entropies))
