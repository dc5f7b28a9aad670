"""PyTorch's version of each op of the table, for parity."""

import torch
import torch.nn.functional as F


def attention(q, k, v, segments):
    T, S = q.shape[1], k.shape[1]
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)[None, None]
    if segments is not None:
        key, query = segments[:, None, None, :], segments[:, None, S - T :, None]
        mask = mask & (key == query) & (key >= 0)
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    sees = mask.any(-1, keepdim=True)
    probs = torch.where(sees, scores.masked_fill(~sees, 0).softmax(-1), 0)
    return (probs @ v).transpose(1, 2)


def rope(x, positions, cos, sin):
    cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


TORCH = {
    "add": torch.add,
    "linear": F.linear,
    "embedding": lambda ids, table: F.embedding(ids.contiguous(), table),
    "layer_norm": lambda x, w, b, eps: F.layer_norm(x, (x.shape[-1],), w, b, eps),
    "rms_norm": lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, eps),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "rope": rope,
    "attention": attention,
    "cross_entropy": lambda z, t: F.cross_entropy(
        z.reshape(-1, z.shape[-1]), t.reshape(-1), reduction="none", ignore_index=-100
    ).reshape(t.shape),
}
