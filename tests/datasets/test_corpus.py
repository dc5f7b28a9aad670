"""The corpus on disk: what goes in comes out, documents keep to their side, a damaged or foreign folder is named."""

import json

import numpy as np
import pytest

from minillm.datasets.corpus import Corpus, Tokens, prepare
from minillm.datasets.source import Document
from minillm.tokenizer import Tokenizer

TEXTS = ["ab", "c", "déf", "<|endoftext|>", "a <|endoftext|> b", "ghijk", "l m", "nopq rst"]
DOCUMENTS = [Document(text, nats=1.5 * i) for i, text in enumerate(TEXTS)]


class Bytes:
    """A tokenizer of 256 bytes and a separator, or with a larger vocabulary of which a text uses only the last ids."""

    def __init__(self, vocab_size=257, fingerprint="bytes"):
        self.vocab_size, self.eot, self.fingerprint = vocab_size, vocab_size - 1, fingerprint

    def encode_batch(self, texts):
        return [[self.vocab_size - 257 + byte for byte in text.encode()] for text in texts]

    def decode(self, ids):
        return bytes(id - self.vocab_size + 257 for id in ids).decode()


def make(folder, documents=DOCUMENTS, tokenizer=None, val_fraction=0.3, seed=1, settings=None, **rest):
    return prepare(
        documents, tokenizer or Bytes(), folder, val_fraction, seed, settings or {"a": 1}, progress=False, **rest
    )


def texts_of(split, tokenizer):
    return [tokenizer.decode(split.document(i)[1:-1].tolist()) for i in range(split.num_documents)]


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_goes_in_comes_out_with_its_bytes_and_nats(tmp_path):
    corpus = make(tmp_path / "c")
    found = {}
    for split in (corpus.train, corpus.val):
        for text, num_bytes, nats in zip(texts_of(split, Bytes()), split.num_bytes, split.nats, strict=True):
            assert num_bytes == len(text.encode())
            found[text] = nats
    assert found == {document.text: document.nats for document in DOCUMENTS}
    assert corpus.settings == {"a": 1}
    assert (corpus.train.num_documents, corpus.val.num_documents) == (6, 2)


def test_a_separator_precedes_and_follows_each_document_and_is_nowhere_else(tmp_path):
    corpus = make(tmp_path / "c")
    for split in (corpus.train, corpus.val):
        tokens = split.tokens[:]
        assert split.num_tokens == len(tokens) == split.num_bytes.sum() + split.num_documents + 1
        assert np.flatnonzero(tokens == 256).tolist() == [*split.starts, len(tokens) - 1]
        assert split.ends.tolist() == [*split.starts[1:], len(tokens) - 1]
        for i in range(split.num_documents):
            assert split.document(i)[0] == split.document(i)[-1] == 256


def test_a_text_that_mentions_the_separator_is_ordinary_text_with_the_real_tokenizer(tmp_path):
    tokenizer = Tokenizer([(b"<", b"|"), (b"|", b">"), (b"e", b"n")])
    corpus = make(tmp_path / "c", tokenizer=tokenizer)
    num_separators = sum(int((s.tokens[:] == tokenizer.eot).sum()) for s in (corpus.train, corpus.val))
    assert num_separators == len(TEXTS) + 2
    assert sorted(texts_of(corpus.train, tokenizer) + texts_of(corpus.val, tokenizer)) == sorted(TEXTS)


def test_a_tokenizer_that_makes_separators_of_text_is_refused(tmp_path):
    tokenizer = Bytes()
    tokenizer.eot = ord("l")
    with pytest.raises(AssertionError, match="it must encode text only"):
        make(tmp_path / "c", tokenizer=tokenizer)


def test_an_id_outside_the_vocabulary_is_refused(tmp_path):
    tokenizer = Bytes()
    tokenizer.eot, tokenizer.encode_batch = 0, lambda texts: [[257] for _ in texts]
    with pytest.raises(AssertionError, match="id 257, but V is 257"):
        make(tmp_path / "c", tokenizer=tokenizer)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("val_fraction", [0.001, 0.5, 0.999])
