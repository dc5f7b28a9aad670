"""Distillation: fine-tuning in which a teacher says, token by token, what else would have been probable.

(Hinton et al. 2015, arXiv 1503.02531.)  The teacher reads the very rows that the student does, packing and all, and
only forwards: it is never differentiated.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from minillm import backend
from minillm.config import DistilConfig
from minillm.model.model import Model
from minillm.model.run import attend_of
from minillm.tokenizer import Tokenizer
from minillm.training import sft
from minillm.training.divergence import Distil
from minillm.training.folder import RunFolder
from minillm.training.loop import Trainer


def start(config: DistilConfig) -> Trainer:
    """A new run in config.run: the model of config.base learns from that of config.teacher.

    Besides what `sft.start` raises: ValueError if teacher and student have different vocabularies, or the teacher a
    shorter context than the student.
    """
    return sft.start(config, partial(_objective, config))


def resume(folder: RunFolder) -> Trainer:
    """A run as its last checkpoint left it.  The teacher must still be where it was."""
    config = folder.read_config()
    if not isinstance(config, DistilConfig):
        raise ValueError(f"{folder.path} is no distillation run")
    return sft.resume(folder, partial(_objective, config))


def _objective(config: DistilConfig, student: Model, tokenizer: Tokenizer) -> Callable:
    teacher, its_tokenizer = RunFolder(config.teacher).load_model()
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
    return taught_by(
        replace(teacher, ops=backend.load(config.backend)),
        Distil(config.divergence, config.tau, config.alpha, config.beta),
    )


def taught_by(teacher: Model, distil: Distil) -> Callable:
    """The objective of a student: objective(ops, logits, batch, scale) -> loss, dlogits."""

    def objective(ops, logits, batch, scale):
        teacher_logits = teacher.logits(batch.ids, batch.positions, attend_of(ops, batch.segments))
        return distil.loss(logits, teacher_logits, batch.targets, scale)

    return objective
