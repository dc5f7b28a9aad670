"""tiktoken, Hugging Face's tokenizers and the twelve-line definition give the same ids."""

import random
import sysconfig
from pathlib import Path

import pytest
import regex

from minillm.tokenizer import Tokenizer
from minillm.tokenizer.bpe import encode_piece, to_printable

PATTERNS = ["gpt2", "cl100k", r"\p{L}+|\d"]
STDLIB = Path(sysconfig.get_path("stdlib"))
CODE = [(STDLIB / name).read_text(encoding="utf-8") for name in ("textwrap.py", "heapq.py", "shlex.py")]
LANGUAGES = (
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Съешь же ещё этих мягких французских булок. "
    "人人生而自由,在尊严和权利上一律平等。すべての人間は、生まれながらにして自由である。 "
    "모든 인간은 태어날 때부터 자유롭다. "
    "يولد جميع الناس أحراراً "
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में 👩‍👩‍👧‍👦 🇨🇿 👍🏽 e\u0301 ﬁ ½ ² Ⅷ ١٢٣ \u00a0\u2003\u3000 I'LL we'Ve it'\u017f"
)
SPACES = "a  b   c\n\n\n  d\t\te \r\n f\u00a0 g\x1c\x85h \v\f " + " " * 300


@pytest.fixture(scope="module", params=PATTERNS)
def tokenizer(request):
    return Tokenizer.train([*CODE, LANGUAGES * 3, SPACES, ".:.:.: :.:. " * 9], 1500, request.param)


@pytest.fixture(scope="module")
def peer(tokenizer):
    hf = pytest.importorskip("tokenizers")
    vocab = {to_printable(tokenizer.token_bytes(id)): id for id in range(256 + len(tokenizer.merges))}
    merges = [(to_printable(a), to_printable(b)) for a, b in tokenizer.merges]
    made = hf.Tokenizer(hf.models.BPE(vocab=vocab, merges=merges))
    split = hf.pre_tokenizers.Split(hf.Regex(tokenizer.pattern), "isolated")
    bytes_of = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = hf.pre_tokenizers.Sequence([split, bytes_of])
    return lambda text: made.encode(text).ids


def random_texts(seed, count):
    rng = random.Random(seed)
    points = [*range(0x300), *range(0x300, 0xD800, 37), *range(0xE000, 0x110000, 397)]
    anywhere = "".join(map(chr, rng.choices(points, k=500)))
    for _ in range(count):
        letters = rng.choice([anywhere, "ab ", ".: ", "  \n\ta", "etaoin shrdlu'", "0123456789 ", LANGUAGES, CODE[0]])
        yield "".join(rng.choices(letters, k=rng.randrange(60)))


def test_huggingface_gives_the_same_ids(tokenizer, peer):
    other = (STDLIB / "argparse.py").read_text(encoding="utf-8")
    for text in [*CODE, other, LANGUAGES, SPACES, "", ".:.:.::.:.", "<|endoftext|>", *random_texts(1, 1500)]:
        assert tokenizer.encode(text) == peer(text), repr(text[:200])


def test_the_definition_gives_the_same_ids(tokenizer):
    ranks = {a + b: rank for rank, (a, b) in enumerate(tokenizer.merges)}
    split = regex.compile(tokenizer.pattern)
    for text in [LANGUAGES, SPACES, *random_texts(2, 300)]:
        pieces = [match.group().encode() for match in split.finditer(text)]
        expected = [part for piece in pieces for part in encode_piece(piece, ranks)]
        assert [tokenizer.token_bytes(id) for id in tokenizer.encode(text)] == expected


def test_the_lowest_rank_merges_first_not_the_leftmost_pair():
    tokenizer = Tokenizer([(b"l", b"o"), (b"H", b"e"), (b"l", b"l"), (b"He", b"l"), (b"Hel", b"lo")])
    assert [tokenizer.token_bytes(id) for id in tokenizer.encode("Hello,")] == [b"Hello", b","]
    assert [tokenizer.token_bytes(id) for id in tokenizer.encode("Hell")] == [b"He", b"ll"]