def test_no_document_is_on_both_sides_and_both_sides_have_some(tmp_path, seed, val_fraction):
    corpus = make(tmp_path / "c", seed=seed, val_fraction=val_fraction)
    train, val = texts_of(corpus.train, Bytes()), texts_of(corpus.val, Bytes())
    assert sorted(train + val) == sorted(TEXTS)
    assert len(val) == {0.001: 1, 0.5: 4, 0.999: 7}[val_fraction]
    assert train == [text for text in TEXTS if text in train], "training documents keep their order"


def test_the_seed_alone_chooses_who_validates(tmp_path):
    one, same, other = (make(tmp_path / name, seed=seed).folder for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert tree(one) == tree(same)
    assert tree(one) != tree(other)


@pytest.mark.parametrize("documents", [[], DOCUMENTS[:1]])
def test_fewer_than_two_documents_is_an_error(tmp_path, documents):
    with pytest.raises(ValueError, match=f"at least one document each: got {len(documents)} in all; add more text"):
        make(tmp_path / "c", documents)
    assert not list(tmp_path.iterdir())


def test_two_documents_are_enough(tmp_path):
    corpus = make(tmp_path / "c", DOCUMENTS[:2])
    assert corpus.train.num_documents == corpus.val.num_documents == 1


def test_an_empty_document_is_an_error_that_says_which(tmp_path):
    with pytest.raises(ValueError, match="document 2 is empty"):
        make(tmp_path / "c", [*DOCUMENTS[:2], Document("")])


def test_nats_are_none_unless_known_for_all(tmp_path):
    corpus = make(tmp_path / "c", [*DOCUMENTS, Document("unknown")])
    assert corpus.train.nats is None
    assert corpus.val.nats is None


@pytest.mark.parametrize("shard_tokens", [1, 2, 3, 5, 7, 100])
def test_many_shards_read_as_one_array(tmp_path, shard_tokens):
    one, many = make(tmp_path / "one"), make(tmp_path / "many", shard_tokens=shard_tokens)
    N = one.train.num_tokens
    assert len(list((tmp_path / "many" / "train").glob("tokens-*.bin"))) == -(-N // shard_tokens)
    assert many.train.num_tokens == N
    whole = one.train.tokens[:]
    for start in range(N + 1):
        for stop in range(start, N + 2):
            np.testing.assert_array_equal(many.train.tokens[start:stop], whole[start:stop])
    np.testing.assert_array_equal(many.train.tokens[-3:], whole[-3:])
    np.testing.assert_array_equal(many.train.tokens[5:2], whole[5:2])
    assert texts_of(many.val, Bytes()) == texts_of(one.val, Bytes())


def test_many_batches_of_documents_give_the_same_corpus_as_one(tmp_path, monkeypatch):
    make(tmp_path / "one")
    monkeypatch.setattr("minillm.datasets.corpus.BATCH_CHARACTERS", 4)
    make(tmp_path / "many")
    assert tree(tmp_path / "one") == tree(tmp_path / "many")


@pytest.mark.parametrize(("vocab_size", "dtype"), [(257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (200_000, "<u4")])
def test_the_separator_counts_when_the_width_of_ids_is_chosen(tmp_path, vocab_size, dtype):
    tokenizer = Bytes(vocab_size)
    corpus = make(tmp_path / "c", tokenizer=tokenizer)
    assert corpus.train.tokens[:].dtype == np.dtype(dtype)
    assert corpus.train.tokens[:1][0] == tokenizer.eot == vocab_size - 1
    assert sorted(texts_of(corpus.train, tokenizer) + texts_of(corpus.val, tokenizer)) == sorted(TEXTS)


def test_everything_read_is_read_only(tmp_path):
    split = make(tmp_path / "c", shard_tokens=5).train
    for array in (split.tokens[:2], split.tokens[3:9], split.document(0), split.starts, split.num_bytes, split.nats):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_tokens_refuse_strides():
    with pytest.raises(AssertionError, match="step 2"):
        Tokens([np.arange(5)])[::2]


def test_another_tokenizer_is_an_error_naming_both_fingerprints(tmp_path):
    make(tmp_path / "c")
    with pytest.raises(ValueError, match=r"its fingerprint is bytes, that of the tokenizer given is other; load .* or"):
        Corpus.open(tmp_path / "c", Bytes(fingerprint="other"))


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_preparation_leaves_nothing_and_a_rerun_works(tmp_path, error):
    def interrupted():
        yield from DOCUMENTS[:5]
        assert list(tmp_path.iterdir()), "the work goes on beside the folder"
        assert not (tmp_path / "c").exists()
        raise error

    with pytest.raises(type(error)):
        make(tmp_path / "c", interrupted())
    assert not list(tmp_path.iterdir())
    assert make(tmp_path / "c").train.num_documents == 6
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_an_interruption_while_the_splits_are_written_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        make(tmp_path / "c", settings={"not for JSON": object()})
    assert not list(tmp_path.iterdir())


def test_what_is_left_of_a_killed_preparation_is_in_nobodys_way(tmp_path):
    (tmp_path / ".c-killed" / "corpus").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no prepared corpus"):
        Corpus.open(tmp_path / "c", Bytes())
    make(tmp_path / "c")


def test_a_folder_that_exists_is_not_overwritten(tmp_path):
    before = tree(make(tmp_path / "c").folder)
    with pytest.raises(FileExistsError, match=r"exists already; read it with Corpus.open, or delete it"):
        make(tmp_path / "c", seed=2)
    assert tree(tmp_path / "c") == before


def test_parents_of_the_folder_are_made(tmp_path):
    assert make(tmp_path / "runs" / "train" / "corpus").folder.is_dir()


def damage(path, content):
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize("name", ["train/tokens-00000.bin", "train/tokens-00002.bin", "val/tokens-00000.bin"])
@pytest.mark.parametrize("keep", [None, 0, -1, -2, 1000])
def test_a_shard_of_another_size_is_named(tmp_path, name, keep):
    path = make(tmp_path / "c", shard_tokens=6).folder / name
    data = path.read_bytes()
    damage(path, None if keep is None else data + data if keep == 1000 else data[:keep])
    got = "no such file" if keep is None else f"{path.stat().st_size} bytes"
    with pytest.raises(ValueError, match=rf"{path.name} is damaged: expected {len(data)} bytes, got {got}; delete"):
        Corpus.open(tmp_path / "c", Bytes())


@pytest.mark.parametrize("name", ["starts.npy", "num_bytes.npy", "nats.npy"])
@pytest.mark.parametrize("keep", [None, 0, 50, -1])
def test_a_damaged_array_is_named(tmp_path, name, keep):
    path = make(tmp_path / "c").folder / "train" / name
    damage(path, None if keep is None else path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"{name} is damaged: expected an array of 6 numbers"):
        Corpus.open(tmp_path / "c", Bytes())


def test_an_array_of_another_length_is_named(tmp_path):
    path = make(tmp_path / "c").folder / "train" / "starts.npy"
    np.save(path, np.arange(5))
    with pytest.raises(ValueError, match=r"starts.npy is damaged: expected an array of 6 numbers, got shape \(5,\)"):
        Corpus.open(tmp_path / "c", Bytes())


def test_pickled_objects_are_never_loaded(tmp_path):
    path = make(tmp_path / "c").folder / "train" / "starts.npy"
    np.save(path, np.array([None] * 6), allow_pickle=True)
    with pytest.raises(ValueError, match=r"starts.npy is damaged"):
        Corpus.open(tmp_path / "c", Bytes())


@pytest.mark.parametrize("content", [b"", b'{"format": 1, ', b"[]", b"\xff", json.dumps({"format": 99}).encode()])
def test_a_damaged_meta_file_is_named(tmp_path, content):
    (make(tmp_path / "c").folder / "meta.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"meta.json is damaged: expected"):
        Corpus.open(tmp_path / "c", Bytes())
