"""Sequence-level distillation: the teacher answers the questions, and its answers are what the student learns.

(Kim & Rush 2016, arXiv 1606.07947.)  One likely answer stands for all the teacher could say.  A student too small to
follow it token by token everywhere has an easier task: answers of one voice, and none that the teacher would not give.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from minillm.config import SamplingConfig
from minillm.datasets.conversations import Conversation, read_conversations, write_conversations
from minillm.inference.answers import answer
from minillm.inference.generate import Completion
from minillm.model.model import Model
from minillm.tokenizer.chat import ChatTemplate, Message
from minillm.training.made import digest_of, is_made, write_note


def answers_on_disk(teacher: Model, template: ChatTemplate, conversations: Sequence[Conversation], T: int,
                    sampling: SamplingConfig, folder: Path, show: bool = True) -> list[Conversation]:  # fmt: skip
    """`answered_by` of the teacher, which `folder` holds, or will: conversations.jsonl, and made.json about it.

    ValueError if no answer is left, or if the folder holds answers of something else.
    """
    settings = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "seed": sampling.seed, "T": T}
    read = [*(json.dumps(c.messages) for c in conversations), template.source, template.tokenizer.fingerprint]
    digest = digest_of(teacher, settings, (text.encode() for text in read))
    file = folder / "conversations.jsonl"
    if not (is_made(folder / "made.json", digest) and file.exists()):
        written = answered_by(teacher, template, conversations, T, sampling, show)
        wanted, kept = _num_answers(conversations), _num_answers(written)
        print(f"the teacher finished {kept:,} of {wanted:,} answers, in {len(written):,} conversations: {file}")
        if not written:
            raise ValueError(
                f"the teacher finishes no answer within {sampling.max_tokens} tokens and a context of {T}; allow more "
                "of them, or choose a teacher that has learned to answer"
            )
        write_conversations(file, written)
        write_note(folder / "made.json", digest, settings | {"answers": kept})
    return read_conversations(file)


def answered_by(teacher: Model, template: ChatTemplate, conversations: Sequence[Conversation], T: int,
                sampling: SamplingConfig, show: bool = False) -> list[Conversation]:  # fmt: skip
    """The conversations with answers of the teacher's: to each question, given what it said to those before.

    A conversation ends before the first answer that is empty, that is cut by max_tokens (to teach it would be to teach
    to stop there), or that does not fit in T tokens.  Without an answer it is left out.
    """
    told: list[list[Message]] = [[] for _ in conversations]
    asked = {i: questions(c) for i, c in enumerate(conversations)}
    for turn in range(max(map(len, asked.values()), default=0)):
        talks = {i: told[i] + turns[turn] for i, turns in asked.items() if turn < len(turns)}
        prompts = {i: template.prompt(talk) for i, talk in talks.items() if talk}
        prompts = {i: prompt for i, prompt in prompts.items() if len(prompt) < T}
        drawn = replace(sampling, seed=None if sampling.seed is None else sampling.seed + turn)
        title = f"the teacher answers, turn {turn + 1}" if show else ""
        done = dict(zip(prompts, answer(teacher, template, list(prompts.values()), drawn, show=title)))
        told_now = {i: [*talks[i], {"role": "assistant", "content": c.text}] for i, c in done.items() if _is_whole(c)}
        told_now = {i: talk for i, talk in told_now.items() if len(template.render(talk).ids) <= T + 1}
        for i, talk in told_now.items():
            told[i] = talk
        asked = {i: asked[i] for i in told_now}
    return [Conversation(talk, c.task) for talk, c in zip(told, conversations) if talk]


def questions(conversation: Conversation) -> list[list[Message]]:
    """For each answer, what is said before it and after the one before."""
    turns: list[list[Message]] = [[]]
    for message in conversation.messages:
        if message["role"] == "assistant":
            turns.append([])
        else:
            turns[-1].append(message)
    return turns[:-1]


def _is_whole(completion: Completion) -> bool:
    return completion.finish == "stop" and bool(completion.text.strip())


def _num_answers(conversations: Sequence[Conversation]) -> int:
    return sum(len(questions(c)) for c in conversations)
