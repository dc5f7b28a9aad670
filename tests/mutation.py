"""Do the tests have teeth?  Change one token of an op or of the model, and see whether some test notices.

    python tests/mutation.py                    # 120 mutants, a few in each file; a few minutes on one core
    python tests/mutation.py --file softmax     # every mutant of the files whose name contains `softmax`
    python tests/mutation.py --part cpu         # of the numba twins, which are compiled anew for every mutant: slow

Each mutant is written into a copy of the tree, and the tests of its part run there until the first one fails.  A mutant
that no test notices is a hole in the tests, code that could be deleted, or equal to the original for a reason that
EXPLAINED gives.  The score is  caught / (all - explained),  and the exit status is 1 below 95%.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from mutants import mutants_of
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
NOT_MUTATED = ("__init__.py", "cases.py", "check.py")  # `check` and its `cases` are tests: tests/ops/test_check.py
PASS_MARK = 95  # per cent
TIMEOUT = 120  # seconds; the slowest unchanged run takes about 10
PARTS = {"ops": ("ops", "model"), "model": ("model",), "cpu": ("cpu",)}  # whose tests judge a mutant of which part
QUICK = ("ops", "model")
# reads the source text and so "catches" every change of it, equivalent ones too
READS_SOURCE = "tests/model/test_opaque.py::test_an_operation_past_the_ops_is_noticed"

NUMBERING = "another numbering of the dropout masks, each as good as any"
EXPLAINED = {  # (file, change) -> why no test can see it
    ("ops/attention.py", "B, {G, group → group, G}, T, D = y.shape"): "only their product is used",
    ("ops/attention.py", "{probs, _ → _, probs} = softmax_forward(scores)"): "softmax saves exactly its output",
    ("ops/attention.py", "{key, query → query, key} = segments[:, None, None, None, :], "
     "segments[:, None, None, S - T :, None]"): "equality is symmetric, and equal segments are both >= 0 or neither",
    ("ops/attention.py", "return mask & (key == query) & ({key → query} >= 0)"): "the two are equal where it counts",
    ("ops/attention.py", "if q.shape[2] % {k → v}.shape[2]:"): "k and v have one shape by then",
    ("ops/dropout.py", "{keep, scale → scale, keep} = saved"): "both only multiply, and keep is 0 or 1",
    ("ops/softmax.py", "p /= np.where(total == 0, {1 → 2}, total)"): "zeros divided by anything are zeros",
    ("ops/softmax.py", "y = z - np.log(np.where(total == 0, {1 → 2}, total))"): "-inf less anything finite is -inf",
    ("ops/softmax.py", "return np.where({m → x} == -np.inf, 0, m)"): "-inf less 0 or less the maximum is -inf",
    ("ops/softmax.py", "return np.where(m == -np.inf, {0 → 1}, m)"): "-inf less anything finite is -inf",
    ("model/dropout.py", "ATTENTION, FEED_FORWARD, EMBEDDING = 0, 1, {2 → 3}"): NUMBERING,
    ("model/dropout.py", "{ATTENTION, FEED_FORWARD → FEED_FORWARD, ATTENTION}, EMBEDDING = 0, 1, 2"): NUMBERING,
    ("model/dropout.py", "ATTENTION, {FEED_FORWARD, EMBEDDING → EMBEDDING, FEED_FORWARD} = 0, 1, 2"): NUMBERING,
    ("model/dropout.py", "return run.ops.dropout_forward(x, run.dropout.rate, "
     "run.dropout.generator({layer, place → place, layer}))"): NUMBERING,
    ("model/transformer.py", "x, drop = drop_forward(x, {0 → 1}, EMBEDDING, run)"): NUMBERING,
    ("model/transformer.py", "if {saved → grads}.positions is not None:"): "both have positions or neither",
    ("model/run.py", "return np.random.default_rng(np.random.SeedSequence(self.seed, "
     "spawn_key=(self.step, {layer, place → place, layer})))"): NUMBERING,
    ("model/run.py", "@lru_cache(maxsize={8 → 9})"): "how much is remembered, not what",
}  # fmt: skip


def sample(pools, num, seed):
    """`num` mutants: one of each file in turn, and within a file one of each kind in turn."""
    chooser = random.Random(seed)

    def in_turn(queues):
        queues = [chooser.sample(q, len(q)) for q in queues]
        chooser.shuffle(queues)
        return [item for row in zip_longest(*queues) for item in row if item is not None]

    files = [in_turn([[m for m in pool if m.kind == kind] for kind in {m.kind: 0 for m in pool}]) for pool in pools]
    chooser.shuffle(files)
    return [m for row in zip_longest(*files) for m in row if m is not None][:num]


def copy_tree():
    """A copy of what the tests need, in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="mutation-"))
    for name in ("minillm", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def judge(folder, part):
    """The first test that fails in `folder`, or None.  Tests that import PyTorch start slowly and so come last."""
    files = [path for name in PARTS[part] for path in sorted((folder / "tests" / name).glob("test_*.py"))]
    for torch in (False, True):
        chosen = [str(path.relative_to(folder)) for path in files if ("torch" in path.name) == torch]
        if not chosen:  # pytest would run every test there is
            continue
        command = [sys.executable, "-m", "pytest", *chosen, "-x", "-rfE", "--tb=line", "-p", "no:cacheprovider",
                   f"--deselect={READS_SOURCE}"]  # fmt: skip
        # the copy comes before the installed package, and no compiled file outlives its source
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
                                    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
        try:
            result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True,
                                    timeout=TIMEOUT)  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timeout"
        if result.returncode not in (0, 5):  # 5: nothing to run, as without PyTorch
            named = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - |$)", result.stdout, re.MULTILINE)
            return named[1] if named else f"exit status {result.returncode}: {result.stdout[-300:]}"
    return None


