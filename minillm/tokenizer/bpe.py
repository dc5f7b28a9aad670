"""Byte-pair encoding: learning which neighbours to merge, and merging them (Sennrich et al. 2016, arXiv 1508.07909).

GPT-2's variant starts from the 256 bytes, so there is no unknown text, and first splits the text into pieces (words,
numbers, punctuation, spaces) that no merge crosses (Radford et al. 2019).  Both halves are here:

    training   count all pairs of neighbours, merge the most frequent pair everywhere, repeat
    encoding   merge the pair that was learned first, repeat, until no pair is known

Training leaves each piece just as encoding with the merges so far would.  So a token is always built from the same two
parts: as long as nothing merges across a token's ends, what happens between them does not depend on what is outside.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

import regex
from tqdm import tqdm

PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "smollm": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+",
    "digits": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
"""How GPT-2 and GPT-4 (and Llama 3) split text, as published with their encoders (github.com/openai/gpt-2 and
openai/tiktoken); how Qwen2 and SmolLM do, as their tokenizer.json says; and as GPT-2 does but every digit by itself,
for models that shall add.  SmolLM's does too, but cuts digits out first, so that spaces before one are at an end."""

ANY_CHARACTER = r"[\s\S]"
"""The last alternative of every other pattern: a character that nothing else matched is a piece, and is not lost."""

Merge = tuple[bytes, bytes]
Pair = tuple[str, str]


def full_pattern(pattern: str) -> str:
    """The regular expression behind the name of a preset, or `pattern` itself, completed so that it loses no text.

    Raises ValueError if `pattern` is neither a preset nor a regular expression that matches at least one character.
    """
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"pattern must be {', '.join(PATTERNS)} or a regular expression: got {pattern!r}")
    expression = PATTERNS.get(pattern, pattern)
    if expression not in PATTERNS.values() and not expression.endswith(ANY_CHARACTER):
        expression = f"{expression}|{ANY_CHARACTER}"
    try:
        matches_nothing = regex.compile(expression).match("")
    except regex.error as error:
        raise ValueError(
            f"pattern must be {', '.join(PATTERNS)} or a regular expression: got {pattern!r}, in which {error}"
        ) from None
    if matches_nothing:
        raise ValueError(f"pattern must not match the empty string, or it splits nothing off: got {pattern!r}")
    return expression


def check_text(text: str) -> None:
    """Raise ValueError unless `text` is a str that UTF-8 can hold (Python allows halves of a surrogate pair)."""
    if not isinstance(text, str):
        raise ValueError(f"text must be a str: got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text must be valid Unicode: character {error.start} is half a surrogate pair, {text[error.start]!r}; "
            "mend it with text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
        ) from None


def train_merges(texts: Iterable[str], num_merges: int, pattern: str = "gpt2", progress: bool = False) -> list[Merge]:
    """Learn up to `num_merges` pairs of neighbouring tokens, in the order in which they were merged.

    Each merge takes the pair with the highest count; among equals, the one whose merged bytes sort first.  So the
    order of the texts does not matter.  Every position counts: "aaa" holds the pair (a, a) twice.
    The list is shorter than asked when every piece has become one token and no pair is left.

    Args:
        texts: the corpus, in parts that are not merged across (documents, say).
        num_merges: how many tokens to add to the 256 bytes.
        pattern: "gpt2", "cl100k", or a regular expression that matches the pieces.
        progress: show a bar.

    Raises:
        ValueError: a text is not valid Unicode, the pattern is wrong, or there is no text to learn from.
    """
    if isinstance(num_merges, bool) or not isinstance(num_merges, int) or num_merges < 0:
        raise ValueError(f"num_merges must be an integer of at least 0: got {num_merges!r}")
    frequency = count_pieces(texts, pattern, progress)
    if num_merges and not frequency:
        raise ValueError(f"the corpus is empty: it has no text to learn {num_merges} merges from")
    # A word is a str whose characters are token ids, so that str.replace is a merge, left to right, at the speed of C.
    words = [piece.encode().decode("latin-1") for piece in frequency]
    return _merge_most_frequent(words, list(frequency.values()), num_merges, progress)


