"""Knowledge distillation: how far a student's predictions are from its teacher's.

z, t: logits of student and teacher (B, T, V);  q = softmax(z / tau), p = softmax(t / tau).  Each loss is
scale * tau^2 * (the sum of a divergence over the positions whose target is not IGNORE), and comes with dlogits.
A divergence's dz shrinks like 1 / tau^2, so tau^2 keeps tau from weighing the soft loss against the hard one (Hinton
et al. 2015, arXiv 1503.02531).  The teacher is computed in the student's dtype.  As an objective(ops, logits, batch,
scale): `distil.loss(logits, teacher_logits(batch.ids), batch.targets, scale)`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import logsumexp

from minillm.config import check_choice
from minillm.ops.check_inputs import ids_in_range
from minillm.ops.cross_entropy import IGNORE, cross_entropy_backward, cross_entropy_forward
from minillm.ops.softmax import log_softmax_forward, softmax_backward, softmax_forward


def forward_kl(logits, teacher_logits, targets, scale, tau=1.0):
    """KL(p || q) = sum p log(p / q);  dz = (q - p) / tau.  The student must cover all that the teacher may say.

    logits, teacher_logits: (B, T, V), targets: (B, T)  ->  loss: float, dlogits: (B, T, V).
    """
    logp, logq = _log_probs(logits, teacher_logits, targets, tau)
    return _scaled(_kl(logp, logq)[0], np.exp(logq) - np.exp(logp), logits, targets, scale, tau)


def reverse_kl(logits, teacher_logits, targets, scale, tau=1.0):
    """KL(q || p) = sum q log(q / p);  dz = q * (d - sum(q d)) / tau,  d = log(q / p).  The student may pick a mode.

    logits, teacher_logits: (B, T, V), targets: (B, T)  ->  loss: float, dlogits: (B, T, V).  Gu et al. 2023,
    arXiv 2306.08543.  Infinite, hence an error, where the teacher rules out (-inf) what the student may say.
    """
    logp, logq = _log_probs(logits, teacher_logits, targets, tau)
    q = np.exp(logq)
    if np.any((q != 0) & (logp == -np.inf)):
        raise ValueError("reverse_kl is infinite: the teacher's logit is -inf, the student's is not; try forward_kl")
    losses, log_ratio = _kl(logq, logp)
    return _scaled(losses, softmax_backward(log_ratio, q), logits, targets, scale, tau)


def jensen_shannon(logits, teacher_logits, targets, scale, tau=1.0, beta=0.5):
    """beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q;  always finite.

    dz = (1 - beta) q * (d - sum(q d)) / tau,  d = log(q / m): the terms by way of m cancel.
    logits, teacher_logits: (B, T, V), targets: (B, T)  ->  loss: float, dlogits: (B, T, V).
    beta weighs the teacher, as in Agarwal et al. 2023 (GKD, arXiv 2306.13649).  loss / beta tends to KL(p || q) as
    beta -> 0, loss / (1 - beta) to KL(q || p) as beta -> 1; the loss itself vanishes at both ends.
    """
    _check(beta=beta)
    logp, logq = _log_probs(logits, teacher_logits, targets, tau)
    logm = np.logaddexp(math.log(beta) + logp, math.log1p(-beta) + logq)
    losses, log_ratio = _kl(logq, logm)
    dz = (1 - beta) * softmax_backward(log_ratio, np.exp(logq))
    return _scaled(beta * _kl(logp, logm)[0] + (1 - beta) * losses, dz, logits, targets, scale, tau)


def top_k(teacher_logits, k, tau=1.0):
    """The teacher's k likeliest tokens at tau, best first, the lower id in a tie: what to keep of it on disk.

    teacher_logits: (..., V)  ->  ids: (..., k) int32, log_probs: (..., k), their logarithms among all V tokens.
    """
    _check(tau)
    if not 1 <= k <= teacher_logits.shape[-1]:
        raise ValueError(f"top_k: k must be 1 to {teacher_logits.shape[-1]}, the size of the vocabulary: got {k}")
    logp, _ = log_softmax_forward(teacher_logits / tau)
    ids = np.argsort(-logp, axis=-1, kind="stable")[..., :k]
    return ids.astype(np.int32), np.take_along_axis(logp, ids, axis=-1)


def top_k_kl(logits, ids, log_probs, targets, scale, tau=1.0):
    """forward_kl from `top_k` of the teacher at the same tau; the tokens beyond them are one outcome, the tail.

    loss = sum_kept p log(p / q) + P log(P / Q),  P = 1 - sum_kept p,  Q = sum_rest q
    dz   = (q - r) / tau,  r = p for a kept token and P q / Q for one of the rest
    logits: (B, T, V), ids, log_probs: (B, T, k), targets: (B, T)  ->  loss: float, dlogits: (B, T, V).
    Merging outcomes never adds divergence: 0 <= this <= forward_kl, equal at k = V.  Were the tail dropped, the loss
    could be negative and its least value would not be at q = p.
    """
    _check(tau)
    scored = _scored(logits, targets)
    if ids.shape != log_probs.shape or ids.shape[:-1] != targets.shape:
        raise ValueError(f"top_k_kl: ids and log_probs must be (B, T, k): got {ids.shape}, {log_probs.shape}")
    ids, log_probs = ids[scored], log_probs[scored]
    ids_in_range("top_k_kl", "ids", ids, logits.shape[-1])
    logq, _ = log_softmax_forward(logits[scored] / tau)
    logp, kept = np.full_like(logq, -np.inf), np.zeros(logq.shape, dtype=bool)
    np.put_along_axis(logp, ids, log_probs, axis=-1)
    np.put_along_axis(kept, ids, True, axis=-1)
    if np.count_nonzero(kept) != ids.size:
        raise ValueError("top_k_kl: the ids of a row must differ; make them with top_k(teacher_logits, k, tau)")
    tail = _tail_mass(log_probs, kept).astype(logq.dtype)
    logq_rest = np.where(kept, -np.inf, logq)
    with np.errstate(divide="ignore"):  # log(0) = -inf is a tail that is not there
        tail_losses, _ = _kl(np.log(tail), logsumexp(logq_rest, axis=-1, keepdims=True))
    r = np.exp(logp) + tail * softmax_forward(logq_rest)[0]
    return _scaled(_kl(logp, logq)[0] + tail_losses, np.exp(logq) - r, logits, targets, scale, tau)


def hidden_mse(h, weight, teacher_h, scale):
    """loss = scale * sum_n mean_c e^2,  e = h W^T - teacher_h;  dh = g W,  dW = g^T h,  g = 2 scale e / C_t.

    h: (N, C_s), weight: (C_t, C_s), learned, teacher_h: (N, C_t)  ->  loss: float, dh, dweight.  Romero et al. 2014,
    arXiv 1412.6550.  Rows are positions that count, h[targets != IGNORE]; scale = 1 / N makes it their mean.
    """
    if h.shape[1:] != weight.shape[1:] or teacher_h.shape != (len(h), len(weight)):
        got = f"{h.shape}, {weight.shape}, {teacher_h.shape}"
        raise ValueError(f"hidden_mse: h, weight, teacher_h must be (N, C_s), (C_t, C_s), (N, C_t): got {got}")
    error = h @ weight.T - teacher_h
    g = (2 * scale / len(weight) * error).astype(h.dtype)
    return float(scale * np.sum(error * error, dtype=np.float64) / len(weight)), g @ weight, g.T @ h


def mix(soft, logits, targets, scale, alpha):
    """(1 - alpha) * hard + alpha * soft, of pairs (loss, dlogits);  hard = scale * sum of -log softmax(z)[target]."""
    _check(alpha=alpha)
    losses, saved = cross_entropy_forward(logits[scored := _scored(logits, targets)], targets[scored])
    hard = _scaled(losses, cross_entropy_backward(np.ones_like(losses), saved)[0], logits, targets, scale, tau=1.0)
    return (1 - alpha) * hard[0] + alpha * soft[0], (1 - alpha) * hard[1] + alpha * soft[1]


@dataclass(frozen=True)
class Distil:
    """(1 - alpha) * cross-entropy + alpha * divergence at temperature tau; beta is Jensen-Shannon's."""

    divergence: Literal["forward", "reverse", "jensen-shannon"] = "forward"
    tau: float = 2.0
    alpha: float = 0.5
    beta: float = 0.5

    def __post_init__(self):
        check_choice("divergence", self.divergence, ("forward", "reverse", "jensen-shannon"))
        _check(self.tau, self.alpha, self.beta)

    def loss(self, logits, teacher_logits, targets, scale, answers=None):
        """logits, teacher_logits: (B, T, V), targets: (B, T)  ->  loss: float, dlogits: (B, T, V).

        answers: the targets of the cross-entropy, (B, T), if not all that the divergence looks at are right.
        """
        inputs = logits, teacher_logits, targets, scale, self.tau
        if self.divergence == "jensen-shannon":
            soft = jensen_shannon(*inputs, self.beta)
        else:
            soft = (forward_kl if self.divergence == "forward" else reverse_kl)(*inputs)
        return mix(soft, logits, targets if answers is None else answers, scale, self.alpha)


