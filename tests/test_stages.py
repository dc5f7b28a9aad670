"""The whole way from text to a distilled student, in seconds: resumed where it was, compared on the same questions."""

from dataclasses import replace

import pytest

from minillm import stages
from minillm.config import OptimConfig
from minillm.evaluation.records import read_records
from minillm.training.folder import RunFolder
from minillm.training.loop import Trainer

STEPS = stages.Steps(2, 3, 2, 3)


@pytest.fixture
def small(monkeypatch):
    """Models, texts and questions of a size for tests."""
    monkeypatch.setattr(stages, "DATA", replace(stages.DATA, num_stories=60, vocab_size=800, vocab_conversations=200))
    monkeypatch.setattr(stages, "TEACHER", replace(stages.TEACHER, num_layers=1, num_heads=1, channels=16))
    monkeypatch.setattr(stages, "STUDENT", replace(stages.TEACHER, channels=8))
    monkeypatch.setattr(stages, "NUM_CONVERSATIONS", 60)
    monkeypatch.setattr(stages, "NUM_ANSWERED", 20)
    monkeypatch.setattr(stages, "NUM_QUESTIONS", 40)
    # a teacher of three steps finishes no answer
    monkeypatch.setattr("minillm.training.distil.answers_on_disk", lambda teacher, template, asked, *rest: asked)


def test_all_stages_run_and_are_compared(small, tmp_path, capsys):
    assert stages.quickstart(tmp_path, STEPS, num_asked=6)
    out = capsys.readouterr().out
    assert "95% confidence" in out and "distilled" in out
    questions = [[r.question for r in read_records(tmp_path / name / "exact-match.jsonl")] for name in stages.TITLES]
    assert all(asked == questions[0] for asked in questions)
    assert (tmp_path / "accuracy.png").exists() and (tmp_path / "validation.png").exists()
    with_teacher, without = (RunFolder(tmp_path / name).read_config() for name in ("student-distilled", "student-sft"))
    for name in without.__dataclass_fields__:  # the teacher apart, the two students are trained alike
        assert name in ("run", "num_conversations") or getattr(with_teacher, name) == getattr(without, name)
    corpora = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("teacher", "student")]
    assert corpora[0] == corpora[1]


def test_an_interrupted_one_goes_on_where_it_was(small, tmp_path, monkeypatch, capsys):
    run, began = Trainer.run, []

    def counted(trainer, *args, **kwargs):
        began.append(trainer.folder.path.name)
        return run(trainer, *args, **kwargs) and len(began) != 2

    monkeypatch.setattr(Trainer, "run", counted)
    assert not stages.quickstart(tmp_path, STEPS, num_asked=4)
    assert "quickstart --full" in capsys.readouterr().out
    assert stages.quickstart(tmp_path, STEPS, num_asked=4)
    assert began == ["teacher", "teacher-sft", "student", "student-sft", "student-distilled"]


def test_a_folder_with_other_runs_is_left_alone(small, tmp_path, monkeypatch):
    assert stages.quickstart(tmp_path, STEPS, num_asked=4)
    before = (tmp_path / "teacher" / "checkpoint.safetensors").read_bytes()
    monkeypatch.setattr(stages, "TEACHING", OptimConfig(learning_rate=1e-5))
    with pytest.raises(FileExistsError, match="other settings"):
        stages.quickstart(tmp_path, STEPS, num_asked=4)
    assert (tmp_path / "teacher" / "checkpoint.safetensors").read_bytes() == before
