"""Our side of each piece of work, on any backend.  A runner's `step()` does it once and gives seconds and a result.

The result of the first step is the proof that all sides do the same work: they start from the same weights and data,
so losses and tokens must agree.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from minillm import backend, threads
from minillm.adapt.lora import LoraModel, attach
from minillm.benchmark.work import Decoding, FineTuning, OpCall, Prefill, Training, Work
from minillm.config import ModelConfig, OptimConfig, SamplingConfig
from minillm.datasets.sampler import Batch
from minillm.inference.cache import Cache, extend
from minillm.inference.generate import generate_ids
from minillm.model.model import Model
from minillm.model.weights import initialise
from minillm.optim.optimizer import Optimizer
from minillm.training.folder import RunFolder
from minillm.training.objective import next_token
from minillm.training.step import mean_gradient, split_rows
from minillm.tree import Packed

OPTIM = OptimConfig(learning_rate=1e-5)
"""So slow that the random batch is not learnt by heart, whose gradients would become too small to be typical."""
STEPS = 1_000_000  # planned length of the run, for the schedule: it never comes near its end
NO_TOKEN = -1  # an end of text that no model writes

Step = Callable[[], tuple[float, Any]]


def random_ids(config: ModelConfig, *shape: int) -> np.ndarray:
    """Token ids, the same on every side."""
    return np.random.default_rng(0).integers(0, config.vocab_size, shape)


def model_of(config: ModelConfig, ops: Any) -> Model:
    """A model with random weights, the same on every side."""
    return Model(config, initialise(config, 0), ops)


def optimizer_of(model: Model) -> Optimizer:
    """AdamW, as in a training run."""
    return Optimizer(model.weights, OPTIM, STEPS, model.ops)


def training(work: Training, ops: Any) -> Step:
    """A step of all weights."""
    model = model_of(work.model, ops)
    return training_step(work, model, model.weights.zeros_like(), optimizer_of(model))


def fine_tuning(work: FineTuning, side: str) -> Step:
    """A step of what `side` trains."""
    return training_step(work.training, *learner(work, side))


def learner(work: FineTuning, side: str) -> tuple[Model, Packed, Optimizer]:
    """All that is held between steps: the model, its gradient and its optimizer."""
    model, lora = model_of(work.training.model, backend.load(work.backend)), work.lora_of(side)
    if lora.rank:
        model = attach(model, lora, seed=0)
    optimizer = Optimizer(model.weights, replace(OPTIM, optimizer=work.optimizer), STEPS, model.ops)
    return model, model.weights.zeros_like(), optimizer


def weigh(work: FineTuning, side: str) -> dict[str, int]:
    """Parameters that `side` trains, bytes of all arrays it holds between steps, and of the checkpoint it writes."""
    model, grads, optimizer = learner(work, side)
    held = [model.weights, grads, optimizer.mean, optimizer.square]
    if isinstance(model, LoraModel):
        held.append(model.base.weights)
    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path))
        folder.save(model, optimizer.state()[0], {})
        checkpoint = folder.checkpoint_file.stat().st_size
    state = sum(packed.vector.nbytes for packed in held)
    return {"trained": model.weights.num_parameters, "state": state, "checkpoint": checkpoint}


def training_step(work: Training, model: Model, grads: Packed, optimizer: Optimizer) -> Step:
    """A step: the gradient over micro-batches on all threads, then the optimizer."""
    batch = Batch(*random_ids(work.model, 2, work.batch, work.model.context_len))

    def step() -> tuple[float, float]:
        began = time.perf_counter()
        micro_batches = split_rows(batch, work.micro)
        loss, _ = mean_gradient(model, micro_batches, grads, next_token, run_all=threads.run_all)
        optimizer.step(grads)
        return time.perf_counter() - began, loss

    return step


def decoding(work: Decoding, ops: Any) -> Step:
    """A step: all new tokens; the time of the prompt is left out."""
    model = model_of(work.model, ops)
    prompts = random_ids(work.model, work.batch, work.prompt).tolist()
    config = SamplingConfig(temperature=0, max_tokens=work.new)

    def step() -> tuple[float, list[list[int | None]]]:
        steps = generate_ids(model, prompts, config, eot=NO_TOKEN)
        tokens = [next(steps)]  # the prompt's pass
        began = time.perf_counter()
        tokens += steps
        return time.perf_counter() - began, tokens

    return step


def prefill(work: Prefill, ops: Any) -> Step:
    """A step: the prompt's pass."""
    model, ids = model_of(work.model, ops), random_ids(work.model, 1, work.prompt)

    def step() -> tuple[float, int]:
        cache = Cache(model, np.zeros(1, int), capacity=work.prompt)
        began = time.perf_counter()
        logits = extend(model, ids, cache, last_only=True)
        return time.perf_counter() - began, int(np.argmax(logits))

    return step


def op_call(work: OpCall, ops: Any) -> Step:
    """A step: one call; the backward has its forward's `saved`."""
    forward, backward = (getattr(ops, f"{work.name}_{way}") for way in ("forward", "backward"))
    inputs = work.inputs
    y, saved = forward(*inputs)
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)

    def step_forward() -> tuple[float, None]:
        began = time.perf_counter()
        forward(*inputs)
        return time.perf_counter() - began, None

    def step_backward() -> tuple[float, None]:
        began = time.perf_counter()
        backward(dy, saved)
        return time.perf_counter() - began, None

    return step_backward if work.backward else step_forward


RUNNERS: dict[type, Callable[[Any, Any], Step]] = {
    Training: training, Decoding: decoding, Prefill: prefill, OpCall: op_call,
}  # fmt: skip


def runner(work: Work, side: str) -> Step:
    """`step` of one piece of work on the backend called `side`, or, in fine-tuning, in that way."""
    if isinstance(work, FineTuning):
        return fine_tuning(work, side)
    return RUNNERS[type(work)](work, backend.load(side))
