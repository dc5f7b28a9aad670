"""Byte-level BPE vocabularies of others as our Tokenizer: any numbering, and the pattern that their files name."""

from collections.abc import Sequence

from minillm.tokenizer import Tokenizer
from minillm.tokenizer.bpe import ALPHABET, from_printable

PATTERN_OF = {
    "gpt-2": "gpt2",
    "smollm": "smollm",
    "llama-bpe": "cl100k",
    "llama3": "cl100k",
    "llama-v3": "cl100k",
    "qwen2": "qwen2",
}  # by `tokenizer.ggml.pre`


def tokenizer_of(tokens: Sequence[str], merges: Sequence[str], special: Sequence[int], pattern: str,
                 unknown: int | None = None) -> Tokenizer:  # fmt: skip
    """A Tokenizer of a vocabulary.

    tokens: each id's text, in GPT-2's visible alphabet.  merges: "a b", in order.  special: ids of tokens that stand
    for themselves, written plainly.  unknown: the id, one of these, for bytes that the vocabulary lacks.

    ValueError if they do not make one vocabulary.
    """
    apart = set(special)
    ids: dict[str, int] = {}
    for id, token in enumerate(tokens):
        if id not in apart and ids.setdefault(token, id) != id:
            raise ValueError(f"token {token!r} has two ids, {ids[token]} and {id}")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if wrong := [merge for merge, pair in zip(merges, pairs) if len(pair) != 2]:
        raise ValueError(f"a merge must be two tokens with a space between: got {wrong[0]!r}")
    lacking = [character for character in ALPHABET if character not in ids]
    if lacking and (unknown is None or unknown not in apart):
        raise ValueError(f"the vocabulary lacks {len(lacking)} of the 256 bytes, and has no token for what is unknown")
    if strange := [a + b for a, b in pairs if a + b not in ids]:
        raise ValueError(f"the merge into {strange[0]!r} makes no token of the vocabulary")
    numbers = [ids.get(c, unknown or 0) for c in ALPHABET] + [ids[a + b] for a, b in pairs] + list(special)
    if len(set(numbers)) < len(tokens):
        raise ValueError(
            f"{len(tokens) - len(set(numbers))} of {len(tokens)} tokens are no byte, no merge and not special: "
            "this is not a byte-level BPE vocabulary"
        )
    both = [(from_printable(a), from_printable(b)) for a, b in pairs]
    return Tokenizer(both, pattern, [tokens[id] for id in special], numbers)
