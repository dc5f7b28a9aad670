"""`minillm quickstart --full`: pretrain a teacher, teach it to answer, distil it into a student, and compare them all.

The student is trained twice from the same beginning, for the same steps and tokens.  Answers are few: 1,000
conversations have some.  Without a teacher it reads these again and again; its teacher, who has seen more, answers the
questions of 4,000, and says how probable it finds each token.  (Where every question has an exact answer already, a
teacher's probabilities have nothing to add: its entropy is 0.01 nats a token, and the students differ by less than a
standard error.)  A stage that is finished is not done again, so an interrupted command goes on where it was.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from minillm import checkpoint
from minillm.config import DataConfig, DistilConfig, LoopConfig, ModelConfig, OptimConfig, SFTConfig, TrainConfig
from minillm.datasets.tasks import conversation
from minillm.evaluation.exact_match import Answer, exact_match
from minillm.evaluation.records import read_records, write_records
from minillm.evaluation.score import compare, scores
from minillm.plotting import draw_scores, draw_validation
from minillm.training.card import write_card
from minillm.training.folder import RunFolder
from minillm.training.stage import module_of

NUM_ASKED = 1000
NUM_CONVERSATIONS = 40_000  # for the teacher
NUM_ANSWERED, NUM_QUESTIONS = 1_000, 4_000  # for the student: conversations with answers, and those the teacher gives
CONTEXT = 256
PRETRAINING = OptimConfig(optimizer="muon", learning_rate=2e-3, muon_learning_rate=0.012, warmup_steps=20)
TEACHING = replace(PRETRAINING, learning_rate=1.2e-3, muon_learning_rate=0.005)  # faster, it unlearns to look up
DATA = DataConfig(
    source="tales", num_stories=16_000, vocab_size=1024, pattern="digits", vocab_conversations=10_000, val_fraction=0.02
)
TEACHER = ModelConfig(
    num_layers=4, num_heads=4, channels=128, context_len=CONTEXT, tied=False, init_std=0.04, embed_std=0.5
)
STUDENT = replace(TEACHER, channels=56)
TITLES = {
    "teacher": "teacher, pretrained",
    "teacher-sft": "teacher, taught",
    "student-sft": "student, taught",
    "student-distilled": "student, distilled",
}  # the models that are compared, by their folder


class Steps(NamedTuple):
    """Optimizer steps of each stage."""

    teacher: int = 1000
    teacher_sft: int = 1800
    student: int = 1100
    student_sft: int = 1200


def stages(run: Path, steps: Steps) -> list[LoopConfig]:
    """The settings of each run, in their order."""

    def pretraining(name: str, model: ModelConfig, num_steps: int, lists: float) -> TrainConfig:
        pace: dict[str, Any] = {"batch_size": 8, "eval_every": 300, "eval_tokens": 10_000, "sample_every": 0}
        pace["list_steps"] = round(lists * num_steps)
        return TrainConfig(run=run / name, steps=num_steps, model=model, data=DATA, optim=PRETRAINING, **pace)

    def teaching(name: str, base: str, num_steps: int, num_conversations: int) -> dict[str, Any]:
        pace = {"batch_size": 8, "eval_every": 300, "sample_every": 0, "num_conversations": num_conversations}
        return {"run": run / name, "base": run / base, "steps": num_steps, "optim": TEACHING, **pace}

    return [
        pretraining("teacher", TEACHER, steps.teacher, lists=0.45),
        SFTConfig(**teaching("teacher-sft", "teacher", steps.teacher_sft, NUM_CONVERSATIONS)),
        pretraining("student", STUDENT, steps.student, lists=0.6),  # smaller, it takes longer to learn to look up
        SFTConfig(**teaching("student-sft", "student", steps.student_sft, NUM_ANSWERED)),
        DistilConfig(
            **teaching("student-distilled", "student", steps.student_sft, NUM_QUESTIONS),
            teacher=run / "teacher-sft",
            sequence_level=True,
        ),
    ]


def quickstart(run: Path, steps: Steps = Steps(), num_asked: int = NUM_ASKED, command: str = "minillm") -> bool:  # noqa: B008
    """Go through all stages, then print and draw how they compare.  False if interrupted, after saving.

    command: how this program is called, for the hints.
    """
    console, answers, minutes = Console(), {}, {}  # type: Console, dict[str, Sequence[Answer]], dict[str, float]
    for config in stages(run, steps):
        name, began = config.run.name, time.perf_counter()
        if not _done(config) and not _go(config, console):
            console.print(f"Stopped and saved.  Go on with: {command} quickstart --full --run {run}", soft_wrap=True)
            return False
        if name in TITLES:
            answers[name] = _ask(RunFolder(run / name), num_asked, console)
        minutes[name] = (time.perf_counter() - began) / 60
    console.print(_table(run, answers, minutes))
    d = compare(answers["student-sft"], answers["student-distilled"])
    console.print(
        f"The distilled student against the one without a teacher, question by question: {d.mean:+.1%}, 95% confidence "
        f"{d.low:+.1%} to {d.high:+.1%}.\nTime: {sum(minutes.values()):.1f} minutes.", soft_wrap=True
    )  # fmt: skip
    _draw(run, answers)
    console.print(f"Drawn: {run}/accuracy.png and {run}/validation.png.  Now try: {command} chat {run}/teacher-sft",
                  soft_wrap=True)  # fmt: skip
    return True


def _done(config: LoopConfig) -> bool:
    """Whether the run is there, finished.  FileExistsError if it is another's."""
    folder = RunFolder(config.run)
    if not folder.checkpoint_file.exists():
        return False
    older = folder.read_config()
    if _comparable(older) != _comparable(config):
        raise FileExistsError(f"{config.run} holds a run with other settings; choose another folder with --run")
    return checkpoint.load(folder.checkpoint_file)[1]["progress"]["step"] == config.steps


