"""Evaluations on disk count again without the model, and two of them are compared question by question."""

import math

import pytest

from minillm.evaluation.exact_match import Record, scores
from minillm.evaluation.records import compare, read_records, write_records


def answered(*answers):
    """Questions whose right answer is their number."""
    return [Record("t", [{"role": "user", "content": f"é {i}\n"}], str(i), str(a)) for i, a in enumerate(answers)]


def test_records_score_again_without_the_model(tmp_path):
    records = answered(0, 5, 2, "2 ")
    write_records(tmp_path / "a.jsonl", records)
    assert read_records(tmp_path / "a.jsonl") == records
    assert scores(read_records(tmp_path / "a.jsonl")) == scores(records)


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
    with pytest.raises(ValueError, match="at least two"):
        compare(answered(0), answered(0))


@pytest.mark.parametrize("line", ["{", "[]", '{"task": "t"}'])
def test_a_damaged_file_is_named_with_its_line(tmp_path, line):
    write_records(tmp_path / "a.jsonl", answered(0))
    (tmp_path / "a.jsonl").write_text((tmp_path / "a.jsonl").read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:2: not a record"):
        read_records(tmp_path / "a.jsonl")
