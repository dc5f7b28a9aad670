"""`minillm bench`: what can be measured, at which sizes, and the order of doing it."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tqdm import tqdm

from minillm import threads
from minillm.backend import BACKENDS
from minillm.benchmark import roofline
from minillm.benchmark.ceilings import measure
from minillm.benchmark.race import race, workers
from minillm.benchmark.results import Entry, Results
from minillm.benchmark.tables import summary, table
from minillm.benchmark.work import COMPILED, EAGER, Decoding, OpCall, Prefill, Training, Work
from minillm.config import ModelConfig, check_at_least, check_choice
from minillm.ops.cases import OPS

DEFAULT_BACKEND = "cpu" if "cpu" in BACKENDS else "numpy"
TRAINING = {
    "A": Training("A", ModelConfig("gpt2", vocab_size=512, context_len=64, num_layers=4, num_heads=4, channels=128),
                  batch=12, micro=6),
    "B": Training("B", ModelConfig("gpt2", vocab_size=4096, context_len=256, num_layers=6, num_heads=6, channels=384),
                  batch=8, micro=4),
}  # fmt: skip
SHAPES = {
    "15M": ModelConfig(vocab_size=32_000, context_len=256, num_layers=6, num_heads=6, channels=288, ffn_channels=768),
    "110M": ModelConfig(vocab_size=32_000, context_len=1024, num_layers=12, num_heads=12, channels=768,
                        ffn_channels=2048),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What all benchmarks share."""

    backend: tuple[str, ...] = (DEFAULT_BACKEND,)
    """Our side; further names run beside it."""
    peers: bool = True
    """Also run PyTorch, where it is installed."""
    compiled: bool = True
    """Also run torch.compile, which takes a minute to compile."""
    threads: int = 0
    """Threads of every side; 0: one per core."""
    repeats: int = 0
    """Turns of each side; 0: as many as suit the benchmark."""
    out: Path = Path("runs/bench")
    """Folder for the results and pictures."""

    def __post_init__(self) -> None:
        check_at_least("the number of backends", len(self.backend), 1)
        for name in self.backend:
            check_choice("bench.backend", name, tuple(BACKENDS))
        check_at_least("bench.threads", self.threads, 0)
        check_at_least("bench.repeats", self.repeats, 0)

    @property
    def sides(self) -> list[str]:
        """Ours first, then the peers there are."""
        torch = [EAGER] if self.peers and importlib.util.find_spec("torch") else []
        return [*dict.fromkeys(self.backend), *torch, *([COMPILED] if torch and self.compiled else [])]


@dataclass(frozen=True)
class TrainBench(Options):
    """One optimizer step of two GPT-2s, beside the FLOP count and PyTorch."""

    config: tuple[str, ...] = tuple(TRAINING)
    """A: 4 layers of 128 channels, 64 tokens.  B: 6 layers of 384 channels, 256 tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.config:
            check_choice("bench.config", name, tuple(TRAINING))

    def run(self) -> Results:
        """Each config with processes of its own, so that peak memory is its own."""
        return contest("train", [[TRAINING[name]] for name in self.config], self.sides, self.repeats or 10)


@dataclass(frozen=True)
class DecodeBench(Options):
    """Greedy decoding with a cache, beside the bytes that must be read and PyTorch."""

    shape: tuple[str, ...] = tuple(SHAPES)
    """Llamas of 15M (stories15M of llama2.c) and 110M parameters."""
    batch: tuple[int, ...] = (1, 4, 16)
    """Rows decoded together."""
    tokens: int = 64
    """New tokens per row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.shape:
            check_choice("bench.shape", name, tuple(SHAPES))
        for batch in self.batch:
            check_at_least("bench.batch", batch, 1)
        check_at_least("bench.tokens", self.tokens, 2)

    def run(self) -> Results:
        """Every shape at every batch, after prompts of 16 tokens."""
        works = [Decoding(name, SHAPES[name], B, 16, self.tokens) for name in self.shape for B in self.batch]
        return contest("decode", [[work] for work in works], self.sides, self.repeats or 5)


@dataclass(frozen=True)
class PrefillBench(Options):
    """One long prompt at once into a cache, beside what it must compute and PyTorch."""

    shape: tuple[str, ...] = tuple(SHAPES)
    """Llamas of 15M and 110M parameters."""
    length: int = 256
    """Tokens of the prompt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.shape:
            check_choice("bench.shape", name, tuple(SHAPES))
            longest = SHAPES[name].context_len
            if not 1 <= self.length <= longest:
                raise ValueError(f"bench.length must be between 1 and the {longest} tokens of {name}: {self.length}")

    def run(self) -> Results:
        """Every shape."""
        works = [Prefill(name, SHAPES[name], self.length) for name in self.shape]
        return contest("prefill", [[work] for work in works], self.sides, self.repeats or 10)


@dataclass(frozen=True)
class OpsBench(Options):
    """Every op alone, forward and backward, beside the reference in NumPy and PyTorch."""

    op: tuple[str, ...] = tuple(name for name, op in OPS.items() if "benchmark" in op.cases)
    """Which ops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.op:
            check_choice("bench.op", name, tuple(OPS))

    def run(self) -> Results:
        """All in the same processes.  Compiling a single function shows nothing that it does in a model."""
        works: list[Work] = [OpCall(name, backward) for name in self.op for backward in (False, True)]
        sides = dict.fromkeys([self.backend[0], "numpy", *self.sides])
        return contest("ops", [works], [side for side in sides if side != COMPILED], self.repeats or 5)


Bench = TrainBench | DecodeBench | PrefillBench | OpsBench


def contest(command: str, groups: Sequence[Sequence[Work]], sides: Sequence[str], repeats: int) -> Results:
    """Race all sides through every group of works; each group has processes of its own.

    The ceilings are measured before and after each group: the machine may be busy with something else at any moment.
    """
    results = Results(command, measure())
    turns = sum(len(works) for works in groups) * len(sides) * repeats
    with tqdm(total=turns, unit="turn", leave=False) as bar:
        for works in groups:
            with workers(sides, threads.num_threads()) as started:
                for work in works:
                    results.entries.append(Entry(work, race(work, started, repeats, bar)))
            results.ceilings = results.ceilings.best(measure())
    return results


def bench(command: Bench) -> None:
    """Measure, print the table, write the JSON and the picture."""
    threads.set_num_threads(command.threads)
    console = Console()
    results = command.run()
    name, out = results.command, command.out
    results.save(out / f"{name}.json")
    roofline.draw(results, out / f"{name}-roofline.png")
    console.print(table(results))
    console.print(summary(results), highlight=False)
    for entry in results.entries:
        for s in entry.samples:
            if s.skipped and name != "ops":
                console.print(f"{entry.work.name}: without {s.side}, for {s.skipped}", highlight=False)
        for s in entry.measured:
            if not s.agrees_with(entry.samples[0]):
                console.print(f"{entry.work.name}: {s.side} did not compute what {entry.samples[0].side} did")
    console.print(f"Written: {out}/{name}.json, {out}/{name}-roofline.png", highlight=False)
