"""`minillm bench`: what can be measured, at which sizes, and the order of doing it."""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from tqdm import tqdm

from minillm import threads
from minillm.backend import BACKENDS
from minillm.benchmark import breakdown, dots, ours, roofline, scaling
from minillm.benchmark.ceilings import measure
from minillm.benchmark.race import race, workers
from minillm.benchmark.results import Entry, Results
from minillm.benchmark.tables import summary, table
from minillm.benchmark.work import COMPILED, EAGER, FULL, RANK, Decoding, FineTuning, OpCall, Prefill, Training, Work
from minillm.config import LoraConfig, ModelConfig, check_at_least, check_choice
from minillm.ops.cases import OPS

DEFAULT_BACKEND = "cpu" if "cpu" in BACKENDS else "numpy"
TRAINING = {
    "A": Training("A", ModelConfig("gpt2", vocab_size=512, context_len=64, num_layers=4, num_heads=4, channels=128),
                  batch=12, micro=6),
    "B": Training("B", ModelConfig("gpt2", vocab_size=4096, context_len=256, num_layers=6, num_heads=6, channels=384),
                  batch=8, micro=4),
}  # fmt: skip
NO_WORK = {("add", True)}  # hands on the array that it gets
SHAPES = {
    "15M": ModelConfig(vocab_size=32_000, context_len=256, num_layers=6, num_heads=6, channels=288, ffn_channels=768),
    "110M": ModelConfig(vocab_size=32_000, context_len=1024, num_layers=12, num_heads=12, channels=768,
                        ffn_channels=2048),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What all benchmarks share."""

    backend: tuple[str, ...] = (DEFAULT_BACKEND,)
    """Our side; further names run beside it."""
    repeats: int = 0
    """Turns of each side; 0: as many as suit the benchmark."""
    out: Path = Path("runs/bench")
    """Folder for the results and pictures."""

    def __post_init__(self) -> None:
        check_at_least("the number of backends", len(self.backend), 1)
        check_at_least("bench.repeats", self.repeats, 0)
        check_names("backend", self.backend, BACKENDS)


@dataclass(frozen=True)
class Sides(Settings):
    """What all benchmarks with peers share."""

    peers: bool = True
    """Also run PyTorch, where it is installed."""
    compiled: bool = True
    """Also run torch.compile, which takes a minute to compile."""
    threads: int = 0
    """Threads of every side; 0: one per core."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("bench.threads", self.threads, 0)

    @property
    def eager(self) -> list[str]:
        """Ours first, then the peer if there is one."""
        return list(dict.fromkeys(self.backend)) + ([EAGER] if self.peers and importlib.util.find_spec("torch") else [])

    @property
    def sides(self) -> list[str]:
        """All that take part, the compiled peer too."""
        return self.eager + ([COMPILED] if self.compiled and EAGER in self.eager else [])


def check_names(setting: str, names: Sequence[str], known: Iterable[str]) -> None:
    """ValueError at the first name that is not known."""
    for name in names:
        check_choice(f"bench.{setting}", name, tuple(known))


@dataclass(frozen=True)
class TrainBench(Sides):
    """One optimizer step of two GPT-2s, beside the FLOP count and PyTorch."""

    config: tuple[str, ...] = tuple(TRAINING)
    """A: 4 layers of 128 channels, 64 tokens.  B: 6 layers of 384 channels, 256 tokens."""
    scaling: bool = False
    """Also time steps of other lengths and depths, and fit power laws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("config", self.config, TRAINING)

    def run(self) -> list[Results]:
        """Each config with processes of its own, so that peak memory is its own."""
        done = []
        if self.config:
            done.append(contest("train", [[TRAINING[name]] for name in self.config], self.sides, self.repeats or 10))
        if self.scaling:
            works = [[work] for work in scaling.sweeps()]
            done.append(contest("scaling", works, self.eager, self.repeats or 5))  # compiling each would take too long
        return done


@dataclass(frozen=True)
class LoraBench(Settings):
    """One step of fine-tuning by adapters beside one of all weights: time, memory, size of the checkpoint."""

    config: tuple[str, ...] = ("B",)
    """A, B or both: the models of `bench train`."""
    rank: tuple[int, ...] = (8, 64)
    """R: ranks of the adapters."""
    targets: Literal["query-value", "attention", "all"] = "all"
    """Which matrices get one."""
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Of all sides."""
    threads: int = 0
    """Threads of every side; 0: one per core."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("bench.threads", self.threads, 0)
        check_names("config", self.config, TRAINING)
        for rank in self.rank:
            check_at_least("bench.rank", rank, 1)

    def run(self) -> list[Results]:
        """Every config on every backend with processes of its own, so that peak memory is its own."""
        lora, sides = LoraConfig(targets=self.targets, dropout=self.dropout), [FULL, *(f"{RANK}{r}" for r in self.rank)]
        works = [FineTuning(TRAINING[c], lora, self.optimizer, name) for c in self.config for name in self.backend]
        weighed = {work.name: {side: ours.weigh(work, side) for side in sides} for work in works}
        results = contest("lora", [[work] for work in works], sides, self.repeats or 10)
        results.extra["weighed"] = weighed
        return [results]


@dataclass(frozen=True)
class DecodeBench(Sides):
    """Greedy decoding with a cache, beside the bytes that must be read and PyTorch."""

    shape: tuple[str, ...] = tuple(SHAPES)
    """Llamas of 15M (stories15M of llama2.c) and 110M parameters."""
    batch: tuple[int, ...] = (1, 4, 16)
    """Rows decoded together."""
    tokens: int = 64
    """New tokens per row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("shape", self.shape, SHAPES)
        for batch in self.batch:
            check_at_least("bench.batch", batch, 1)
        check_at_least("bench.tokens", self.tokens, 2)

    def run(self) -> list[Results]:
        """Every shape at every batch, after prompts of 16 tokens."""
        works = [Decoding(name, SHAPES[name], B, 16, self.tokens) for name in self.shape for B in self.batch]
        return [contest("decode", [[work] for work in works], self.sides, self.repeats or 5)]


@dataclass(frozen=True)
class PrefillBench(Sides):
    """One long prompt at once into a cache, beside what it must compute and PyTorch."""

    shape: tuple[str, ...] = tuple(SHAPES)
    """Llamas of 15M and 110M parameters."""
    length: int = 256
    """Tokens of the prompt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("shape", self.shape, SHAPES)
        for name in self.shape:
            longest = SHAPES[name].context_len
            if not 1 <= self.length <= longest:
                raise ValueError(f"bench.length must be between 1 and the {longest} tokens of {name}: {self.length}")

    def run(self) -> list[Results]:
        """Every shape."""
        works = [Prefill(name, SHAPES[name], self.length) for name in self.shape]
        return [contest("prefill", [[work] for work in works], self.sides, self.repeats or 10)]


@dataclass(frozen=True)
class OpsBench(Sides):
    """Every op alone, forward and backward, beside the reference in NumPy and PyTorch."""

    op: tuple[str, ...] = tuple(name for name, op in OPS.items() if "benchmark" in op.cases)
    """Which ops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("op", self.op, OPS)

    def run(self) -> list[Results]:
        """All in the same processes.  Compiling a single function shows nothing that it does in a model."""
        ways = [(name, backward) for name in self.op for backward in (False, True)]
        works: list[Work] = [OpCall(*way) for way in ways if way not in NO_WORK]
        sides = list(dict.fromkeys([self.backend[0], "numpy", *self.eager]))
        return [contest("ops", [works], sides, self.repeats or 5)]


@dataclass(frozen=True)
class ProfileBench(Settings):
    """Where the time of one training step goes, op by op on one thread."""

    backend: tuple[str, ...] = tuple(dict.fromkeys(["numpy", DEFAULT_BACKEND]))
    """Before and after."""
    config: tuple[str, ...] = ("B",)
    """A, B or both: the models of `bench train`."""
    threads = 1  # more would run ops at the same time, whose seconds would not add up

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("config", self.config, TRAINING)

    def run(self) -> list[Results]:
        """All backends in this process, a step of each in turn."""
        repeats = self.repeats or 3
        results = Results("profile", measure())
        with tqdm(total=len(self.config) * len(self.backend) * (repeats + 1), unit="step", leave=False) as bar:
            for name in self.config:
                found = breakdown.profile(TRAINING[name], self.backend, repeats, bar)
                results.extra.setdefault("profile", {})[name] = found
        return [results]


Bench = TrainBench | LoraBench | DecodeBench | PrefillBench | OpsBench | ProfileBench
PICTURES: dict[str, list[tuple[str, Callable[[Results, Path], None]]]] = {
    "train": [("train-roofline.png", roofline.draw)],
    "scaling": [("scaling.png", scaling.draw)],
    "lora": [],
    "decode": [("decode-roofline.png", roofline.draw)],
    "prefill": [("prefill-roofline.png", roofline.draw)],
    "ops": [("ops.png", dots.draw), ("ops-roofline.png", roofline.draw)],
    "profile": [("profile.png", breakdown.draw)],
}


def contest(command: str, groups: Sequence[Sequence[Work]], sides: Sequence[str], repeats: int) -> Results:
    """Race all sides through every group of works; each group has processes of its own.

    The ceilings are measured in every round, and here before and after each group for the highest of all.
    """
    results = Results(command, measure())
    turns = sum(len(works) for works in groups) * len(sides) * repeats
    with tqdm(total=turns, unit="turn", leave=False) as bar:
        for works in groups:
            with workers(sides, threads.num_threads()) as started:
                for work in works:
                    results.entries.append(Entry(work, *race(work, started, repeats, bar)))
            results.ceilings = results.ceilings.best(measure())
    return results


def bench(command: Bench) -> None:
    """Measure, print the tables, write JSON and pictures."""
    threads.set_num_threads(command.threads)
    console = Console()
    for results in command.run():
        results.save(command.out / f"{results.command}.json")
        written = [f"{results.command}.json"]
        for picture, draw in PICTURES[results.command]:
            draw(results, command.out / picture)
            written.append(picture)
        console.print(table(results))
        console.print(summary(results), *remarks(results), sep="\n", highlight=False)
        console.print(f"Written to {command.out}: {', '.join(written)}\n", highlight=False)


def remarks(results: Results) -> list[str]:
    """What a reader must know: a busy machine, who did not take part, and who did not compute what we did."""
    found, c = [], results.ceilings
    if results.machine["threads"] > 1 and c.gflops < 1.25 * c.one_thread_gflops:
        found.append("All threads together multiply hardly faster than one: is something else running here?")
    for entry in results.entries:
        for s in entry.samples if not isinstance(entry.work, OpCall) else []:
            if s.skipped:
                found.append(f"{entry.work.name}: no {s.side}, because {s.skipped}")
            elif not s.agrees_with(entry.samples[0]):
                found.append(f"{entry.work.name}: {s.side} gives another result than {entry.samples[0].side}")
    return found