def _kl(logp, logq):
    """sum p log(p / q) over the last axis, and log(p / q);  both 0 where p is 0, whatever q is there."""
    p = np.exp(logp)
    log_ratio = np.subtract(logp, logq, out=np.zeros_like(logq), where=p != 0)
    return np.sum(p * log_ratio, axis=-1), log_ratio


def _log_probs(logits, teacher_logits, targets, tau):
    """log p of the teacher and log q of the student, (N, V) for N scored positions."""
    _check(tau)
    scored = _scored(logits, targets)
    if (V := logits.shape[-1]) != (teacher_V := teacher_logits.shape[-1]):
        raise ValueError(f"teacher and student must share a vocabulary: teacher {teacher_V} tokens, student {V}; give "
                         f"both one tokenizer, or cut mere padding: logits[..., :{min(V, teacher_V)}]")  # fmt: skip
    if logits.shape != teacher_logits.shape:
        raise ValueError(f"run teacher and student on the same ids: logits {teacher_logits.shape}, {logits.shape}")
    logp, _ = log_softmax_forward(teacher_logits[scored].astype(logits.dtype) / tau)
    if np.any(np.all(logp == -np.inf, axis=-1)):
        raise ValueError("the teacher's logits are all -inf at a scored position; set its target to IGNORE")
    return logp, log_softmax_forward(logits[scored] / tau)[0]


