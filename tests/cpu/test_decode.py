"""One token in one compiled call: the logits are those of the ops one by one, for any rows, threads and family."""

import numpy as np
import pytest

from minillm import backend, threads
from minillm.config import ModelConfig
from minillm.cpu import decode
from minillm.inference.cache import Cache, extend
from minillm.model.model import Model
from minillm.model.weights import initialise

CPU, NUMPY = backend.load("cpu"), backend.load("numpy")
SHAPE = {"vocab_size": 37, "context_len": 24, "init_std": 0.3}
CONFIGS = {
    "llama": ModelConfig(num_layers=2, num_heads=6, num_kv_heads=2, channels=36, **SHAPE),
    "llama, one key/value head": ModelConfig(num_layers=2, num_heads=4, num_kv_heads=1, channels=24, **SHAPE),
    "llama, as small as can be": ModelConfig(num_layers=1, num_heads=1, channels=2, tied=False, **SHAPE),
    "llama, biases and wide heads": ModelConfig(
        num_layers=2, num_heads=4, num_kv_heads=2, channels=24, head_channels=10, qkv_bias=True, **SHAPE
    ),
    "gpt2": ModelConfig(family="gpt2", num_layers=3, num_heads=3, channels=33, **SHAPE),
    "gpt2, untied": ModelConfig(family="gpt2", num_layers=1, num_heads=5, channels=40, tied=False, **SHAPE),
}
BOUND = 2e-6  # of the largest logit: float32 sums of at most 160 terms, through 3 layers


@pytest.fixture(autouse=True)
def as_before():
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)


def model_of(config, ops, dtype=np.float32):
    weights = initialise(config, 0, dtype)
    generator = np.random.default_rng(1)
    for array in weights.named().values():
        if array.ndim == 1:  # biases of zero and norms of one would hide mistakes
            array += 0.3 * generator.standard_normal(array.shape)
    return Model(config, weights, ops)


def run(model, B, ends_early=False):
    """Logits of 9 tokens in B rows, the first 4 in one pass; row b is padded by b % 3.  What nobody sees is 0."""
    padding = np.arange(B) % 3
    ids = np.random.default_rng(0).integers(0, 37, (B, 9))
    cache = Cache(model, padding)
    parts = [extend(model, ids[:, :4], cache)]
    for t in range(4, 9):
        if ends_early and t == 7:
            cache.end_row(B - 1)
        parts.append(extend(model, ids[:, t : t + 1], cache))
    logits = np.concatenate(parts, axis=1)
    logits[np.arange(9) < padding[:, None]] = 0
    if ends_early:
        logits[B - 1, 7:] = 0
    return logits, cache


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("B", [1, 2, 4, 7])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_cache_are_those_of_the_reference(name, B, num_threads):
    threads.set_num_threads(num_threads)
    want, want_cache = run(model_of(CONFIGS[name], NUMPY), B)
    got, cache = run(model_of(CONFIGS[name], CPU), B)
    assert cache.decoder is not None
    assert want_cache.decoder is None
    assert np.abs(got - want).max() <= BOUND * np.abs(want).max()
    for a, b in ((cache.keys, want_cache.keys), (cache.values, want_cache.values)):
        filled = np.abs(b[:, :, 3:9]).max()
        assert np.abs(a[:, :, 3:9] - b[:, :, 3:9]).max() <= BOUND * filled
    assert cache.length == want_cache.length == 9


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_that_has_ended_disturbs_nobody(name):
    want, _ = run(model_of(CONFIGS[name], NUMPY), 3, ends_early=True)
    got, _ = run(model_of(CONFIGS[name], CPU), 3, ends_early=True)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= BOUND * np.abs(want).max()


@pytest.mark.parametrize("B", [1, 5])
@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_do_not_depend_on_the_number_of_threads(name, B):
    answers = []
    for num in (1, 2, 3, 5):  # more threads than heads, too
        threads.set_num_threads(num)
        answers.append(run(model_of(CONFIGS[name], CPU), B)[0])
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


def test_inside_a_piece_of_work_it_runs_on_that_thread_alone():
    threads.set_num_threads(2)
    alone = run(model_of(CONFIGS["llama"], CPU), 2)[0]
    for logits in threads.run_all(lambda _: run(model_of(CONFIGS["llama"], CPU), 2)[0], range(4)):
        np.testing.assert_array_equal(logits, alone)


def test_the_number_of_threads_may_change_while_a_cache_lives():
    model = model_of(CONFIGS["llama"], CPU)
    threads.set_num_threads(1)
    cache = Cache(model, np.zeros(1, int))
    threads.set_num_threads(3)
    first = extend(model, np.array([[1]]), cache)
    threads.set_num_threads(2)
    second = extend(model, np.array([[1]]), Cache(model, np.zeros(1, int)))
    np.testing.assert_array_equal(first, second)


def test_float64_goes_op_by_op():
    model = model_of(CONFIGS["gpt2"], CPU, np.float64)
    logits, cache = run(model, 2)
    assert cache.decoder is None
    assert logits.dtype == np.float64


def test_normalised_heads_go_op_by_op():
    config = ModelConfig(num_layers=2, num_heads=4, num_kv_heads=2, channels=24, qk_norm=True, **SHAPE)
    want, _ = run(model_of(config, NUMPY), 2)
    got, cache = run(model_of(config, CPU), 2)
    assert cache.decoder is None
    assert np.abs(got - want).max() <= BOUND * np.abs(want).max()


def test_an_id_outside_the_vocabulary_is_refused_and_the_cache_stays_as_it_was():
    model = model_of(CONFIGS["llama"], CPU)
    cache = Cache(model, np.zeros(1, int))
    with pytest.raises(ValueError, match=r"in \[0, 37\)"):
        extend(model, np.array([[37]]), cache)
    assert cache.length == 0


@pytest.mark.parametrize("ops", [CPU, NUMPY])
@pytest.mark.parametrize("rows", [1, 3])
def test_ids_must_have_as_many_rows_as_the_cache(rows, ops):
    cache = Cache(model_of(CONFIGS["llama"], ops), np.zeros(2, int))
    with pytest.raises(ValueError, match=f"{rows} and 2 rows"):
        extend(model_of(CONFIGS["llama"], ops), np.ones((rows, 1), int), cache)
    assert cache.length == 0


def test_a_failing_thread_lets_the_others_go(monkeypatch):
    model = model_of(CONFIGS["llama"], CPU)
    threads.set_num_threads(2)
    cache = Cache(model, np.zeros(1, int))
    extend(model, np.array([[1]]), cache)
    real = decode._token

    def failing(rank, *rest):
        if rank == 1:
            raise MemoryError("rank 1")
        real(rank, *rest)

    monkeypatch.setattr(decode, "_token", failing)
    with pytest.raises(MemoryError, match="rank 1"):
        extend(model, np.array([[1]]), cache)
