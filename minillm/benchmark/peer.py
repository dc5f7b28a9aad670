"""The peer: the same work in PyTorch, eager and compiled, written as one who knows it well writes it for CPUs.

One product for query, key and value, and one for gate and up; the fused attention kernel and AdamW; gradients dropped,
not zeroed; a cache written in place; no autograd in inference.  It starts from our weights, so that both sides' losses
and tokens can be compared.  This is the only file that imports torch.
"""

import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from minillm import threads
from minillm.benchmark.ours import OPTIM, Step, random_ids
from minillm.benchmark.work import COMPILED, Decoding, OpCall, Prefill, Training, Unavailable, Work
from minillm.config import ModelConfig
from minillm.model.weights import initialise
from minillm.ops.rope import rope_tables

Arrays = dict[str, np.ndarray]


class Cache:
    """Keys and values of all layers, (L, B, G, capacity, D), allocated once."""

    def __init__(self, config: ModelConfig, B: int, capacity: int) -> None:
        self.keys, self.values = torch.zeros(2, config.num_layers, B, config.kv_heads, capacity, config.head_size)


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and added to its input."""

    def __init__(self, config: ModelConfig, w: Arrays, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.norm1, self.norm2 = _norm(config, w, "norm1"), _norm(config, w, "norm2")
        self.qkv = _linear(w, "attention.query", "attention.key", "attention.value")
        self.out = _linear(w, "attention.output")
        self.up = _linear(w, "mlp.gate", "mlp.up") if config.family == "llama" else _linear(w, "mlp.up")
        self.down = _linear(w, "mlp.down")

    def forward(self, x: torch.Tensor, rope: Any, cache: Cache | None, start: int) -> torch.Tensor:
        """x: (B, T, C); `start` tokens are in the cache."""
        x = x + self.attend(self.norm1(x), rope, cache, start)
        h = self.up(self.norm2(x))
        if self.config.family == "llama":
            gate, up = h.chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(h, approximate="tanh"))

    def attend(self, h: torch.Tensor, rope: Any, cache: Cache | None, start: int) -> torch.Tensor:
        """Attention of T new tokens to themselves and, with a cache, to those before."""
        B, T, C = h.shape
        H, G, D = self.config.num_heads, self.config.kv_heads, self.config.head_size
        q, k, v = (a.view(B, T, -1, D).transpose(1, 2) for a in self.qkv(h).split([H * D, G * D, G * D], dim=-1))
        if rope is not None:
            q, k = _turn(q, *rope), _turn(k, *rope)
        if cache is not None:
            end = start + T
            cache.keys[self.layer, :, :, start:end], cache.values[self.layer, :, :, start:end] = k, v
            k, v = cache.keys[self.layer, :, :, :end], cache.values[self.layer, :, :, :end]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, enable_gqa=G < H)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Transformer(nn.Module):
    """GPT-2 or Llama, as the config says, from our named arrays; the head is tied."""

    def __init__(self, config: ModelConfig, weights: Arrays) -> None:
        super().__init__()
        assert config.tied, "the peer's head is tied"
        self.embed = nn.Parameter(torch.from_numpy(weights["embed"]))
        self.positions = nn.Parameter(torch.from_numpy(weights["positions"])) if "positions" in weights else None
        self.blocks = nn.ModuleList(
            Block(config, {n.removeprefix(f"blocks.{i}."): a for n, a in weights.items()}, i)
            for i in range(config.num_layers)
        )
        self.norm = _norm(config, weights, "norm")
        self.tables = None
        if config.family == "llama":
            tables = rope_tables(config.context_len, config.head_size, config.rope_theta, np.float32)
            self.tables = [torch.from_numpy(table) for table in tables]

    def forward(self, ids: torch.Tensor, cache: Cache | None = None, start: int = 0) -> torch.Tensor:
        """ids (B, T) -> logits (B, T, V); with a cache (B, 1, V), of the last token alone."""
        end = start + ids.shape[1]
        x = F.embedding(ids, self.embed)
        if self.positions is not None:
            x = x + self.positions[start:end]
        rope = None if self.tables is None else [table[start:end] for table in self.tables]
        for block in self.blocks:
            x = block(x, rope, cache, start)
        return F.linear(self.norm(x if cache is None else x[:, -1:]), self.embed)


class Loss(nn.Module):
    """The mean loss of the next token: model and loss as one, so that both are compiled together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """ids, targets: (B, T)."""
        return F.cross_entropy(self.model(ids).flatten(0, 1), targets.flatten())


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _linear(w: Arrays, *names: str) -> nn.Linear:
    """One linear layer with the outputs of all of `names`."""
    weight = np.concatenate([w[f"{name}.weight"] for name in names])
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{names[0]}.bias" in w)
    layer.weight = nn.Parameter(torch.from_numpy(weight))
    if layer.bias is not None:
        layer.bias = nn.Parameter(torch.from_numpy(np.concatenate([w[f"{name}.bias"] for name in names])))
    return layer


