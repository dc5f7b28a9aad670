"""The folder of a run: what is in it, and how a model comes back from it; or from a file of somebody else's.

README.md  config.json  tokenizer.json  chat_template.jinja  data/  checkpoint.safetensors  metrics.jsonl  samples.txt
loss.png  gradient.png
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minillm import backend, checkpoint, interop
from minillm.adapt.lora import LoraModel, attach, merge
from minillm.atomic import write_atomically
from minillm.config import DistilConfig, LoopConfig, ModelConfig, SFTConfig, TrainConfig
from minillm.model.model import Model
from minillm.model.weights import allocate
from minillm.settings import from_mapping, to_mapping
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import ChatTemplate

STAGES = {
    "pretrain": TrainConfig,
    "sft": SFTConfig,
    "distil": DistilConfig,
}  # the settings that config.json holds, by its "stage"
PROJECTION = "projection"  # the array that is trained beside a student and is no part of it: see training/hidden.py
WEIGHTS = "weights."  # prefix of the model's arrays in the checkpoint; the optimizer's have others


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @property
    def config_file(self) -> Path:
        """Settings, as JSON."""
        return self.path / "config.json"

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer the model was trained with."""
        return self.path / "tokenizer.json"

    @property
    def checkpoint_file(self) -> Path:
        """Weights and everything needed to go on, in one file, so that one rename replaces it all."""
        return self.path / "checkpoint.safetensors"

    @property
    def metrics_file(self) -> Path:
        """One JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def template_file(self) -> Path:
        """How the model was taught to read conversations, a Jinja2 template; runs that were not have none."""
        return self.path / "chat_template.jinja"

    def load_template(self, tokenizer: Tokenizer) -> ChatTemplate:
        """The template that the run was taught with; ChatML if it was not."""
        if not self.template_file.exists():
            return ChatTemplate(tokenizer)
        return ChatTemplate(tokenizer, self.template_file.read_text(encoding="utf-8"))

    def check_new(self) -> None:
        """FileExistsError if there is a checkpoint already, which a new run would replace."""
        if self.checkpoint_file.exists():
            raise FileExistsError(
                f"{self.path} holds a run already; go on with it: minillm resume {self.path}; or choose another --run"
            )

    def write_config(self, config: LoopConfig) -> None:
        """Store the settings."""
        stage = next(name for name, kind in STAGES.items() if type(config) is kind)
        content = {"stage": stage} | to_mapping(config)
        write_atomically(self.config_file, (json.dumps(content, indent=2) + "\n").encode())

    def read_config(self) -> LoopConfig:
        """The settings of the run.  FileNotFoundError says how to make one; ValueError names what is wrong."""
        if not self.config_file.exists():
            raise FileNotFoundError(
                f"{self.path} holds no run (no {self.config_file.name}); make one with: minillm train"
            )
        try:
            values = json.loads(self.config_file.read_text(encoding="utf-8"))
            stage = values.pop("stage", "pretrain")
            if stage not in STAGES:
                raise ValueError(f"unknown stage {stage!r}; there is {', '.join(STAGES)}")
            return from_mapping(STAGES[stage], values)
        except ValueError as error:
            raise ValueError(f"{self.config_file}: {error}") from error

    def save(self, model: Model, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write the checkpoint: the model's weights, further arrays, and plain values."""
        weights = {WEIGHTS + name: array for name, array in model.weights.named().items()}
        own: dict[str, Any] = {"model": to_mapping(model.config)}
        if isinstance(model, LoraModel):
            own["base"] = model.base_digest
        checkpoint.save(self.checkpoint_file, weights | dict(arrays), own | dict(meta))

    def load(self, config: LoopConfig, dtype: Any = np.float32) -> tuple[Model, dict[str, np.ndarray], dict[str, Any]]:
        """The model, all arrays and the plain values of the checkpoint; ValueError if it is another model's."""
        arrays, meta = checkpoint.load(self.checkpoint_file)
        got = to_mapping(from_mapping(ModelConfig, meta.get("model", {})))  # what it does not say has its default
        wanted = to_mapping(config.model) if isinstance(config, TrainConfig) else got
        if wanted != got:
            differ = ", ".join(
                f"{k}: {got.get(k)!r} there, {v!r} in the settings" for k, v in wanted.items() if got.get(k) != v
            )
            raise ValueError(
                f"{self.checkpoint_file} holds another model ({differ}); use the settings it was trained with"
            )
        model = self._empty(config, from_mapping(ModelConfig, got), meta.get("base"), dtype)
        own = {k: v for k, v in arrays.items() if k.startswith(WEIGHTS) and k != WEIGHTS + PROJECTION}
        checkpoint.copy_into(model.weights, own, WEIGHTS)
        return model, arrays, meta

    def _empty(self, config: LoopConfig, shape: ModelConfig, base_digest: str | None, dtype: Any) -> Model:
        """The model whose weights the checkpoint holds, before they are filled in: all of them, or adapters alone."""
        if not isinstance(config, SFTConfig) or config.lora.rank == 0:
            return Model(shape, allocate(shape, dtype), backend.load(config.backend))
        base = replace(open_model(config.base)[0], ops=backend.load(config.backend))
        model = attach(base, config.lora, config.seed)
        if model.base_digest != base_digest:
            raise ValueError(
                f"the adapters in {self.path} were trained on other weights than {config.base} has now; put that run's "
                "checkpoint back, or train them again"
            )
        return model

    def load_model(self) -> tuple[Model, Tokenizer]:
        """A trained model and its tokenizer, for use; adapters are merged into the weights they were trained on.

        FileNotFoundError if the run has no checkpoint yet.
        """
        model = self.load(self.read_config())[0]
        model = merge(model) if isinstance(model, LoraModel) else model
        tokenizer = Tokenizer.load(self.tokenizer_file)
        if tokenizer.vocab_size != model.config.vocab_size:
            raise ValueError(
                f"{self.tokenizer_file} has {tokenizer.vocab_size} ids and the model {model.config.vocab_size}; "
                "they are not of the same run"
            )
        return model, tokenizer

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self, until: int | None = None) -> list[dict[str, Any]]:
        """All rows; with `until`, those up to that step, and later ones are forgotten (the run goes on from there)."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]  # a killed run may leave half a line
        if until is not None:
            rows = [row for row in rows if row["step"] <= until]
            write_atomically(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return rows


def open_model(source: Path) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer.  source: the folder of a run, a GGUF file, or the name of a model in a package.

    FileNotFoundError if it is not there; ValueError says what is wrong with it.
    """
    return interop.load(source)[:2] if interop.is_foreign(source) else RunFolder(source).load_model()


def open_template(source: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """How the model of that source was taught to read conversations; ChatML if nothing says so."""
    if not interop.is_foreign(source):
        return RunFolder(source).load_template(tokenizer)
    text = interop.chat_template(source)
    return ChatTemplate(tokenizer) if text is None else ChatTemplate(tokenizer, text)
