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
from minillm.datasets.choices import ChoiceQuestion
from minillm.datasets.conversations import Conversation
from minillm.datasets.grammar_files import read_table
from minillm.datasets.tales import data_folder
from minillm.tokenizer.chat import Message

Split = Literal["train", "val", "test"]
SHARES = {"test": 5, "val": 5}  # of 100 questions; the others are to train on
STORIES = 0.6  # share of the conversations that are about a story
SILENT = "The story does not say."
HOW_OFTEN = {"who": 3, "where": 3, "what": 3, "why": 1.5, "unknown": 1}  # were the unknown the likeliest answer to
# `where`, a model would for long learn nothing but to refuse
MOST_CHILDREN, MOST_QUESTIONS = 3, 4
MOST_ITEMS = 6  # of a list; the difficulty is how many there are
NUMBERS = ("first", "second", "third", "fourth", "fifth", "sixth")
VOWELS = "aeiou"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Question(NamedTuple):
    """key: what makes two questions the same, however they are put.  others: answers that only its story refutes."""

    task: str
    key: str
    prompt: str
    answer: str
    others: tuple[str, ...] = ()


def conversation(split: Split, seed: int, index: int) -> Conversation:
    """Conversation number `index` of the corpus `seed`; it depends on nothing else.

    Its `task` is that of the last question.  One to four questions: all about one story, or each of another kind.
    """
    check_choice("split", split, ("train", "val", "test"))
    generator = np.random.Generator(np.random.Philox(key=[seed, index]))
    num_turns = int(generator.integers(1, MOST_QUESTIONS + 1))
    if generator.random() < STORIES:
        questions = _of_split(split, lambda: about_a_story(generator, num_turns))
    else:
        tasks = generator.choice(len(LISTS), num_turns, replace=False)
        questions = [_of_split(split, lambda task=LISTS[t]: [task(generator)])[0] for t in tasks]  # type: ignore[misc]
    messages: list[Message] = []
    for question in questions:
        messages.append({"role": "user", "content": question.prompt})
        messages.append({"role": "assistant", "content": question.answer})
    return Conversation(messages, questions[-1].task)


def choice_question(split: Split, seed: int, index: int) -> ChoiceQuestion:
    """Multiple-choice question number `index`, of who, where or what in a story of two children or more."""
    check_choice("split", split, ("train", "val", "test"))
    generator = np.random.Generator(np.random.Philox(key=[seed, index]))
    question = _of_split(split, lambda: about_a_story(generator, 1))[0]
    while not question.others:
        question = _of_split(split, lambda: about_a_story(generator, 1))[0]
    choices = [question.answer, *question.others]
    order = generator.permutation(len(choices)).tolist()
    messages: list[Message] = [{"role": "user", "content": question.prompt}]
    return ChoiceQuestion(messages, [choices[i] for i in order], order.index(0), question.task)


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
def words(name: str, folder: str = "tales/words") -> list[dict[str, str]]:
    """A word list of the tales, or of another folder in data/, each row by its columns."""
    return [row.forms for row in read_table(data_folder() / folder / f"{name}.txt").rows]


def _some(generator: np.random.Generator, items: Sequence, number: int) -> list:
    return [items[i] for i in generator.choice(len(items), number, replace=False)]