def _norm(config: ModelConfig, w: Arrays, name: str) -> nn.Module:
    C, llama = config.channels, config.family == "llama"
    layer = nn.RMSNorm(C, config.norm_eps) if llama else nn.LayerNorm(C, config.norm_eps)
    for kind, _ in layer.named_parameters():
        setattr(layer, kind, nn.Parameter(torch.from_numpy(w[f"{name}.{kind}"].copy())))
    return layer


def model_of(config: ModelConfig) -> Transformer:
    """The peer of ours.model_of: the same weights."""
    return Transformer(config, initialise(config, 0).named())


def training(work: Training, compiled: bool) -> Step:
    """A step on the whole batch."""
    model = model_of(work.model)
    loss_of = torch.compile(Loss(model)) if compiled else Loss(model)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": OPTIM.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    betas = OPTIM.beta1, OPTIM.beta2
    optimizer = torch.optim.AdamW(groups, lr=OPTIM.learning_rate, betas=betas, eps=OPTIM.eps, fused=True)
    ids, targets = torch.from_numpy(random_ids(work.model, 2, work.batch, work.model.context_len))

    def step() -> tuple[float, float]:
        began = time.perf_counter()
        loss = loss_of(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), OPTIM.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        return time.perf_counter() - began, value

    return step


def decoding(work: Decoding, compiled: bool) -> Step:
    """All new tokens, read back one by one as a user would see them."""
    model = model_of(work.model)
    one = torch.compile(model, dynamic=True) if compiled else model
    prompts = torch.from_numpy(random_ids(work.model, work.batch, work.prompt))
    cache = Cache(work.model, work.batch, work.prompt + work.new)

    @torch.inference_mode()
    def step() -> tuple[float, list[list[int]]]:
        ids = model(prompts, cache).argmax(-1)
        tokens = [ids[:, 0].tolist()]
        began = time.perf_counter()
        for place in range(work.prompt, work.prompt + work.steps):
            ids = one(ids, cache, place).argmax(-1)
            tokens.append(ids[:, 0].tolist())
        return time.perf_counter() - began, tokens

    return step


def prefill(work: Prefill, compiled: bool) -> Step:
    """The prompt's pass."""
    model = torch.compile(model_of(work.model)) if compiled else model_of(work.model)
    ids, cache = torch.from_numpy(random_ids(work.model, 1, work.prompt)), Cache(work.model, 1, work.prompt)

    @torch.inference_mode()
    def step() -> tuple[float, int]:
        began = time.perf_counter()
        logits = model(ids, cache)
        return time.perf_counter() - began, int(logits.argmax())

    return step


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: None) -> torch.Tensor:
    del segments
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


TORCH_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "linear": F.linear,
    "embedding": F.embedding,
    "layer_norm": lambda x, w, b, eps: F.layer_norm(x, w.shape, w, b, eps),
    "rms_norm": lambda x, w, eps: F.rms_norm(x, w.shape, w, eps),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "attention": _attention,
    "cross_entropy": lambda z, t: F.cross_entropy(z.flatten(0, -2), t.flatten(), reduction="none"),
}  # rope and dropout have no function of their own, or another random stream


def op_call(work: OpCall, compiled: bool) -> Step:
    """One call of the function, or autograd's backward of it."""
    del compiled
    if work.name not in TORCH_OPS:
        raise Unavailable(f"torch has no {work.name}")
    function = TORCH_OPS[work.name]
    inputs = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in work.inputs]
    leaves = [x.requires_grad_() for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
    y = function(*inputs)
    dy = torch.randn_like(y)

    def step_forward() -> tuple[float, None]:
        began = time.perf_counter()
        function(*inputs)
        return time.perf_counter() - began, None

    def step_backward() -> tuple[float, None]:
        began = time.perf_counter()
        torch.autograd.grad(y, leaves, dy, retain_graph=True)
        return time.perf_counter() - began, None

    return step_backward if work.backward else step_forward


RUNNERS: dict[type, Callable[[Any, bool], Step]] = {
    Training: training, Decoding: decoding, Prefill: prefill, OpCall: op_call,
}  # fmt: skip


def runner(work: Work, side: str) -> Step:
    """`step` of one piece of work, eager or compiled.  A compiler that fails makes this side unavailable."""
    torch.set_num_threads(threads.num_threads())
    compiled = side == COMPILED
    if not compiled:
        return RUNNERS[type(work)](work, False)
    if not (shutil.which("g++") or shutil.which("clang++")):
        raise Unavailable("torch.compile needs a C++ compiler")
    step = RUNNERS[type(work)](work, True)

    def guarded() -> tuple[float, Any]:
        try:
            return step()
        except Exception as error:
            raise Unavailable(f"torch.compile failed: {str(error).splitlines()[0]}") from error

    return guarded
