"""The cache of machine code: used by a second start, and never stale, also where only a callee has changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minillm.cpu import jit

PACKAGE = Path(jit.__file__).parents[1]
SCRIPT = """
import numpy as np
from minillm.cpu.softmax import _softmax, softmax_forward
print(softmax_forward(np.zeros((1, 4), np.float32))[0][0, 0], sum(_softmax.stats.cache_hits.values()))
"""


@pytest.fixture
def copy(tmp_path):
    """A copy of the package that a test may change."""
    shutil.copytree(PACKAGE, tmp_path / "minillm", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def start(folder):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    value, hits = done.stdout.split()
    return float(value), int(hits), done.stderr


def test_a_second_start_compiles_nothing_and_a_changed_callee_compiles_anew(copy):
    value, hits, said = start(copy)
    assert (value, hits) == (0.25, 0)
    assert said.count("compiling kernels") == 1
    value, hits, said = start(copy)
    assert (value, hits, said) == (0.25, 1, "")
    scalar = copy / "minillm" / "cpu" / "scalar.py"
    text = scalar.read_text(encoding="utf-8")
    changed = text.replace("return F(0) if x < SMALLEST else y", "return F(0) if x < SMALLEST else y + y")
    assert changed != text
    scalar.write_text(changed, encoding="utf-8")
    softmax = copy / "minillm" / "cpu" / "softmax.py"
    softmax.write_text(
        softmax.read_text(encoding="utf-8").replace("p[i, j] *= scale", "p[i, j] *= ONE"), encoding="utf-8"
    )
    value, hits, _ = start(copy)
    assert (value, hits) == (2.0, 0)
    scalar.write_text(text, encoding="utf-8")  # only the callee, in its own file
    assert start(copy)[:2] == (1.0, 0)


def test_no_flag_lets_the_compiler_forget_nan_and_infinity():
    assert not {"fast", "nnan", "ninf"} & jit.FLAGS
