"""From messages to token ids, and which of them an assistant said: the one place where a conversation is rendered.

A chat template is the ecosystem's usual one, a Jinja2 program that writes messages as text.  While it runs, a stand-in
takes the place of each message's content; what the template writes itself can hold control tokens, what a person wrote
cannot, whatever it spells.  The mask follows from the same stand-ins and is never searched for among the ids.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minillm.tokenizer.tokenizer import END_OF_TEXT, Tokenizer

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
CONTROL = (END_OF_TEXT, TURN_START, TURN_END)  # the special tokens of a tokenizer that can chat
ROLES = ("system", "user", "assistant")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STAND_IN = re.compile("\ue000([0-9]+)\ue001")  # of the private use area, which stands for no character

Message = Mapping[str, str]
"""{"role": one of ROLES, "content": what was said}."""


class Rendered(NamedTuple):
    """A conversation as tokens: mask[i] says whether ids[i] is the assistant's, the end of its turn included."""

    ids: list[int]
    mask: list[bool]


class ChatTemplate:
    """A template bound to a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, source: str = CHATML) -> None:
        """source: a Jinja2 template.  ValueError if it cannot be read, or if it begins answers in a way of its own."""
        self.tokenizer, self.source = tokenizer, source
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template is not one: {error}") from error
        if source == CHATML:
            missing = [token for token in (TURN_START, TURN_END) if token not in tokenizer.special]
            if missing:
                raise ValueError(
                    f"this tokenizer has no {' and no '.join(missing)}, by which turns are told apart; "
                    "use a model whose tokenizer was made with them"
                )
        names = sorted(tokenizer.special, key=len, reverse=True)
        self._control = re.compile("(" + "|".join(map(re.escape, names)) + ")" if names else r"(?!)")

    @cached_property
    def stop(self) -> int:
        """The id that ends an assistant's turn: the first control token after what it said.  ValueError if none."""
        rendered = self.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        last = max(i for i, said in enumerate(rendered.mask) if said)
        if rendered.ids[last] not in self.tokenizer.special.values():
            raise ValueError("the chat template ends answers with no control token: a model could not learn to stop")
        return rendered.ids[last]

    def render(self, messages: Sequence[Message], last_only: bool = False) -> Rendered:
        """All of a conversation.  last_only: the mask holds nothing but the last answer.

        ValueError for messages that `check_messages` refuses or that the template does, and for an answer that the
        template leaves out or writes twice.
        """
        check_messages(messages)
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        rendered, written = self._render(messages, set(answers[-1:] if last_only else answers), prompt=False)
        for number in answers:
            if written.count(number) != 1:
                raise ValueError(
                    f"the chat template writes message {number}, an answer, {written.count(number)} times: "
                    "every answer must stand in the text once"
                )
        return rendered

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """What a model reads before it answers: `messages`, and the beginning of the assistant's turn.

        The rendering of `messages` and an answer begins with exactly these ids.
        """
        check_messages(messages)
        return self._render(messages, set(), prompt=True)[0].ids

    def _render(self, messages: Sequence[Message], taught: set[int], prompt: bool) -> tuple[Rendered, list[int]]:
        """Ids and mask, and the numbers of the messages in the order in which the template wrote them."""
        shelf: list[tuple[int, str]] = []
        shown = [
            {"role": m["role"], "content": _StandIn(number, m["content"], shelf)} for number, m in enumerate(messages)
        ]
        special = {"bos_token": END_OF_TEXT, "eos_token": TURN_END}
        try:
            text = self._template.render(messages=shown, add_generation_prompt=prompt, **special)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        writer, written = _Writer(self.tokenizer), []
        for place, piece in enumerate(STAND_IN.split(text)):
            if place % 2:
                number, content = shelf[int(piece)]
                writer.content(content, messages[number]["role"] == "assistant", number in taught)
                written.append(number)
            else:
                for part, words in enumerate(self._control.split(piece)):
                    writer.control(words) if part % 2 else writer.text(words)
        writer.flush()
        return Rendered(writer.ids, writer.mask), written


class _Writer:
    """Ids and mask, token by token.

    Words between two control tokens are encoded together, as the ecosystem does, with one exception: an answer begins
    a token of its own, as it does when it is generated.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.ids, self.mask = tokenizer, [], []  # type: Tokenizer, list[int], list[bool]
        self.waiting, self.taught = "", False

    def text(self, words: str) -> None:
        """The template's own words."""
        self.waiting += words

    def content(self, words: str, is_answer: bool, taught: bool) -> None:
        """What somebody said."""
        if is_answer or self.taught:
            self.flush()
            self.taught = taught
        self.waiting += words

    def control(self, name: str) -> None:
        """A control token; it ends an answer and belongs to it."""
        self.flush()
        self.ids.append(self.tokenizer.special[name])
        self.mask.append(self.taught)
        self.taught = False

    def flush(self) -> None:
        """Encode the words that were waiting."""
        ids = self.tokenizer.encode(self.waiting)
        self.ids += ids
        self.mask += [self.taught] * len(ids)
        self.waiting = ""


class _StandIn(str):
    """Takes the place of a content while a template runs; templates often trim what they write."""

    def __new__(cls, number: int, content: str, shelf: list[tuple[int, str]]) -> "_StandIn":
        made = super().__new__(cls, f"\ue000{len(shelf)}\ue001")
        made._number, made._content, made._shelf = number, content, shelf  # type: ignore[attr-defined]
        shelf.append((number, content))
        return made

    def strip(self, chars: str | None = None) -> "_StandIn":
        """The stand-in of the stripped content."""
        return _StandIn(self._number, self._content.strip(chars), self._shelf)  # type: ignore[attr-defined]

    def lstrip(self, chars: str | None = None) -> "_StandIn":
        """Likewise, at the left."""
        return _StandIn(self._number, self._content.lstrip(chars), self._shelf)  # type: ignore[attr-defined]

    def rstrip(self, chars: str | None = None) -> "_StandIn":
        """Likewise, at the right."""
        return _StandIn(self._number, self._content.rstrip(chars), self._shelf)  # type: ignore[attr-defined]


def check_messages(messages: Sequence[Any]) -> None:
    """ValueError unless this is a list of messages: known roles, `system` only first, contents that are text, and no
    answer that is empty."""
    if not messages:
        raise ValueError("a conversation needs at least one message: got none")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise ValueError(f'message {number} must be like {{"role": "user", "content": "Hello"}}: got {message!r}')
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise ValueError(f"message {number} has the role {role!r}; there is {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise ValueError(f"message {number} must have text as its content: got {content!r}")
        if role == "system" and number:
            raise ValueError(f"message {number} is a system message; only the first message can be one")
        if role == "assistant" and not content.strip():
            raise ValueError(f"message {number} is an empty answer, which teaches nothing; write one or leave it out")


def _refuse(message: str) -> None:
    raise TemplateError(message)
