"""Pretraining: from settings to text, tokenizer, corpus, model and a finished run."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, takewhile
from typing import Any

from minillm import backend, threads
from minillm.config import DataConfig, SamplingConfig, TrainConfig
from minillm.datasets.corpus import Corpus, Split, prepare
from minillm.datasets.lists import ListRows
from minillm.datasets.sampler import InTurn, Sampler, Stream, Together, Windows
from minillm.datasets.source import documents
from minillm.datasets.tasks import conversation
from minillm.evaluation.likelihood import likelihood
from minillm.inference.generate import generate
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import CONTROL
from minillm.training.folder import RunFolder
from minillm.training.loop import Trainer

TOKENIZER_CHARACTERS = 16_000_000  # text the tokenizer learns from; more hardly changes a vocabulary of this size
SAMPLE_TOKENS = 200


def make_corpus(config: DataConfig, folder: RunFolder, progress: bool = True) -> tuple[Tokenizer, Corpus]:
    """Train the tokenizer and tokenize the text, or reopen both if the run folder has them already."""
    data = folder.path / "data"
    if data.exists():
        tokenizer = Tokenizer.load(folder.tokenizer_file)
        corpus = Corpus.open(data, tokenizer)
        if corpus.settings != asdict(config):
            raise ValueError(f"{data} was made with other data settings; delete {folder.path} or choose another --run")
        return tokenizer, corpus
    tokenizer = Tokenizer.train(_some_text(config), config.vocab_size, config.pattern, CONTROL, progress)
    tokenizer.save(folder.tokenizer_file)
    corpus = prepare(documents(config), tokenizer, data, config.val_fraction, config.seed, asdict(config), progress)
    return tokenizer, corpus


def start(config: TrainConfig, progress: bool = True) -> Trainer:
    """A new run in config.run.  FileExistsError, and nothing touched, if there is a checkpoint already.

    The model gets as many ids as the tokenizer has, whatever config.model.vocab_size says.
    """
    folder = RunFolder(config.run)
    folder.check_new()
    if not folder.config_file.exists():
        folder.write_config(config)  # a run stopped while it makes its corpus is known as one
    tokenizer, corpus = make_corpus(config.data, folder, progress)
    config = replace(config, model=replace(config.model, vocab_size=tokenizer.vocab_size))  # no id without a meaning
    folder.write_config(config)
    model = Model(config.model, initialise(config.model, config.seed), backend.load(config.backend))
    return _trainer(config, folder, model, tokenizer, corpus)


def resume(folder: RunFolder) -> Trainer:
    """A run as its last checkpoint left it.  FileNotFoundError says what is missing."""
    config = folder.read_config()
    if not isinstance(config, TrainConfig):
        raise ValueError(f"{folder.path} is no pretraining run")
    if not folder.checkpoint_file.exists():
        return start(replace(config, run=folder.path))  # stopped before its first checkpoint; the folder may have moved
    tokenizer, corpus = make_corpus(config.data, folder)
    model, arrays, meta = folder.load(config)
    trainer = _trainer(config, folder, model, tokenizer, corpus)
    trainer.restore(arrays, meta)
    return trainer


def _trainer(config: TrainConfig, folder: RunFolder, model: Model, tokenizer: Tokenizer, corpus: Corpus) -> Trainer:
    T, B = config.model.context_len, config.batch_size
    stream: Stream = Sampler(Windows(corpus.train, T), B, config.seed)
    if config.list_steps:
        stream = _with_lists(config, tokenizer, Windows(corpus.train, T))
    return Trainer(config, folder, model, tokenizer, stream, TextJudge(tokenizer, corpus.val, config.micro_batch_size))


def _with_lists(config: TrainConfig, tokenizer: Tokenizer, text: Windows) -> Stream:
    """At first nothing but lists, and later one row of them in each batch: what is not asked for is forgotten."""
    B, first = config.batch_size, config.list_steps * config.batch_size

    def lists(num: int, B: int, begin: int = 0) -> Sampler:
        return Sampler(ListRows(tokenizer, text.T, num, config.seed, begin), B, config.seed)

    later = Together(lists(config.steps, 1, first), Sampler(text, B - 1, config.seed))
    return InTurn(lists(first, B), later)


@dataclass(frozen=True)
class TextJudge:
    """How probable a model finds the validation documents, and how it goes on with a text."""

    tokenizer: Tokenizer
    val: Split
    batch_size: int

    def look(self, model: Model, max_tokens: int | None) -> dict[str, Any]:
        """See Judge."""
        v = likelihood(model, self.val, self.batch_size, max_tokens, threads.run_all)
        row = {"val_loss": v.loss, "val_bits_per_byte": v.bits_per_byte, "floor": v.floor}
        return row | {"val_targets": v.num_targets}

    def describe(self, row: dict[str, Any]) -> str:
        """See Judge."""
        floor = "" if row["floor"] is None else f" (best possible {row['floor']:.3f})"
        return f"validation loss {row['val_loss']:.3f}{floor}, {row['val_bits_per_byte']:.3f} bits per byte"

    def samples(self, model: Model, prompts: list[str], seed: int) -> list[str]:
        """See Judge."""
        sampling = SamplingConfig(seed=seed, max_tokens=min(SAMPLE_TOKENS, model.config.context_len - 1))
        done = generate(model, self.tokenizer, prompts, sampling)
        return [prompt + completion.text for prompt, completion in zip(prompts, done)]


def _some_text(config: DataConfig) -> Iterator[str]:
    taken = 0

    def has_room(text: str) -> bool:
        nonlocal taken
        taken += len(text)
        return taken - len(text) < TOKENIZER_CHARACTERS

    asked = (conversation("train", config.seed, i) for i in range(config.vocab_conversations))
    turns = (f"{message['role']}\n{message['content']}" for c in asked for message in c.messages)
    return takewhile(has_room, chain(turns, (document.text for document in documents(config))))