def count_pieces(texts: Iterable[str], pattern: str, progress: bool = False) -> Counter[str]:
    """How often each piece occurs.  A corpus has far fewer distinct pieces than pieces, so they are worked on once."""
    if isinstance(texts, str):
        raise ValueError("texts must be an iterable of str, one per document: got one str; put it in a list")
    split = regex.compile(full_pattern(pattern)).finditer
    frequency: Counter[str] = Counter()
    for text in tqdm(texts, "split", disable=not progress):
        check_text(text)
        frequency.update(match.group() for match in split(text))
    if "" in frequency:
        raise ValueError(f"pattern must not match the empty string: {pattern!r} does")
    return frequency


def _merge_most_frequent(words: list[str], frequency: list[int], num_merges: int, progress: bool) -> list[Merge]:
    """The loop of training.  A merge touches only the words that hold its pair, and only their counts change.

    Only pairs with the newest token appear or grow; all others shrink.  So each pair enters the heap once, and when it
    comes up with a count that has shrunk since, it goes back with the right one.
    """
    tokens = [bytes([byte]) for byte in range(256)]
    counts: defaultdict[Pair, int] = defaultdict(int)
    places: defaultdict[Pair, list[int]] = defaultdict(list)  # words that hold the pair, or once did
    for place, word in enumerate(words):
        for pair in pairwise(word):
            counts[pair] += frequency[place]
            places[pair].append(place)
    heap = [(-count, tokens[ord(a)] + tokens[ord(b)], a, b) for (a, b), count in counts.items()]
    heapq.heapify(heap)
    merges: list[Merge] = []
    bar = tqdm(total=num_merges, desc="merge", disable=not progress)
    while heap and len(merges) < num_merges:
        negative_count, token, a, b = heapq.heappop(heap)
        if counts[a, b] != -negative_count:
            if counts[a, b]:
                heapq.heappush(heap, (-counts[a, b], token, a, b))
            continue
        merges.append((tokens[ord(a)], tokens[ord(b)]))
        new = chr(len(tokens))
        tokens.append(token)
        for x, y in _merge_in_words(a, b, new, words, frequency, counts, places):
            heapq.heappush(heap, (-counts[x, y], tokens[ord(x)] + tokens[ord(y)], x, y))
        bar.update()
    bar.close()
    return merges


def _merge_in_words(
    a: str,
    b: str,
    new: str,
    words: list[str],
    frequency: list[int],
    counts: defaultdict[Pair, int],
    places: defaultdict[Pair, list[int]],
) -> set[Pair]:
    """Replace a, b by `new` in each word, keep counts and places true, and return the pairs that appeared."""
    appeared = set()
    for place in set(places.pop((a, b))):
        old = words[place]
        words[place] = word = old.replace(a + b, new)
        if len(word) == len(old):
            continue  # seen already, or an earlier merge took the pair away
        for pair in pairwise(old):
            counts[pair] -= frequency[place]
        for pair in pairwise(word):
            counts[pair] += frequency[place]
            if new in pair:
                places[pair].append(place)
                appeared.add(pair)
    return appeared


def encode_piece(piece: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The tokens of one piece: merge the pair of lowest rank, leftmost first, until no neighbours make a token.

    This is the definition, in time quadratic in the length; tiktoken does the same with more care for speed.
    """
    parts, unknown = [piece[i : i + 1] for i in range(len(piece))], len(ranks)
    costs = [ranks.get(a + b, unknown) for a, b in pairwise(parts)]  # of each pair of neighbours
    while costs and (rank := min(costs)) < unknown:
        i = costs.index(rank)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del costs[i]
        for j in (i - 1, i):
            if 0 <= j < len(costs):
                costs[j] = ranks.get(parts[j] + parts[j + 1], unknown)
    return parts


def _printable_alphabet() -> list[str]:
    """One visible character per byte: itself if Latin-1 shows it, else the next free one from code point 256 on."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


ALPHABET = _printable_alphabet()
"""GPT-2's way of writing bytes in vocabulary files: a space is Ġ, a newline Ċ, é (two bytes) Ã©."""

BYTE_OF = {character: byte for byte, character in enumerate(ALPHABET)}


def to_printable(token: bytes) -> str:
    """The token in GPT-2's visible alphabet, as in Hugging Face's vocab.json and merges.txt."""
    return "".join(ALPHABET[byte] for byte in token)


def from_printable(text: str) -> bytes:
    """The token that `to_printable` wrote; ValueError for a character outside the alphabet."""
    try:
        return bytes(BYTE_OF[character] for character in text)
    except KeyError as error:
        raise ValueError(f"{text!r} is not in GPT-2's visible alphabet: {error.args[0]!r} is no byte") from None
