"""Imports only point down; the contracts are in pyproject.toml, and each is shown to fail when broken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(folder):
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True)


def copy_tree(tmp_path):
    for package in ("minillm", "gpu"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_keeps_the_contract():
    pytest.importorskip("importlinter")
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("minillm/ops/gelu.py", "import minillm.model.run"),  # up
        ("minillm/datasets/source.py", "import minillm.optim.muon"),  # sideways
        ("minillm/config.py", "from minillm import backend"),  # up from the lowest layer
        ("gpu/kernel.py", "import minillm.model.run"),  # a kernel that knows the model
    ],
)
def test_an_import_that_points_up_or_sideways_is_noticed(tmp_path, file, line):
    pytest.importorskip("importlinter")
    copy_tree(tmp_path)
    with (tmp_path / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode != 0
    assert "1 kept, 1 broken" in done.stdout


def test_a_package_outside_the_layers_is_noticed(tmp_path):
    pytest.importorskip("importlinter")
    (copy_tree(tmp_path) / "minillm" / "stray.py").write_text('"""Nowhere."""\n')
    assert lint(tmp_path).returncode != 0
