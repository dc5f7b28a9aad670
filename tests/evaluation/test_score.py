"""Means and their errors, records on disk that count again without the model, and paired comparison."""

import math

import numpy as np
import pytest

from minillm.evaluation.exact_match import Answer
from minillm.evaluation.multiple_choice import Choice
from minillm.evaluation.pass_at_k import Samples
from minillm.evaluation.perplexity import Text
from minillm.evaluation.records import read_records, write_records
from minillm.evaluation.score import compare, mean_of, score, scores

ASKED = [{"role": "user", "content": "é?\n"}]


def answered(*answers):
    """Questions whose right answer is their number."""
    return [Answer("t", [{"role": "user", "content": f"é {i}\n"}], str(i), str(a)) for i, a in enumerate(answers)]


def test_scores_are_means_by_task_with_their_standard_errors():
    records = [Answer(task, [], "4", answer) for task, answer in (("b", " 4\n"), ("a", "5"), ("a", "4"), ("a", "4."))]
    result = scores(records)
    assert list(result) == ["a", "b", "all"]
    assert result["a"] == (1 / 3, pytest.approx((1 / 3 * 2 / 3 / 2) ** 0.5), 3)
    assert result["b"].mean == 1 and math.isnan(result["b"].standard_error)  # one question says nothing of the next
    assert result["all"].mean == 0.5
    with pytest.raises(ValueError, match="nothing was scored"):
        score([])


def test_the_standard_error_is_how_far_means_scatter():
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 30, (4000, 40))  # texts of unequal lengths, of unequal difficulty
    values = generator.normal(2, 1, sizes.shape)
    found = [mean_of(v, w) for v, w in zip(values, sizes)]
    assert np.mean([s.standard_error for s in found]) == pytest.approx(np.std([s.mean for s in found]), rel=0.05)


def test_records_of_every_kind_score_again_without_the_model(tmp_path):
    records = [
        *answered(0, 5, 2, "2 "),
        Samples("s", ASKED, "4", ["4", "5", "4 "], 2),
        Choice("c", ASKED, ["a", "bc"], 1, [-1.0, -1.5]),
        Text("ü text", 3.5, 4),
    ]
    write_records(tmp_path / "a.jsonl", records)
    assert read_records(tmp_path / "a.jsonl") == records
    assert [r.value for r in read_records(tmp_path / "a.jsonl")] == [r.value for r in records]


def test_a_comparison_is_paired():
    a, b = answered(0, 1, 9, 9, 4, 9), answered(0, 1, 2, 3, 9, 9)  # 3 and 4 of 6 right; two better, one worse
    d = compare(a, b)
    spread = 1.96 * math.sqrt((2 * (1 - 1 / 6) ** 2 + (-1 - 1 / 6) ** 2 + 3 / 36) / 5 / 6)
    assert d == pytest.approx((1 / 6, 1 / 6 - spread, 1 / 6 + spread, 6))
    assert compare(b, a).mean == -d.mean
    assert compare(a, a) == (0, 0, 0, 6)


def test_other_questions_cannot_be_compared():
    with pytest.raises(ValueError, match="different questions"):
        compare(answered(0, 1), answered(0, 1, 2))
    with pytest.raises(ValueError, match="different questions"):
        compare(answered(0, 1), [Answer(r.task, r.messages, "7", r.answer) for r in answered(0, 1)])
    with pytest.raises(ValueError, match="at least two"):
        compare(answered(0), answered(0))


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"kind": "answer", "task": "t"}', '{"kind": "dream"}', '{"task": "t", "messages": []}']
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, line):
    write_records(tmp_path / "a.jsonl", answered(0))
    (tmp_path / "a.jsonl").write_text((tmp_path / "a.jsonl").read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:2: "):
        read_records(tmp_path / "a.jsonl")
