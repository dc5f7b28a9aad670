"""Tasks: right answers, the same for the same seed, and no question in two splits."""

import re

import numpy as np
import pytest

from minillm.datasets.tasks import LISTS, SILENT, about_a_story, conversation, split_of, words
from minillm.tokenizer.chat import check_messages

NUM = 400
PLACES = {row["did"] for row in words("activities", "questions")}


def conversations(split, seed=0, number=NUM):
    return [conversation(split, seed, i) for i in range(number)]


def turns(c):
    """(prompt, answer) of each turn."""
    return [(c.messages[i]["content"], c.messages[i + 1]["content"]) for i in range(0, len(c.messages), 2)]


def right_answer(prompt, story):
    """The answer, found again from the words of the prompt alone; None where the task is not of this kind."""
    kind, _, rest = prompt.partition(": ")
    match kind:
        case "Copy":
            return rest
        case "Reverse":
            return " ".join(rest.split()[::-1])
        case "Sort":
            return " ".join(sorted(rest.split()))
        case "Add":
            return str(sum(map(int, rest.split(" + "))))
    if kind.endswith("Look up"):
        pairs = [line.split()[1:] for line in kind.split("\n")[:-1]]
        beside = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
        return "\n".join(f"- {given} {beside[given]}" for given in rest.split())
    if kind.startswith("Count step"):
        lines = rest.split(", ")
        is_vowel = [line.split()[1] in "aeiou" for line in lines]
        so_far = [f"{line} {sum(is_vowel[: i + 1])}" for i, line in enumerate(lines)]
        return f"{', '.join(so_far)}; {sum(is_vowel)}"
    if kind.startswith("Count"):
        return str(sum(letter in "aeiou" for letter in rest.split()))
    if found := re.search(r"Where was (\w+)\?$", prompt):
        done = [fact for fact in story if fact.startswith(f"{found[1]} ") and fact.split()[1] in PLACES]
        return done[0] if done else SILENT
    if found := re.search(r"Who wore the (\w+)\?$", prompt):
        fact = next(fact for fact in story if fact.startswith(f"The {found[1]} "))
        return f"{fact.rpartition(' was')[0]}."
    return None


def test_answers_are_right():
    checked = 0
    for c in conversations("train"):
        story = c.messages[0]["content"].split("\n")[:-1]
        for prompt, answer in turns(c):
            expected = right_answer(prompt, story)
            checked += expected is not None
            assert expected in (None, answer), (story, prompt)
    assert checked > NUM / 2


def test_the_working_of_a_sum_adds_up():
    workings = [a for c in conversations("train", number=2000) for p, a in turns(c) if p.startswith("Add step")]
    assert len(workings) > 50
    for working in workings:
        for left, right in re.findall(r"([\d +]+) = (?:\d+ \+ 1 = )?(\d+)", working):
            assert sum(map(int, left.split(" + "))) == int(right) or f"= {right}" in working
    prompts = [(p, a) for c in conversations("train", number=2000) for p, a in turns(c) if p.startswith("Add step")]
    for prompt, working in prompts:
        a, b = map(int, prompt.split(": ")[1].split(" + "))
        assert working.endswith(f"; {a + b}")


def test_every_task_occurs_and_conversations_are_well_formed():
    got = conversations("train")
    assert len({c.task for c in got}) == len(LISTS) + 5
    assert {len(c.messages) for c in got} == {2, 4, 6, 8}
    for c in got:
        check_messages(c.messages)


def test_a_conversation_depends_on_seed_and_number_alone():
    assert conversation("val", 3, 7) == conversation("val", 3, 7)
    texts = {str(conversation("val", seed, i)) for seed in (0, 1) for i in range(50)}
    assert len(texts) > 90


def test_no_question_is_in_two_splits():
    seen = {}
    for split in ("train", "val", "test"):
        for c in conversations(split, seed={"train": 0, "val": 0, "test": 5}[split], number=1500):
            story = c.task.startswith("story")
            keys = [" ".join(sorted(c.messages[0]["content"].split("\n")[:-1]))] if story else []
            keys += [] if story else [prompt for prompt, _ in turns(c)]
            for key in keys:
                assert seen.setdefault(key, split) == split, key
    assert set(seen.values()) == {"train", "val", "test"}


def test_the_splits_have_the_shares_they_should():
    splits = [split_of(str(i)) for i in range(4000)]
    assert splits.count("test") / 4000 == pytest.approx(0.05, abs=0.012)
    assert splits.count("val") / 4000 == pytest.approx(0.05, abs=0.012)


def test_a_story_is_asked_about_in_other_words_and_still_the_same_question():
    keys = {q.key for q in about_a_story(np.random.default_rng(0), 3)}
    assert len(keys) == 1


def test_every_verb_belongs_to_one_place_or_one_toy():
    rows = words("activities", "questions") + words("toys", "questions")
    assert len({row["did"] for row in rows}) == len(rows)
    assert len({row["where"] for row in rows if "where" in row}) == len(words("activities", "questions"))
    assert len({row["toy"] for row in rows if "toy" in row}) == len(words("toys", "questions"))
