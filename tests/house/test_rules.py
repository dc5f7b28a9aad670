"""House rules of the source tree; each rule is also shown to fail on a tree that breaks it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE, MAX_FUNCTION = 300, 50  # lines
VAGUE = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
FORWARD_ONLY = ("gpu/attention/",)  # whose backward kernel is still to be written
LAZY = ("numba", "matplotlib", "mpi4py", "torch", "tyro")  # not loaded by `import minillm`


def sources(root):
    for path in sorted([*(root / "minillm").rglob("*.py"), *(root / "gpu").rglob("*.py")]):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(root), text, ast.parse(text)


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def files_are_short(root):
    return [f"{path}: {n} lines" for path, text, _ in sources(root) if (n := len(text.splitlines())) > MAX_FILE]


def is_twin(node):
    """`@twin(reference)` gives a function its reference's docstring."""
    return any(isinstance(d, ast.Call) and getattr(d.func, "id", "") == "twin" for d in node.decorator_list)


def functions_are_short(root):
    for path, _, tree in sources(root):
        for function in functions(tree):
            lines = function.end_lineno - function.lineno + 1
            if lines > MAX_FUNCTION:
                yield f"{path}:{function.lineno} {function.name}: {lines} lines"


def names_say_what_is_in_a_file(root):
    return [str(path) for path, _, _ in sources(root) if VAGUE & set(path.stem.split("_"))]


def everything_public_is_documented(root):
    for path, _, tree in sources(root):
        if not ast.get_docstring(tree):
            yield f"{path}: no docstring"
        public = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name[0] != "_"]
        for node in list(public):
            if isinstance(node, ast.ClassDef):
                public += [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
        public = [n for n in public if not is_twin(n)]
        yield from (f"{path}:{n.lineno} {n.name}: no docstring" for n in public if not ast.get_docstring(n))


def forward_stands_above_its_backward(root):
    for path, _, tree in sources(root):
        if str(path).startswith(FORWARD_ONLY):
            continue
        lines = {f.name: f.lineno for f in tree.body if isinstance(f, ast.FunctionDef)}
        for name, line in lines.items():
            if name.endswith("_forward") and not line < lines.get(name[: -len("forward")] + "backward", 0):
                yield f"{path}:{line} {name}: its backward must follow in the same file"


def nothing_is_pickled(root):
    pattern = re.compile(r"\bimport (pickle|dill|joblib|shelve)|allow_pickle=True|\b(eval|exec)\(")
    return [f"{path}: {found[0]}" for path, text, _ in sources(root) if (found := pattern.search(text))]


def the_maths_reads_no_environment(root):
    places = ("minillm/ops/", "minillm/model/")
    return [str(path) for path, text, _ in sources(root) if str(path).startswith(places) and "environ" in text]


def the_map_in_the_readme_is_true(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:minillm|tests|data|notebooks|gpu)/[\w./-]*)`", text))
    return [f"README.md names {name}, which is not there" for name in sorted(named) if not (root / name).exists()]


BREAKERS = {
    files_are_short: {"minillm/long.py": '"""Long."""\n' + "x = 1\n" * MAX_FILE},
    functions_are_short: {"minillm/f.py": '"""F."""\ndef f():\n    """F."""\n' + "    x = 1\n" * MAX_FUNCTION},
    names_say_what_is_in_a_file: {"minillm/ops/math_utils.py": '"""Odds and ends."""\n'},
    everything_public_is_documented: {"minillm/c.py": '"""C."""\nclass C:\n    """C."""\n    def f(self): ...\n'},
    forward_stands_above_its_backward: {"minillm/b.py": '"""B."""\ndef x_backward(): "B"\ndef x_forward(): "F"\n'},
    nothing_is_pickled: {"minillm/p.py": '"""P."""\nimport pickle\n'},
    the_maths_reads_no_environment: {"minillm/ops/e.py": '"""E."""\nimport os\nx = os.environ["X"]\n'},
    the_map_in_the_readme_is_true: {"README.md": "See `minillm/cuda/warp.py`.\n"},
}


@pytest.mark.parametrize("rule", BREAKERS)
def test_the_tree_keeps_the_rule(rule):
    assert list(rule(ROOT)) == []


@pytest.mark.parametrize("rule", BREAKERS)
def test_the_rule_notices_a_tree_that_breaks_it(rule, tmp_path):
    (tmp_path / "minillm").mkdir()
    for name, text in BREAKERS[rule].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert len(list(rule(tmp_path))) == 1


@pytest.mark.parametrize("module", ["minillm", "minillm.ops", "minillm.model.transformer"])
def test_importing_stays_light(module):
    code = f"import sys, {module}; print([m for m in {LAZY} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
