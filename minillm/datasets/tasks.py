"""Tasks with exact answers, written as conversations: questions about a short story, lists, letters, sums, formats.

A question belongs to the split that the hash of its content chooses: the story asked about, the numbers to be added,
whatever makes it the same question in other words.  So no question is ever in two splits, whichever seeds, sizes and
phrases were used to make them.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from minillm.config import check_choice
from minillm.datasets.conversations import Conversation
from minillm.datasets.grammar_files import read_table
from minillm.datasets.tales import data_folder
from minillm.tokenizer.chat import Message

Split = Literal["train", "val", "test"]
SHARES = {"test": 5, "val": 5}  # of 100 questions; the others are to train on
SILENT = "The story does not say."
HOW_OFTEN = (0.22, 0.25, 0.25, 0.12, 0.08, 0.08)  # of who, where, what, why and the unknown: were that the likeliest
# answer to `where`, a model would for long learn nothing but to refuse
MOST_ITEMS = 6  # of a list; the difficulty is how many there are
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Question(NamedTuple):
    """`key`: what makes two questions the same, however they are put."""

    task: str
    key: str
    prompt: str
    answer: str


def conversation(split: Split, seed: int, index: int) -> Conversation:
    """Conversation number `index` of the corpus `seed`; it depends on nothing else.

    Its `task` is that of the last question.  One to three questions: all about one story, or each of another kind.
    """
    check_choice("split", split, ("train", "val", "test"))
    generator = np.random.Generator(np.random.Philox(key=[seed, index]))
    num_turns = int(generator.choice([1, 2, 3], p=[0.6, 0.25, 0.15]))
    if generator.random() < 0.5:
        questions = _of_split(split, lambda: about_a_story(generator, num_turns))
    else:
        tasks = generator.choice(len(LISTS), num_turns, replace=False)
        questions = [_of_split(split, lambda task=LISTS[t]: [task(generator)])[0] for t in tasks]  # type: ignore[misc]
    messages: list[Message] = []
    for question in questions:
        messages.append({"role": "user", "content": question.prompt})
        messages.append({"role": "assistant", "content": question.answer})
    return Conversation(messages, questions[-1].task)


def split_of(key: str) -> Split:
    """The split that a question belongs to."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    if place < SHARES["test"]:
        return "test"
    return "val" if place < SHARES["test"] + SHARES["val"] else "train"


def _of_split(split: Split, draw: Callable[[], list[Question]]) -> list[Question]:
    while split_of((questions := draw())[0].key) != split:
        pass
    return questions


@cache
def words(name: str) -> list[dict[str, str]]:
    """A word list of the tales, each row by its columns."""
    return [row.forms for row in read_table(data_folder() / "tales" / "words" / f"{name}.txt").rows]


def _some(generator: np.random.Generator, items: Sequence, number: int) -> list:
    return [items[i] for i in generator.choice(len(items), number, replace=False)]


