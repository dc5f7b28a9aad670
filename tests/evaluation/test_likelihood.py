"""Validation loss: exact on models whose loss is known, and independent of how documents are batched."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from minillm import ops
from minillm.config import DataConfig, ModelConfig
from minillm.datasets.corpus import prepare
from minillm.datasets.source import Document
from minillm.evaluation.likelihood import likelihood
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.tokenizer import Tokenizer

TEXTS = [f"story {i}: " + "word " * (i % 7) for i in range(40)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    tokenizer = Tokenizer.train(TEXTS, 270)
    documents = [Document(text, nats=float(len(text))) for text in TEXTS]
    folder = tmp_path_factory.mktemp("data") / "corpus"
    return tokenizer, prepare(documents, tokenizer, folder, 0.5, DataConfig().seed, {}, progress=False)


def model_of(vocab_size, context_len=16):
    config = ModelConfig(vocab_size=vocab_size, context_len=context_len, num_layers=1, num_heads=2, channels=8)
    return Model(config, initialise(config, 0, np.float64), ops)


def test_a_model_that_knows_nothing_loses_log_v(corpus):
    tokenizer, data = corpus
    model = model_of(tokenizer.vocab_size)
    model.weights.tree.embed[...] = 0
    result = likelihood(model, data.val, 4)
    assert result.loss == pytest.approx(math.log(tokenizer.vocab_size), rel=1e-12)
    assert result.num_targets == sum(len(data.val.document(i)) - 1 for i in range(data.val.num_documents))
    total_bits = result.loss * result.num_targets / math.log(2)
    assert result.bits_per_byte == pytest.approx(total_bits / data.val.num_bytes.sum())
    assert result.floor == pytest.approx(data.val.nats.sum() / result.num_targets)


def test_batch_size_does_not_change_the_loss(corpus):
    tokenizer, data = corpus
    model = model_of(tokenizer.vocab_size)
    losses = [likelihood(model, data.val, size).loss for size in (1, 2, 3, 50)]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-12)


def test_each_document_is_scored_alone_by_the_plain_definition(corpus):
    tokenizer, data = corpus
    model, total, count = model_of(tokenizer.vocab_size, context_len=64), 0.0, 0
    for i in range(data.val.num_documents):
        ids = data.val.document(i).astype(np.int64)
        logits = model.logits(ids[None, :-1])[0]
        for row, target in zip(logits, ids[1:], strict=True):
            total += math.log(np.exp(row - row.max()).sum()) + row.max() - row[target]
            count += 1
    assert likelihood(model, data.val, 5).loss == pytest.approx(total / count, rel=1e-11)


def test_a_limit_scores_fewer_whole_documents(corpus):
    tokenizer, data = corpus
    some = likelihood(model_of(tokenizer.vocab_size), data.val, 4, max_tokens=60)
    assert 40 <= some.num_targets <= 80


def test_the_floor_is_unknown_where_the_entropy_is(corpus):
    tokenizer, data = corpus
    val = SimpleNamespace(**{n: getattr(data.val, n) for n in ("tokens", "starts", "ends", "num_bytes", "document")})
    val.nats, val.num_documents = None, data.val.num_documents
    assert likelihood(model_of(tokenizer.vocab_size), val, 4, 60).floor is None