def about_a_story(generator: np.random.Generator, num_questions: int) -> list[Question]:
    """A story of one to three children, and questions about it; the first brings the story along.

    Who, where, what, why, and something that the story does not say.
    """
    num = int(generator.integers(1, MOST_CHILDREN + 1))
    *children, stranger = [row["name"] for row in _some(generator, words("children"), num + 1)]
    lists = ("activities", "toys", "clothes")
    activities, toys, clothes = (_some(generator, words(name, "questions"), num) for name in lists)
    facts, possible = [], []
    doings = [f"{row['did']} {row['where']}" for row in activities]
    games = [f"{row['did']} a {row['toy']}" for row in toys]
    for child, doing, game, worn in zip(children, doings, games, [row["name"] for row in clothes]):
        colour = _some(generator, words("colours"), 1)[0]["name"]
        told = [f"{child} {doing}.", f"{child} {game}.", f"The {worn} {child} wore was {colour}."]
        facts += generator.permutation(told).tolist()
        possible += [  # answers are whole sentences: to say what was asked of is a way to find what was said of it
            ("who", f"Who wore the {worn}?", f"The {worn} {child} wore.", [f"The {worn} {c} wore." for c in children]),
            ("where", f"Where was {child}?", f"{child} {doing}.", [f"{child} {other}." for other in doings]),
            ("what", f"What did {child} play with?", f"{child} {game}.", [f"{child} {other}." for other in games]),
        ]
    lost = toys[int(generator.integers(num))]
    facts.append(f"The {lost['toy']} was gone, because it had {lost['lost']}.")
    possible += [
        ("why", f"Why was the {lost['toy']} gone?", f"It had {lost['lost']}.", []),
        ("unknown", f"Where was {stranger}?", SILENT, []),
        ("unknown", f"What did {stranger} play with?", SILENT, []),
    ]
    weights = np.array([HOW_OFTEN[task] for task, *_ in possible])
    taken = [possible[i] for i in generator.choice(len(possible), num_questions, False, weights / weights.sum())]
    story = "\n".join(facts)  # each name begins a line, as it begins an answer: the same token
    prompts = [f"{story}\n{taken[0][1]}", *(question for _, question, *_ in taken[1:])]
    key = " ".join(sorted(facts))
    return [
        Question(f"story: {task}", key, prompt, answer, tuple(a for a in answers if a != answer))
        for (task, _, answer, answers), prompt in zip(taken, prompts)
    ]


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _items(generator: np.random.Generator, items: Sequence[str]) -> list[str]:
    return _some(generator, items, int(generator.integers(2, MOST_ITEMS + 1)))


def look_up(generator: np.random.Generator) -> Question:
    """Names with colours, of which one is given: nothing but finding an earlier token, and what stands beside it."""
    num = int(generator.integers(2, MOST_ITEMS + 1))
    names = [row["name"] for row in _some(generator, words("children"), num)]
    pairs = list(zip(names, (row["name"] for row in _some(generator, words("colours"), num))))
    some = _some(generator, pairs, int(generator.integers(1, num + 1)))
    asked = [pair[:: int(generator.choice([1, -1]))] for pair in some]
    lines, answers = ("\n".join(f"- {a} {b}" for a, b in rows) for rows in (pairs, asked))
    prompt = f"{lines}\nLook up: {' '.join(given for given, _ in asked)}"
    return Question("look up", prompt, prompt, answers)


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
    """How many of some letters are vowels, at a glance."""
    said = " ".join(_letters(generator))
    return Question("count", f"count {said}", f"Count vowels in: {said}", str(sum(map(VOWELS.count, said.split()))))


def count_step_by_step(generator: np.random.Generator) -> Question:
    """Likewise with its working: each letter and the count so far, numbered, so as not to lose one's place."""
    items = _letters(generator)
    numbered = [f"{number} {item}" for number, item in zip(NUMBERS, items)]
    so_far = np.cumsum([VOWELS.count(item) for item in items])
    working = ", ".join(f"{line} {number}" for line, number in zip(numbered, so_far))
    prompt = f"Count step by step vowels in: {', '.join(numbered)}"
    return Question("count step by step", f"steps {items}", prompt, f"{working}; {so_far[-1]}")


def _letters(generator: np.random.Generator) -> list[str]:
    """Letters, about half of them vowels."""
    num = int(generator.integers(2, MOST_ITEMS + 1))
    return [str(generator.choice(list(VOWELS if generator.random() < 0.5 else LETTERS))) for _ in range(num)]


def add(generator: np.random.Generator) -> Question:
    """A sum, from memory."""
    a, b = (int(n) for n in generator.integers(0, 30, 2))
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


LISTS = (look_up, copy_words, reverse, sort, count, count_step_by_step, add, add_step_by_step, fill_a_form)
