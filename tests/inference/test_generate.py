"""Generation: every way to compute the next token gives the same answer, and every way to stop stops right."""

import numpy as np
import pytest

from minillm import ops
from minillm.config import ModelConfig, SamplingConfig
from minillm.inference.cache import Cache, extend
from minillm.inference.generate import Completion, generate, generate_ids, stream
from minillm.inference.text import TextStream
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train(["the cat sat on the mat, the hat sat on the cat. "] * 3, 270)
V = TOKENIZER.vocab_size
CONFIGS = {
    "gpt2": ModelConfig(family="gpt2", vocab_size=V, context_len=23, num_layers=2, num_heads=3, channels=12),
    "llama": ModelConfig(vocab_size=V, context_len=23, num_layers=2, num_heads=4, num_kv_heads=2, channels=24),
}
BOUND = 1e-12  # float64; sums of a few dozen terms in another order


def model_of(name, dtype=np.float64):
    """Random weights, large enough for confident and varied predictions."""
    config = CONFIGS[name]
    weights = initialise(config, 5, dtype)
    generator = np.random.default_rng(6)
    for array in weights.named().values():
        array += 0.3 * generator.standard_normal(array.shape)
    return Model(config, weights, ops)


def ids_of(B, T, seed=1):
    return np.random.default_rng(seed).integers(0, V, (B, T))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cuts", [[9], [5, 4], [1] * 9, [1, 7, 1], [3, 3, 3]])
def test_cached_in_any_chunks_equals_uncached(name, cuts):
    model, ids = model_of(name), ids_of(2, 9)
    cache, parts, start = Cache(model, np.zeros(2, int)), [], 0
    for size in cuts:
        parts.append(extend(model, ids[:, start : start + size], cache))
        start += size
    np.testing.assert_allclose(np.concatenate(parts, axis=1), model.logits(ids), rtol=BOUND, atol=BOUND)


@pytest.mark.parametrize("name", CONFIGS)
def test_left_padded_rows_equal_their_runs_alone(name):
    model, lengths = model_of(name), [9, 4, 1]
    rows = [ids_of(1, n, seed=n) for n in lengths]
    padding = np.array([max(lengths) - n for n in lengths])
    ids = np.concatenate([np.pad(r, ((0, 0), (p, 0)), constant_values=3) for r, p in zip(rows, padding, strict=True)])
    cache = Cache(model, padding)
    together = np.concatenate([extend(model, ids[:, :6], cache), extend(model, ids[:, 6:], cache)], axis=1)
    for b, row in enumerate(rows):
        np.testing.assert_allclose(together[b, padding[b] :], model.logits(row)[0], rtol=BOUND, atol=BOUND)


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_paths_agree_to_rounding(name):
    model, ids = model_of(name, np.float32), ids_of(2, 9)
    plain = model.logits(ids)
    ways = {"cached": [1] * 9, "chunked": [4, 3, 2], "left-padded": [8, 6]}
    for way, cuts in ways.items():
        num_padding = 5 if way == "left-padded" else 0
        cache, padded = Cache(model, np.full(2, num_padding)), np.pad(ids, ((0, 0), (num_padding, 0)))
        parts = [extend(model, piece, cache) for piece in np.split(padded, np.cumsum(cuts)[:-1], axis=1)]
        difference = np.abs(np.concatenate(parts, axis=1)[:, num_padding:] - plain).max() / np.abs(plain).max()
        print(f"{name}, {way}: float32 logits differ from the plain pass by {difference:.1e} of the largest")
        assert difference <= 1e-5


