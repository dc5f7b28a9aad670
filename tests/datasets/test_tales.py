"""The tales: one derivation a story, exact probabilities, sound English, and nothing that the grammar would not say."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from minillm.datasets.tales import data_folder, tale, tales

NAMES = re.compile(r"\b(Lily|Mia|Anna|Zoe|Nora|Ruby|Tom|Ben|Sam|Max|Leo|Omar)\b")


@pytest.fixture(scope="module")
def stories():
    return [tale(0, index) for index in range(1200)]


def test_each_story_has_one_derivation(stories):
    for story in stories:
        assert tales().nats(story.text) == pytest.approx(story.nats, abs=1e-9), story.text


def test_mean_nats_is_the_entropy(stories):
    nats = np.array([story.nats for story in stories])
    standard_error = nats.std(ddof=1) / math.sqrt(len(nats))
    assert abs(nats.mean() - tales().entropy()) < 4 * standard_error


def test_there_are_more_stories_than_could_ever_be_told(stories):
    assert tales().num_stories() > 10**15
    assert len({story.text for story in stories}) == len(stories)


def test_entropy_stays_below_that_of_equally_likely_stories():
    assert 45 < tales().entropy() <= math.log(tales().num_stories())


def test_a_story_depends_on_seed_and_index_only(stories):
    assert tale(0, 7) == stories[7]
    assert tale(0, 7).text != tale(1, 7).text
    assert tale(0, 7).text != tale(7, 0).text


def test_a_story_is_short_and_its_words_are_few(stories):
    lengths = [len(story.text.split()) for story in stories]
    assert max(lengths) <= 190
    assert 110 < np.mean(lengths) < 160
    assert len({word.lower() for story in stories for word in re.findall(r"[A-Za-z]+", story.text)}) <= 900


def test_no_piece_of_a_story_is_badly_joined(stories):
    for story in stories:
        assert not re.search(r"  | \n|\n |\n\n|[{}\[\]()|_]| [.,!?]|\.\.|[,;]\n", story.text), story.text
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", story.text), story.text
        assert story.text[0].isupper()
        assert re.search(r'[.!?]"?$', story.text), story.text
        assert story.text.count('"') % 2 == 0, story.text


def test_sentences_begin_with_a_capital(stories):
    for story in stories:
        assert not re.search(r'[.!?] [a-z]|\n"?[a-z]|(^|[.] )"[a-z]', story.text), story.text


def refused(text: str) -> bool:
    return tales().nats(text) is None and tales().longest_prefix(text) < len(text)


def test_another_name_midway_is_refused(stories):
    tried = 0
    for story in stories[:120]:
        names = list(NAMES.finditer(story.text))
        if len(names) > 2 and names[-1][0] == names[0][0]:
            start, end = names[-1].span()
            changed = story.text[:start] + ("Amina" if "Amina" not in story.text else "Kofi") + story.text[end:]
            assert tales().nats(changed) is None, changed
            tried += 1
    assert tried > 15


def test_another_pronoun_is_refused(stories):
    swap = {"he": "she", "she": "he", "He": "She", "She": "He", "his": "her", "him": "her"}
    for story in stories[:60]:
        for word in list(re.finditer(r"\b(he|she|He|She|his|him)\b", story.text)):
            changed = story.text[: word.start()] + swap[word[0]] + story.text[word.end() :]
            assert tales().nats(changed) is None, changed


def test_another_article_is_refused(stories):
    for story in stories[:60]:
        for word in re.finditer(r"\b(a|an|A|An) ", story.text):
            other = {"a": "an", "an": "a", "A": "An", "An": "A"}[word[1]]
            assert refused(story.text[: word.start()] + other + story.text[word.end() - 1 :])


def test_a_missing_paragraph_or_ending_is_refused(stories):
    for story in stories[:60]:
        paragraphs = story.text.split("\n")
        for i in range(len(paragraphs)):
            assert tales().nats("\n".join(paragraphs[:i] + paragraphs[i + 1 :])) is None
        assert tales().nats(story.text.rsplit(". ", 1)[0] + ".") is None
        assert tales().nats(story.text + " The end.") is None


def test_every_word_list_is_used():
    folder = Path(data_folder()) / "tales"
    rules = "\n".join(path.read_text() for path in (folder / "rules").glob("*.txt"))
    for path in (folder / "words").glob("*.txt"):
        assert re.search(rf"from {path.stem}\b", rules), f"no rule chooses from {path}"


def test_every_rule_file_tells_what_it_is():
    for path in (data_folder() / "tales").glob("*/*.txt"):
        first = path.read_text().splitlines()[0]
        assert first.startswith("# "), f"{path} begins without a comment"