def about_a_story(generator: np.random.Generator, num_questions: int) -> list[Question]:
    """A story of two children, and questions about it; the first brings the story along.

    Who, where, what, why, and something that the story does not say.
    """
    (hero, friend, stranger), places = _some(generator, words("children"), 3), _some(generator, words("places"), 2)
    toys, colours = _some(generator, words("toys"), 2), _some(generator, words("colours"), 2)
    facts = []
    for child, place, toy, colour in zip((hero, friend), places, toys, colours):
        where = f"{child['name']} was {place['in']}."
        what = f"{child['name']} had {_article(colour['name'])} {toy['name']}."
        facts += [where, what] if generator.random() < 0.5 else [what, where]
    lost = int(generator.integers(2))
    facts.append(f"The {toys[lost]['name']} was gone, because it had {toys[lost]['lost']}.")
    asked = int(generator.integers(2))
    child, place, toy, colour = (hero, friend)[asked], places[asked], toys[asked], colours[asked]
    other = toys[1 - asked]["name"]
    name, owner = child["name"], (hero, friend)[1 - asked]["name"]
    possible = [  # answers are whole sentences: to say the name first is a way to find what was said of it
        ("story: who", f"Who had the {other}?", f"{owner} had the {other}."),
        ("story: where", f"Where was {name}?", f"{name} was {place['in']}."),
        ("story: what", f"What did {name} have?", f"{name} had {_article(colour['name'])} {toy['name']}."),
        ("story: why", f"Why was the {toys[lost]['name']} gone?", f"It had {toys[lost]['lost']}."),
        ("story: unknown", f"Where was {stranger['name']}?", SILENT),
        ("story: unknown", f"What did {stranger['name']} have?", SILENT),
    ]
    story = " ".join(facts)
    taken = [possible[i] for i in generator.choice(len(possible), num_questions, replace=False, p=HOW_OFTEN)]
    prompts = [f"{story} {taken[0][1]}", *(question for _, question, _ in taken[1:])]
    return [
        Question(task, " ".join(sorted(facts)), prompt, answer) for (task, _, answer), prompt in zip(taken, prompts)
    ]


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _items(generator: np.random.Generator, items: Sequence[str]) -> list[str]:
    return _some(generator, items, int(generator.integers(2, MOST_ITEMS + 1)))


def copy_words(generator: np.random.Generator) -> Question:
    """Say the same again."""
    said = " ".join(_items(generator, [row["name"] for row in (*words("colours"), *words("natures"))]))
    return Question("copy", f"copy {said}", f"Copy: {said}", said)


def reverse(generator: np.random.Generator) -> Question:
    """The last word first."""
    items = _items(generator, [row["name"] for row in words("colours")])
    return Question("reverse", f"reverse {items}", f"Reverse: {' '.join(items)}", " ".join(reversed(items)))


def sort(generator: np.random.Generator) -> Question:
    """Letters in alphabetical order."""
    items = _items(generator, LETTERS)
    return Question("sort", f"sort {items}", f"Sort: {' '.join(items)}", " ".join(sorted(items)))


def count(generator: np.random.Generator) -> Question:
    """How often a letter occurs among others."""
    letters = _some(generator, LETTERS, 2)
    items = generator.choice(letters, int(generator.integers(2, MOST_ITEMS + 1)))
    said = " ".join(items)
    return Question(
        "count", f"count {letters[0]} {said}", f"Count {letters[0]} in: {said}", str(said.count(letters[0]))
    )


def add(generator: np.random.Generator) -> Question:
    """A sum, from memory."""
    a, b = (int(n) for n in generator.integers(0, 50, 2))
    return Question("add", f"{a} + {b}", f"Add: {a} + {b}", str(a + b))


def add_step_by_step(generator: np.random.Generator) -> Question:
    """A sum of two-digit numbers with its working: units, then tens."""
    a, b = (int(n) for n in generator.integers(10, 50, 2))
    units, tens = a % 10 + b % 10, a // 10 + b // 10
    carried = f"{tens} + 1 = {tens + 1}" if units > 9 else f"{tens}"
    working = f"{a % 10} + {b % 10} = {units}; {a // 10} + {b // 10} = {carried}; {a + b}"
    return Question("add step by step", f"steps {a} + {b}", f"Add step by step: {a} + {b}", working)


def fill_a_form(generator: np.random.Generator) -> Question:
    """Follow a format."""
    child, place = _some(generator, words("children"), 1)[0]["name"], _some(generator, words("places"), 1)[0]
    colour, toy = _some(generator, words("colours"), 1)[0]["name"], _some(generator, words("toys"), 1)[0]["name"]
    prompt = f"Fill in name, toy and place: {child} had {_article(colour)} {toy} {place['in']}."
    return Question("form", prompt, prompt, f"name: {child}; toy: {colour} {toy}; place: {place['name']}")


LISTS = (copy_words, reverse, sort, count, add, add_step_by_step, fill_a_form)