def check_the_method(folder, parts):
    """The unchanged copy passes, and a change in the copy is what the tests see (the package is installed too)."""
    for part in parts:
        if failure := judge(folder, part):
            sys.exit(f"the tests must pass before anything is changed: {failure}")
        target = folder / "minillm" / part / "__init__.py"
        text = target.read_text(encoding="utf-8")
        target.write_text(text + '\nraise RuntimeError("this is the copy")\n', encoding="utf-8")
        if not judge(folder, part):
            sys.exit(f"a broken {target} went unnoticed: the tests import another minillm, not the copy's")
        target.write_text(text, encoding="utf-8")


def run(mutants, parts):
    """(mutant, outcome) for each, as soon as it is known."""
    folder = copy_tree()
    try:
        check_the_method(folder, parts)
        for mutant in tqdm(mutants, unit="mutant", disable=None):
            target = folder / "minillm" / mutant.file
            original = target.read_text(encoding="utf-8")
            target.write_text(mutant.text, encoding="utf-8")
            verdict = judge(folder, Path(mutant.file).parent.name)
            target.write_text(original, encoding="utf-8")
            reason = EXPLAINED.get((mutant.file, mutant.change))
            outcome = "caught" if verdict else "explained" if reason else "SURVIVED"
            tqdm.write(f"{outcome:9} {mutant.file}:{mutant.line} {mutant.kind}: {mutant.change}\n"
                       f"          {verdict or reason or 'no test noticed'}")  # fmt: skip
            yield mutant, outcome
    finally:
        shutil.rmtree(folder)


def main():
    """Choose, judge, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=120, help="how many mutants to draw; 0: every one")
    parser.add_argument("--seed", type=int, default=0, help="chooses them")
    parser.add_argument("--file", help="instead: every mutant of the files whose name contains this")
    parser.add_argument("--part", choices=PARTS, help="only this part; without it: " + " and ".join(QUICK))
    options = parser.parse_args()
    parts = (options.part,) if options.part else QUICK
    paths = [p for part in parts for p in sorted((ROOT / "minillm" / part).glob("*.py")) if p.name not in NOT_MUTATED]
    pools = [mutants_of(p) for p in paths if (options.file or "") in p.name]
    everything = [mutant for pool in pools for mutant in pool]
    stale = set(EXPLAINED) - {(m.file, m.change) for m in everything}
    if stale and not options.file and not options.part:
        sys.exit("\n".join(["delete from EXPLAINED what is no longer there:", *map(": ".join, sorted(stale))]))
    chosen = everything if options.file or not options.num else sample(pools, options.num, options.seed)
    began, counts = time.monotonic(), {}
    for mutant, outcome in run(sorted(chosen), parts):
        counts.setdefault(mutant.file, Counter())[outcome] += 1
    total = sum(counts.values(), Counter())
    print(f"\n{'file':36}{'caught':>9}{'explained':>11}{'survived':>10}")
    for name, row in [*counts.items(), (f"of {len(everything)} possible", total)]:
        print(f"{name:36}{row['caught']:9}{row['explained']:11}{row['SURVIVED']:10}")
    score = 100 * total["caught"] / max(1, total["caught"] + total["SURVIVED"])
    print(f"caught {score:.1f}% of those not explained, in {time.monotonic() - began:.0f} s")
    sys.exit(score < PASS_MARK)


if __name__ == "__main__":
    main()
