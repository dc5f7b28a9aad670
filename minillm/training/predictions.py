"""A teacher's likeliest tokens, on disk: it reads every row once, and then no step waits for it, in any epoch.

    ids.npy         (N, k) uint16 (uint32 above 65,536 tokens): of the N positions that count, row after row
    log_probs.npy   (N, k) float32: their log-probabilities at tau among all V tokens
    made.json       of which teacher, data and settings

Both are memory-mapped, so they may be larger than memory.  Why float32, at 6 bytes a token instead of 4: the tail's
mass, 1 - sum p, is a small difference.  In float16 the gradient of a student close to its teacher was 2 to 3% off
(tau = 2, k = 8 to 128 of 1,024 tokens), about as much as it costs to know of the rest its mass alone.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from minillm import threads
from minillm.datasets.sampler import Rows, stack
from minillm.model.model import Model
from minillm.model.run import attend_of
from minillm.ops.cross_entropy import IGNORE, num_targets
from minillm.training.divergence import mix, top_k, top_k_kl
from minillm.training.made import digest_of, is_made, write_note

FILES = ("ids.npy", "log_probs.npy")
HEADER = 128  # bytes of an .npy file before its numbers


class Predicted(NamedTuple):
    """A Batch, and what its teacher finds likeliest: (B, T, k), zeros where no target counts."""

    ids: Any
    targets: Any
    positions: Any
    segments: Any
    top_ids: Any
    top_log_probs: Any


class PredictedRows:
    """Rows with the predictions of each: those of row `number` begin at starts[number]."""

    def __init__(self, rows: Rows, starts: np.ndarray, ids: np.ndarray, log_probs: np.ndarray) -> None:
        self.rows, self.starts, self.ids, self.log_probs = rows, starts, ids, log_probs

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Predicted:
        row = self.rows[number]
        scored = row.targets != IGNORE
        here = slice(self.starts[number], self.starts[number + 1])
        shape = (*scored.shape, self.ids.shape[1])
        ids, log_probs = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        ids[scored], log_probs[scored] = self.ids[here], self.log_probs[here]
        return Predicted(row.ids, row.targets, row.positions, row.segments, ids, log_probs)


def with_predictions(rows: Rows, teacher: Model, k: int, tau: float, folder: Path, batch_size: int = 4,
                     show: bool = True) -> PredictedRows:  # fmt: skip
    """`rows` with the teacher's k likeliest tokens at tau, which `folder` holds, or will.

    ValueError if k is larger than the vocabulary, or if the folder holds predictions of something else.
    """
    V = teacher.config.vocab_size
    if not 1 <= k <= V:
        raise ValueError(f"top_k must be 1 to {V}, the size of the vocabulary: got {k}")
    starts, settings = np.zeros(len(rows) + 1, np.int64), {"top_k": k, "tau": tau}

    def texts() -> Iterator[bytes]:
        for number in range(len(rows)):
            row = rows[number]
            starts[number + 1] = starts[number] + num_targets(row.targets)
            yield b"".join(array.tobytes() for array in row)

    digest = digest_of(teacher, settings, texts())
    if not is_made(folder / "made.json", digest):
        size = num_bytes(int(starts[-1]), k, V) / 2**20
        print(f"the teacher's {k} likeliest tokens at {starts[-1]:,} positions: {size:,.1f} MiB in {folder}")
        _write(rows, teacher, k, tau, int(starts[-1]), folder, batch_size, show)
        write_note(folder / "made.json", digest, settings | {"positions": int(starts[-1])})
    return PredictedRows(rows, starts, *(_open(folder / name, (int(starts[-1]), k)) for name in FILES))


def num_bytes(N: int, k: int, V: int) -> int:
    """What N positions take on disk, made.json apart."""
    return N * k * (_id_type(V).itemsize + np.dtype(np.float32).itemsize) + 2 * HEADER


def from_predictions(tau: float, alpha: float) -> Callable:
    """The objective of a student whose rows bring the predictions: (1 - alpha) * cross-entropy + alpha * `top_k_kl`."""

    def objective(ops, logits, batch, scale):
        del ops
        soft = top_k_kl(logits, batch.top_ids, batch.top_log_probs, batch.targets, scale, tau)
        return mix(soft, logits, batch.targets, scale, alpha)

    return objective


def _open(path: Path, shape: tuple[int, int]) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r")
        if array.shape != shape:
            raise ValueError(f"its shape is {array.shape}, expected {shape}")
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}; delete {path.parent}, and it is made anew") from error
    return array


def _write(rows: Rows, teacher: Model, k: int, tau: float, N: int, folder: Path, B: int, show: bool) -> None:
    """Both files, row after row; B rows at a time on each thread."""

    def predict(start: int) -> tuple[np.ndarray, np.ndarray]:
        batch = stack([rows[number] for number in range(start, min(start + B, len(rows)))])
        logits = teacher.logits(batch.ids, batch.positions, attend_of(teacher.ops, batch.segments))
        return top_k(logits[batch.targets != IGNORE].astype(np.float32), k, tau)

    folder.mkdir(parents=True, exist_ok=True)
    dtypes = _id_type(teacher.config.vocab_size), np.dtype("<f4")
    together = B * threads.num_threads()
    with ExitStack() as open_files:
        files = [open_files.enter_context(open(folder / name, "wb")) for name in FILES]
        for file, dtype in zip(files, dtypes):
            header = {"descr": dtype.str, "fortran_order": False, "shape": (N, k)}
            np.lib.format.write_array_header_1_0(file, header)
        with tqdm(total=len(rows), desc="the teacher reads", unit="row", disable=not show, dynamic_ncols=True) as bar:
            for start in range(0, len(rows), together):
                stop = min(start + together, len(rows))
                for arrays in threads.run_all(predict, range(start, stop, B)):
                    for file, array, dtype in zip(files, arrays, dtypes):
                        file.write(array.astype(dtype).tobytes())
                bar.update(stop - start)
        for file in files:  # on the disk before the note is
            file.flush()
            os.fsync(file.fileno())


def _id_type(V: int) -> np.dtype:
    return np.dtype("<u2" if V <= 1 << 16 else "<u4")
