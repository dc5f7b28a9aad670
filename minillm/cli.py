"""The command line: `minillm COMMAND`; `minillm --help` lists them."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from minillm import quickstart, stages, threads
from minillm.benchmark import command as benchmark
from minillm.chat import Chat, chat
from minillm.config import DistilConfig, LoopConfig, ModelConfig, SamplingConfig, SFTConfig, TrainConfig
from minillm.estimate import estimate
from minillm.evaluate import Evaluate, evaluate
from minillm.inference.generate import stream
from minillm.quantize import Quantize, compare_schemes
from minillm.settings import read_toml
from minillm.training.folder import RunFolder, open_model
from minillm.training.loop import Trainer
from minillm.training.stage import module_of


@dataclass(frozen=True)
class Quickstart:
    """From nothing to a talking model in one go: corpus, tokenizer, training, curves, stories, report card."""

    run: Path = Path("runs/quickstart")
    """Folder of the run; made anew."""
    steps: int = quickstart.STEPS
    """Optimizer steps; fewer are faster and worse (not with --full)."""
    full: bool = False
    """The whole way: pretrain a teacher, teach it to answer, distil it into a student, compare.  Twenty minutes; an
    interrupted one goes on where it was."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was interrupted."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""


@dataclass(frozen=True)
class Generate:
    """Let a trained model continue a text; without a prompt it begins a document of its own."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    prompt: tuple[str, ...] = ("",)
    """The beginnings to continue, one or several."""
    sampling: Annotated[SamplingConfig, tyro.conf.arg(name="")] = field(default_factory=SamplingConfig)


@dataclass(frozen=True)
class Estimate:
    """Predict parameters, FLOPs and memory of a model without building it."""

    batch_size: int = 16
    """B: rows per batch."""
    model: Annotated[ModelConfig, tyro.conf.arg(name="")] = field(default_factory=ModelConfig)


@dataclass(frozen=True)
class Bench:
    """Measure this machine, and how close to its limits we and PyTorch come."""

    what: Annotated[
        Annotated[benchmark.TrainBench, tyro.conf.subcommand("train")]
        | Annotated[benchmark.LoraBench, tyro.conf.subcommand("lora")]
        | Annotated[benchmark.DecodeBench, tyro.conf.subcommand("decode")]
        | Annotated[benchmark.PrefillBench, tyro.conf.subcommand("prefill")]
        | Annotated[benchmark.OpsBench, tyro.conf.subcommand("ops")]
        | Annotated[benchmark.ProfileBench, tyro.conf.subcommand("profile")],
        tyro.conf.arg(name=""),
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a mistake of the caller ends with one line that says what to do, and exit code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = tyro.cli(_commands(_take_config_file(arguments)), args=arguments, prog="minillm")
        threads.set_num_threads(0)
        _run(command)
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(_fail(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(error: Exception) -> int:
    print(f"minillm: {error}", file=sys.stderr)
    return 2


def _called() -> str:
    """How the user calls this program: `.venv/bin/minillm` where it is not on the path."""
    return sys.argv[0] if Path(sys.argv[0]).name == "minillm" else "minillm"


def _commands(train_defaults: TrainConfig):
    """The union of commands as tyro reads it."""
    text = "Pretrain a model.  --config FILE.toml gives defaults that other options override."
    train = tyro.conf.subcommand("train", default=train_defaults, description=text)
    return (
        Annotated[Quickstart, tyro.conf.subcommand("quickstart")]
        | Annotated[TrainConfig, train]
        | Annotated[SFTConfig, tyro.conf.subcommand("sft")]
        | Annotated[DistilConfig, tyro.conf.subcommand("distill")]
        | Annotated[Resume, tyro.conf.subcommand("resume")]
        | Annotated[Generate, tyro.conf.subcommand("generate")]
        | Annotated[Chat, tyro.conf.subcommand("chat")]
        | Annotated[Evaluate, tyro.conf.subcommand("eval")]
        | Annotated[Quantize, tyro.conf.subcommand("quantize")]
        | Annotated[Estimate, tyro.conf.subcommand("estimate")]
        | Annotated[Bench, tyro.conf.subcommand("bench")]
    )


def _take_config_file(arguments: list[str]) -> TrainConfig:
    """Defaults of `train`; removes --config FILE from `arguments`.  To `bench`, --config means something else."""
    if "--config" not in arguments or arguments[0] == "bench":
        return TrainConfig()
    place = arguments.index("--config")
    if place + 1 == len(arguments):
        raise ValueError("--config needs a file, for example: minillm train --config small.toml")
    file = Path(arguments[place + 1])
    del arguments[place : place + 2]
    return read_toml(TrainConfig, file)


def _run(command: Quickstart | LoopConfig | Resume | Generate | Chat | Evaluate | Quantize | Estimate | Bench) -> None:
    if isinstance(command, Quickstart):
        if command.full:
            stages.quickstart(command.run, command=_called())
        else:
            quickstart.quickstart(command.run, command.steps, _called())
    elif isinstance(command, LoopConfig):
        _train(module_of(command).start(command))
    elif isinstance(command, Resume):
        folder = RunFolder(command.run)
        _train(module_of(folder.read_config()).resume(folder))
    elif isinstance(command, Generate):
        _generate(command)
    elif isinstance(command, Chat):
        chat(command)
    elif isinstance(command, Evaluate):
        evaluate(command)
    elif isinstance(command, Quantize):
        compare_schemes(command)
    elif isinstance(command, Bench):
        benchmark.bench(command.what)
    else:
        _estimate(command)


def _train(trainer: Trainer) -> None:
    folder = trainer.folder.path
    if trainer.run(sample_prompts=[""]):
        use = "chat" if isinstance(trainer.config, SFTConfig) else "generate"
        print(f"Done.  Curves: {folder}/loss.png, {folder}/gradient.png.  Try: {_called()} {use} {folder}")
    else:
        print(f"Stopped and saved at step {trainer.step}.  Go on with: {_called()} resume {folder}")


def _generate(command: Generate) -> None:
    model, tokenizer = open_model(command.run)
    if len(command.prompt) == 1:
        print(command.prompt[0], end="", flush=True)
        for _, piece in stream(model, tokenizer, list(command.prompt), command.sampling):
            print(piece, end="", flush=True)
        print()
        return
    texts = list(command.prompt)
    for row, piece in stream(model, tokenizer, list(command.prompt), command.sampling):
        texts[row] += piece
    for number, text in enumerate(texts):
        print(f"[{number}] {text}\n")


def _estimate(command: Estimate) -> None:
    e = estimate(command.model, command.batch_size)
    tokens = command.batch_size * command.model.context_len
    print(f"parameters            {e.parameters:>14,}")
    print(f"training FLOPs/token  {e.flops_per_token:>14,}   ({e.flops_per_token * tokens / 1e9:,.1f} GFLOP a step)")
    print(f"weights               {e.weight_bytes / 2**20:>14,.1f} MiB (float32)")
    print(f"with gradients, Adam  {e.training_bytes / 2**20:>14,.1f} MiB")
    print(f"activations           {e.activation_bytes / 2**20:>14,.1f} MiB ({command.batch_size} rows)")
    print(f"key/value cache       {e.cache_bytes_per_token / 2**10:>14,.1f} KiB a token")
