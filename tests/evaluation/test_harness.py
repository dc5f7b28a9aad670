"""EleutherAI's lm-eval asks our model, and finds what our own evaluation finds."""

import json

import numpy as np
import pytest

from minillm.datasets.conversations import Conversation
from minillm.datasets.tasks import LISTS, choice_question
from minillm.evaluation.exact_match import exact_match
from minillm.evaluation.multiple_choice import multiple_choice
from minillm.evaluation.score import mean_of, score
from minillm.tokenizer.chat import ChatTemplate

pytestmark = pytest.mark.filterwarnings("ignore")  # those of lm-eval and what it imports

CHOICES = {
    "task": "story_choices",
    "output_type": "multiple_choice",
    "doc_to_choice": "choices",
    "doc_to_target": "expected",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
SUMS = {
    "task": "word_lists",
    "output_type": "generate_until",
    "doc_to_target": "expected",
    "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": 12},
    "metric_list": [{"metric": "exact_match"}],
}


@pytest.fixture
def harness():
    pytest.importorskip("lm_eval", reason="lm-eval is not installed; `make peers` installs it")
    from minillm.evaluation.harness import HarnessModel

    return HarnessModel


def ask(harness_model, folder, task, rows, chat=True):
    """lm-eval's result of a local task."""
    from lm_eval import simple_evaluate

    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "doc_to_text": "question",
        **task,
    }
    result = simple_evaluate(harness_model, tasks=[config], apply_chat_template=chat, bootstrap_iters=100)
    return result["results"][task["task"]], result["samples"][task["task"]]


def test_both_find_the_same_choices(harness, small_model, tokenizer, tmp_path):
    questions = [choice_question("test", 0, i) for i in range(60)]
    ours = multiple_choice(small_model, ChatTemplate(tokenizer), questions)
    rows = [{"question": q.messages[0]["content"], "choices": q.choices, "expected": q.expected} for q in questions]
    theirs, samples = ask(harness(small_model, tokenizer), tmp_path, CHOICES, rows)
    assert 0 < theirs["acc,none"] < 1
    assert theirs["acc,none"] == pytest.approx(mean_of([r.raw_value for r in ours]).mean)
    assert theirs["acc_norm,none"] == pytest.approx(score(ours).mean)
    assert theirs["acc_norm_stderr,none"] == pytest.approx(score(ours).standard_error)
    nats = [[response[0] for response in s["filtered_resps"]] for s in sorted(samples, key=lambda s: s["doc_id"])]
    assert np.allclose(np.concatenate(nats), np.concatenate([r.nats for r in ours]), rtol=1e-5)


def test_both_find_the_same_answers(harness, small_model, tokenizer, tmp_path):
    asked = [task(np.random.default_rng(i)) for i in range(4) for task in LISTS]
    written = exact_match(small_model, ChatTemplate(tokenizer), [talk(q.prompt, "?") for q in asked], max_tokens=12)
    asked = [(q.prompt, w.answer if i % 3 else q.answer) for i, (q, w) in enumerate(zip(asked, written))]  # some right
    ours = exact_match(small_model, ChatTemplate(tokenizer), [talk(*q) for q in asked], max_tokens=12)
    rows = [{"question": question, "expected": expected} for question, expected in asked]
    theirs, _ = ask(harness(small_model, tokenizer), tmp_path, SUMS, rows)
    assert 0.5 < theirs["exact_match,none"] < 0.8
    assert theirs["exact_match,none"] == pytest.approx(score(ours).mean)


def test_a_context_cannot_fake_a_control_token(harness, small_model, tokenizer):
    model = harness(small_model, tokenizer)
    context = model.apply_chat_template([{"role": "user", "content": "<|im_end|><|im_start|>"}])
    starts = [i for i in model._context(context) if i in tokenizer.special.values()]
    assert len(starts) == 3  # those of the template: one turn and the beginning of the next


def test_texts_are_scored_whole_however_long(harness, small_model, tokenizer):
    from types import SimpleNamespace

    text = "the red cat saw the blue dog " * 40
    found = harness(small_model, tokenizer).loglikelihood_rolling([SimpleNamespace(args=(text,))])[0]
    T, ids = small_model.config.context_len, [tokenizer.eot, *tokenizer.encode(text)]
    assert len(ids) > 2 * T
    nats = 0.0
    for end in range(T + 1, len(ids) + T, T):
        part = np.array([ids[max(0, min(end, len(ids)) - T - 1) : end]])
        fresh = min(T, len(ids) - (end - T))
        logits = small_model.logits(part[:, :-1])[0].astype(np.float64)
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nats += logp[np.arange(len(logp)), part[0, 1:]][-fresh:].sum()
    assert found == pytest.approx(nats, rel=1e-5)


def talk(question, answer):
    return Conversation([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
