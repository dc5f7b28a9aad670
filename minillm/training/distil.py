"""Distillation: fine-tuning in which a teacher says, token by token, what else would have been probable.

(Hinton et al. 2015, arXiv 1503.02531.)  The teacher reads the very rows that the student does, packing and all, and
only forwards: it is never differentiated.  Besides that, a run may choose

    top_k            the teacher reads every row once, before, and what it finds likeliest is kept    predictions.py
    hidden_weight    the student's hidden states are to be like the teacher's, too                    hidden.py
    sequence_level   the answers that the student learns are the teacher's                            sequence_level.py
    on_policy        in some rows the answers are the student's, and the teacher judges them          on_policy.py
"""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from minillm import backend
from minillm.config import DistilConfig, SamplingConfig
from minillm.datasets.sampler import Sampler
from minillm.model.model import Model
from minillm.model.run import attend_of
from minillm.tokenizer import Tokenizer
from minillm.training import sft
from minillm.training.divergence import Distil
from minillm.training.folder import PROJECTION, WEIGHTS, RunFolder, open_model
from minillm.training.hidden import match, with_projection
from minillm.training.loop import Trainer
from minillm.training.objective import Deep, next_token
from minillm.training.on_policy import OnPolicySampler
from minillm.training.predictions import from_predictions, with_predictions
from minillm.training.sequence_level import answers_on_disk


def start(config: DistilConfig) -> Trainer:
    """A new run in config.run: the model of config.base learns from that of config.teacher.

    Besides what `sft.start` raises: ValueError if teacher and student have different vocabularies, or the teacher a
    shorter context than the student.
    """
    return sft.keep(config, _trainer(config, *sft.begin(config)))


def resume(folder: RunFolder) -> Trainer:
    """A run as its last checkpoint left it.  The teacher must still be where it was."""
    config = folder.read_config()
    if not isinstance(config, DistilConfig):
        raise ValueError(f"{folder.path} is no distillation run")
    student, tokenizer, arrays, meta = sft.reopen(folder, config)
    trainer = _trainer(config, folder, student, tokenizer)
    trainer.restore(arrays, meta)
    if config.hidden_weight:
        trainer.model.weights.tree[PROJECTION][...] = arrays[WEIGHTS + PROJECTION]
    return trainer


def _trainer(config: DistilConfig, folder: RunFolder, student: Model, tokenizer: Tokenizer) -> Trainer:
    distil = Distil(config.divergence, config.tau, config.alpha, config.beta)
    teacher, template = _teacher(config, student, tokenizer), sft.template_for(config, tokenizer)
    if config.hidden_weight:
        student = with_projection(student, teacher.config.channels, config.seed)
    train, val = sft.split(config)
    if config.sequence_level:
        said = SamplingConfig(config.answer_temperature, max_tokens=config.answer_tokens, seed=config.seed)
        T = student.config.context_len
        train = answers_on_disk(teacher, template, train, T, said, folder.path / "answers")
    rows, judge = sft.lessons(config, student, template, train, val)
    sampler, answers = Sampler(rows, config.batch_size, config.seed), attrgetter("targets")
    if config.on_policy:
        own = student, template, config.on_policy, config.answer_tokens
        sampler, answers = OnPolicySampler(rows, config.batch_size, config.seed, *own), attrgetter("answers")
    objective: Callable | Deep = taught_by(teacher, distil, answers) if config.alpha else next_token
    if config.hidden_weight:
        objective = matched_to(teacher, distil, config.hidden_weight, answers)
    if config.top_k:
        read = teacher, config.top_k, config.tau, folder.path / "predictions", config.micro_batch_size
        sampler = Sampler(with_predictions(rows, *read), config.batch_size, config.seed)
        objective = from_predictions(config.tau, config.alpha)
    return Trainer(config, folder, student, tokenizer, sampler, judge, objective)


def _teacher(config: DistilConfig, student: Model, tokenizer: Tokenizer) -> Model:
    """The model of config.teacher; ValueError if it could not read what the student does."""
    teacher, its_tokenizer = open_model(config.teacher)
    if its_tokenizer.fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"teacher and student must share a vocabulary: {config.teacher} has {its_tokenizer!r}, the student "
            f"{tokenizer!r}; pretrain the student on the teacher's data settings, so that it gets the same tokenizer"
        )
    if teacher.config.context_len < student.config.context_len:
        raise ValueError(
            f"the teacher cannot read what the student does: contexts of {teacher.config.context_len} and "
            f"{student.config.context_len} tokens; use a student with a context of {teacher.config.context_len}"
        )
    return replace(teacher, ops=backend.load(config.backend))


def taught_by(teacher: Model, distil: Distil, answers: Callable[[Any], np.ndarray] = attrgetter("targets")) -> Callable:
    """The objective of a student: objective(ops, logits, batch, scale) -> loss, dlogits.

    answers: which targets of a batch are right, and not only judged by the teacher.
    """

    def objective(ops, logits, batch, scale):
        teacher_logits = teacher.logits(batch.ids, batch.positions, attend_of(ops, batch.segments))
        return distil.loss(logits, teacher_logits, batch.targets, scale, answers(batch))

    return objective


def matched_to(teacher: Model, distil: Distil, hidden_weight: float,
               answers: Callable[[Any], np.ndarray] = attrgetter("targets")) -> Deep:  # fmt: skip
    """As `taught_by`, and hidden_weight * the distance of the student's hidden states from the teacher's."""

    def objective(ops, logits, hidden, batch, scale, weights, grads):
        reads = batch.ids, batch.positions, attend_of(ops, batch.segments)
        teacher_logits, teacher_hidden = teacher.logits_and_hidden(*reads)
        said, dlogits = distil.loss(logits, teacher_logits, batch.targets, scale, answers(batch))
        matched, dhidden = match(hidden, teacher_hidden, batch.targets, hidden_weight * scale, weights, grads)
        return said + matched, dlogits, dhidden

    return Deep(objective)