def greedy_by_full_passes(model, prompt, num_tokens):
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(np.argmax(model.logits(np.array([ids]))[0, -1])))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_of_unequal_prompts_continues_each_as_full_passes_do(name):
    model, prompts = model_of(name), [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
    steps = list(generate_ids(model, prompts, SamplingConfig(temperature=0.0, max_tokens=10), eot=-1))
    for b, prompt in enumerate(prompts):
        assert [tokens[b] for tokens in steps] == greedy_by_full_passes(model, prompt, 10)


def test_generation_twice_on_one_model_is_the_same():
    model, config = model_of("llama"), SamplingConfig(temperature=0.9, seed=3, max_tokens=12)
    first = generate(model, TOKENIZER, ["the", "cat sat"], config)
    assert generate(model, TOKENIZER, ["the", "cat sat"], config) == first


def test_a_seeded_prompt_does_not_depend_on_its_neighbours():
    model, config = model_of("llama"), SamplingConfig(temperature=1.0, seed=7, max_tokens=12)
    alone = generate(model, TOKENIZER, ["the"], config)[0]
    together = generate(model, TOKENIZER, ["the", "a longer prompt", "the"], config)
    assert together[0] == alone
    assert together[2].ids != alone.ids, "two rows must not share their noise"


def test_without_a_seed_draws_differ():
    model, config = model_of("llama"), SamplingConfig(temperature=2.0, max_tokens=10)
    assert len({tuple(generate(model, TOKENIZER, ["the"], config)[0].ids) for _ in range(6)}) > 1


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_max_tokens_is_exact(max_tokens):
    model = model_of("gpt2")
    model.weights.tree.embed[TOKENIZER.eot] = 0  # never the best token
    done = generate(model, TOKENIZER, ["the"], SamplingConfig(temperature=0.0, max_tokens=max_tokens))[0]
    assert (len(done.ids), done.finish) == (max_tokens, "length")


@pytest.mark.parametrize("name", CONFIGS)
def test_the_context_can_be_filled_to_its_last_place(name):
    model = model_of(name)
    for length in (1, 21, 22):
        steps = list(generate_ids(model, [[1] * length], SamplingConfig(temperature=0.0, max_tokens=99), eot=-1))
        assert len(steps) == 23 - length
    with pytest.raises(ValueError, match="prompt 1 has 23 tokens and the context 23"):
        list(generate_ids(model, [[1], [1] * 23], SamplingConfig(), eot=-1))
    with pytest.raises(ValueError, match="prompt 0 has 0 tokens"):
        list(generate_ids(model, [[]], SamplingConfig(), eot=-1))
    assert list(generate_ids(model, [], SamplingConfig(), eot=-1)) == []


def play(monkeypatch, tokens, start):
    """A model that says `tokens`, whatever it reads, from slot `start` on."""

    def scripted(_model, ids, cache, **_options):
        cache.length += ids.shape[1]
        logits = np.zeros((len(ids), 1, V))
        logits[:, 0, tokens[cache.length - start]] = 50.0
        return logits

    monkeypatch.setattr("minillm.inference.generate.extend", scripted)
    return model_of("llama")


def scripted_text(monkeypatch, text, prompt="", **settings):
    tokens = [*TOKENIZER.encode(text), TOKENIZER.eot]
    model = play(monkeypatch, tokens, start=1 + len(TOKENIZER.encode(prompt)))
    completions = [Completion()]
    config = SamplingConfig(temperature=0.0, **settings)
    pieces = [piece for _, piece in stream(model, TOKENIZER, [prompt], config, completions)]
    assert "".join(pieces) == completions[0].text
    return completions[0], pieces


def test_the_end_token_stops_and_is_not_text(monkeypatch):
    done, _ = scripted_text(monkeypatch, "the cat")
    assert (done.text, done.finish, done.ids[-1]) == ("the cat", "stop", TOKENIZER.eot)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("mat", "the cat sat on the "), ("sat on", "the cat "), ("the", ""), ("zebra", "the cat sat on the mat")],
)
def test_a_stop_string_cuts_the_text_also_across_tokens(monkeypatch, stop, expected):
    done, _ = scripted_text(monkeypatch, "the cat sat on the mat", stop=(stop,))
    assert (done.text, done.finish) == (expected, "stop")


def test_of_several_stop_strings_the_first_to_be_complete_wins(monkeypatch):
    done, _ = scripted_text(monkeypatch, "the cat sat on the mat", stop=("on", "cat sat o", "t s"))
    assert done.text == "the ca", "the first to be complete"


def test_text_held_back_for_a_stop_string_is_given_out_at_the_end(monkeypatch):
    done, _ = scripted_text(monkeypatch, "the hat as", stop=("assistant",))
    assert (done.text, done.finish) == ("the hat as", "stop")
    done, _ = scripted_text(
        monkeypatch, "the hat as", stop=("assistant",), max_tokens=len(TOKENIZER.encode("the hat a"))
    )
    assert (done.text, done.finish) == ("the hat a", "length")


def test_text_that_cannot_start_a_stop_string_is_not_delayed(monkeypatch):
    _, pieces = scripted_text(monkeypatch, "the cat sat", stop=("xyz",))
    assert len(pieces) == len(TOKENIZER.encode("the cat sat"))


def test_characters_of_several_tokens_arrive_whole(monkeypatch):
    done, pieces = scripted_text(monkeypatch, "the 😀 cat ďž")
    assert done.text == "the 😀 cat ďž"
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_stop_string_may_hold_a_character_of_several_tokens(monkeypatch):
    done, _ = scripted_text(monkeypatch, "the 😀 cat", stop=("😀",))
    assert done.text == "the "


def test_an_empty_prompt_begins_a_document_and_no_prompts_give_nothing(monkeypatch):
    assert generate(model_of("llama"), TOKENIZER, [], SamplingConfig()) == []
    done, _ = scripted_text(monkeypatch, "the", prompt="")
    assert done.text == "the"


def test_overlapping_beginnings_of_a_stop_string_are_followed():
    texts = TextStream(TOKENIZER, ("aab",))
    out = ""
    for character in "aaab tail":
        out += texts.push(TOKENIZER.encode(character)[0])
    assert (out + texts.flush(), texts.stopped) == ("a", True)


def test_a_full_cache_says_so():
    model = model_of("llama")
    cache = Cache(model, np.zeros(1, int), capacity=4)
    with pytest.raises(ValueError, match="4 slots, 5 needed"):
        extend(model, ids_of(1, 5), cache)


def test_the_cache_takes_the_predicted_memory():
    from minillm.estimate import estimate

    model = model_of("llama", np.float32)
    cache = Cache(model, np.zeros(3, int), capacity=7)
    assert cache.num_bytes == 3 * 7 * estimate(model.config, 1).cache_bytes_per_token
