"""Pretraining on the standard library's source, beside a PyTorch model: python tests/peers/compare_stdlib.py

Same config, initial weights, batches, schedule and clipping; float32.  Prints validation bits per byte of both.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch_model import torch_forward, torch_optimizer, torch_weights
from tqdm import tqdm

from minillm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from minillm.datasets.sampler import Sampler
from minillm.evaluation.likelihood import likelihood
from minillm.model.model import Model
from minillm.model.weights import allocate
from minillm.optim.schedule import learning_rate_factor
from minillm.training import pretrain


def train_peer(config, trainer, steps):
    """The PyTorch model after the same steps, as one of ours (for scoring by the same code)."""
    optim = config.optim
    weights = torch_weights(trainer.model.weights)
    optimizer = torch_optimizer(weights, optim)
    sampler = Sampler(trainer.sampler.rows, config.batch_size, config.seed)
    for step in tqdm(range(steps), "PyTorch"):
        ids, targets = map(torch.tensor, sampler.next())
        for group in optimizer.param_groups:
            group["lr"] = optim.learning_rate * learning_rate_factor(step, steps, optim)
        loss = torch.nn.functional.cross_entropy(
            torch_forward(ids, weights, config.model).flatten(0, 1), targets.flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), optim.clip_norm)
        optimizer.step()
    packed = allocate(config.model)
    for name, array in packed.named().items():
        array[...] = weights[name].detach().numpy()
    return Model(config.model, packed, trainer.model.ops)


def main():
    """Train both, score both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="llama", choices=["gpt2", "llama"])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--eval-tokens", type=int, default=100_000)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        config = TrainConfig(
            run=Path(folder, "run"),
            steps=options.steps,
            model=ModelConfig(family=options.family, context_len=128, num_layers=4, channels=128),
            data=DataConfig(source="stdlib", vocab_size=2048),
            optim=OptimConfig(learning_rate=2e-3),
        )
        trainer = pretrain.start(config)
        config = trainer.config
        times = [time.perf_counter()]
        peer = train_peer(config, trainer, options.steps)
        times.append(time.perf_counter())
        for _ in tqdm(range(options.steps), "minillm"):
            trainer.take_step()
        times.append(time.perf_counter())
        print(f"{options.family}: {trainer.model.weights.num_parameters:,} parameters, {options.steps} steps of "
              f"{config.batch_size} x {config.model.context_len} tokens")  # fmt: skip
        scores = {}
        for name, model in (("minillm", trainer.model), ("PyTorch", peer)):
            scores[name] = likelihood(model, trainer.judge.val, config.batch_size, options.eval_tokens).bits_per_byte
        for name, seconds in (("PyTorch", times[1] - times[0]), ("minillm", times[2] - times[1])):
            print(f"{name:8} {scores[name]:.4f} bits per byte on validation text, {seconds:.0f} s of training")
        difference = scores["minillm"] / scores["PyTorch"] - 1
        print(f"difference {difference:+.3%}, largest difference of a weight "
              f"{np.abs(trainer.model.weights.vector - peer.weights.vector).max():.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