def _comparable(config: LoopConfig) -> LoopConfig:
    """But for the size of the vocabulary, which is known when the tokenizer is."""
    return replace(config, model=replace(config.model, vocab_size=1)) if isinstance(config, TrainConfig) else config


def _go(config: LoopConfig, console: Console) -> bool:
    """Train to the end, from the last checkpoint if there is one.  False if interrupted."""
    folder, module = RunFolder(config.run), module_of(config)
    console.rule(folder.path.name)
    if folder.checkpoint_file.exists():
        trainer = module.resume(folder)
    else:
        _share_corpus(folder)
        trainer = module.start(config)
    console.print(f"{trainer.model.weights.num_parameters:,} parameters, {config.steps} steps")
    return trainer.run(sample_prompts=[], show=True)


def _share_corpus(folder: RunFolder) -> None:
    """The student's tokens are the teacher's: the same text, cut in the same way."""
    teacher = RunFolder(folder.path.parent / "teacher")
    if folder.path.name == "student" and not folder.path.exists():
        shutil.copytree(teacher.path / "data", folder.path / "data")
        shutil.copy(teacher.tokenizer_file, folder.tokenizer_file)


def _ask(folder: RunFolder, num_asked: int, console: Console) -> Sequence[Answer]:
    """The answers to test questions, from an earlier evaluation if there is one."""
    path = folder.path / "exact-match.jsonl"
    questions = [conversation("test", 0, i) for i in range(num_asked)]
    if path.exists():
        records = read_records(path)
        if [r.messages for r in records] == [c.messages[:-1] for c in questions]:
            return records
    console.print(f"Asking {num_asked:,} questions that no model has seen.")
    model, tokenizer = folder.load_model()
    records = exact_match(model, folder.load_template(tokenizer), questions)
    write_records(path, records)
    write_card(folder)
    return records


def _table(run: Path, answers: dict[str, Sequence[Answer]], minutes: dict[str, float]) -> Table:
    found = {name: scores(records) for name, records in answers.items()}
    table = Table("right answers", *(TITLES[name] for name in found), title="Of questions that no model has seen")
    for task in found["teacher-sft"]:
        cells = [f"{s[task].mean:.1%} ± {s[task].standard_error:.1%}" for s in found.values()]
        table.add_row(task, *cells, end_section=list(found["teacher-sft"])[-2:-1] == [task])
    sizes = [f"{RunFolder(run / name).load_model()[0].weights.num_parameters:,}" for name in found]
    table.add_row("parameters", *sizes)
    table.add_row("minutes, with its questions", *(f"{minutes[name]:.1f}" for name in found))
    return table


def _draw(run: Path, answers: dict[str, Sequence[Answer]]) -> None:
    draw_scores({TITLES[name]: scores(records) for name, records in answers.items()}, run / "accuracy.png", "right")
    taught = [name for name in TITLES if name != "teacher"]
    draw_validation({TITLES[n]: RunFolder(run / n).read_metrics() for n in taught}, run / "validation.png")