def _scored(logits, targets):
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"one target per row of logits: logits {logits.shape}, targets {targets.shape}")
    return targets != IGNORE


def _tail_mass(log_probs, kept):
    """1 - sum p (N, 1) in float64;  0 where no token is left for it or where it is mere rounding."""
    total = np.sum(np.exp(log_probs, dtype=np.float64), axis=-1, keepdims=True)
    if np.any(total > 1.01):  # a percent: more than even float16 rounds
        raise ValueError(f"top_k_kl: log_probs must be those of top_k, not logits: they add up to {total.max():.3g}")
    rounding = 16 * np.finfo(log_probs.dtype).eps  # eps |log p| each adds up to eps * entropy, at most eps * log V
    absent = np.all(kept, axis=-1, keepdims=True) | (1 - total < rounding)
    return np.where(absent, 0, 1 - total)


def _scaled(losses, dz, logits, targets, scale, tau):
    """Per-position losses (N,) and dz (N, V) with respect to z / tau  ->  the sum times tau^2 * scale, dlogits."""
    dlogits = np.zeros_like(logits)
    dlogits[_scored(logits, targets)] = scale * tau * dz  # tau^2 / tau
    return float(scale * tau**2 * np.sum(losses, dtype=np.float64)), dlogits


def _check(tau=1.0, alpha=0.5, beta=0.5):
    if not 0 < tau < math.inf:
        raise ValueError(f"tau, the temperature, must be positive and finite: got {tau}; 1 leaves the logits as is")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha, the weight of the teacher, must be 0 (targets only) to 1 (teacher only): got {alpha}")
    if not 0 < beta < 1:
        raise ValueError(f"beta must lie between 0 and 1: got {beta}; use forward_kl for 0, reverse_kl for 1")
