"""Do the tests test something? Small faults are put into codecs and rules; the tests must notice.

    python -m tools.mutants --count 600 --seed 7

Every mutant is one change in one file of `protocols/` or in `core/wire.py`: a comparison, an
operator, a number, a condition. The fast tests of that protocol run against it, interpreted; a
mutant that no test notices survives and is printed with its line. The tree itself is never touched.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "polymux"
LONGEST = 300  # seconds a run may take; a mutant that hangs is noticed too
ENOUGH = 0.85  # the share that must be noticed

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitXor: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the file, the place, and what was done there."""

    path: Path
    place: int  # among the nodes of the file, in the order of `ast.walk`
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def files() -> list[Path]:
    return [*sorted((SOURCE / "protocols").glob("*.py")), SOURCE / "core" / "wire.py"]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change that could be made in a file."""
    tree = ast.parse(path.read_text())
    quiet = unreachable(tree)
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in quiet:
            continue
        for what in changes(node):
            yield Mutant(path, place, getattr(node, "lineno", 0), what)


def unreachable(tree: ast.Module) -> set[int]:
    """Nodes that say nothing when the code runs: annotations, texts, assertions, reprs."""
    quiet: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node.returns, *node.decorator_list]
            if node.name in ("__repr__", "__str__", "explain"):
                parts.append(node)
        elif isinstance(node, ast.Assert | ast.JoinedStr | ast.Raise):
            parts = [node]
        for part in parts:
            if part is not None:
                quiet.update(id(inner) for inner in ast.walk(part))
    return quiet


def changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        return ["comparison"]
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        return ["operator"]
    if isinstance(node, ast.BoolOp):
        return ["and/or"]
    if isinstance(node, ast.If | ast.While):
        return ["negated"] if not isinstance(node.test, ast.Constant) else []
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ["one more"]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return ["flipped"]
    return []


def mutated(mutant: Mutant) -> str:
    """The file's text with the change made."""
    tree = copy.deepcopy(ast.parse(mutant.path.read_text()))
    for place, node in enumerate(ast.walk(tree)):
        if place == mutant.place:
            change(node)
            break
    return ast.unparse(ast.fix_missing_locations(tree))


def change(node: ast.AST) -> None:
    if isinstance(node, ast.Compare):
        node.ops = [COMPARISONS[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif isinstance(node, ast.If | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if type(node.value) is bool else node.value + 1  # type: ignore[operator]  # changes() saw to it


def tests_for(path: Path) -> list[list[str]]:
    """What is run against a mutant of this file, the quickest first."""
    name = path.stem.partition("_")[0]
    vectors = "tests/protocols/test_vectors.py"
    if path.stem in ("wire", "registry", "options", "__init__"):
        return [[vectors], ["tests/core", "tests/protocols"]]
    own = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/protocols").glob(f"*{name}*.py"))
    own = [each for each in own if Path(each).name.startswith("test_")]
    runs = [[vectors, "-k", f"{name}/"], [*own, "tests/testing", "tests/core/test_guard.py"]]
    return [*runs, ["tests/aio/test_limits.py", *live_tests(name)]]


def live_tests(name: str) -> list[str]:
    found = [f"tests/aio/test_{name}.py", f"tests/aio/test_{name}_ends.py"]
    return [each for each in found if (ROOT / each).exists()] or ["tests/aio/test_streams.py"]


def noticed(mutant: Mutant, overlay: Path) -> bool:
    """Does any test fail? The change is made in a copy made of links."""
    target = overlay / "src" / mutant.path.relative_to(ROOT / "src")
    target.unlink()
    target.write_text(mutated(mutant))
    try:
        return any(fails(run, overlay) for run in tests_for(mutant.path))
    finally:
        target.unlink()
        target.symlink_to(mutant.path)


def fails(run: list[str], overlay: Path) -> bool:
    """Run these tests against the overlay. A run that never ends has failed too."""
    environment = {**os.environ, "PYTHONPATH": str(overlay / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *run]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True,
                              timeout=LONGEST, text=True, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):  # 2: a file cannot even be imported
        raise RuntimeError(f"{' '.join(command)} ends with {done.returncode}: {done.stderr}")
    return done.returncode != 0


def healthy(chosen: list[Mutant], overlay: Path) -> bool:
    """Do the tests pass without any change? Else every mutant would seem noticed."""
    runs = {tuple(run) for mutant in chosen for run in tests_for(mutant.path)}
    failing = [run for run in sorted(runs) if fails(list(run), overlay)]
    for run in failing:
        print(f"fails without any change: {' '.join(run)}", flush=True)
    return not failing


def make_overlay(folder: Path) -> Path:
    """The source tree as links, so that one file of it can be another."""
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            link = folder / "src" / path.relative_to(ROOT / "src")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return folder


def sample(count: int, seed: int, only: str = "") -> list[Mutant]:
    """So many mutants, chosen by the seed; the same ones for the same source."""
    every = [m for path in files() if only in str(path) for m in mutants_of(path)]
    return Random(seed).sample(every, min(count, len(every)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the path of the files to change")
    options = parser.parse_args(arguments)
    chosen = sample(options.count, options.seed, options.only)
    print(f"seed {options.seed}: {len(chosen)} mutants", flush=True)
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder:
        overlays = [make_overlay(Path(folder) / str(n)) for n in range(options.jobs)]
        if not healthy(chosen, overlays[0]):
            return 2

        def work(share: int) -> None:
            for mutant in chosen[share :: options.jobs]:
                if not noticed(mutant, overlays[share]):
                    survivors.append(mutant)
                    print(f"survives  {mutant}", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            for future in [pool.submit(work, share) for share in range(options.jobs)]:
                future.result()
    killed = len(chosen) - len(survivors)
    share = killed / max(1, len(chosen))
    word = "pass" if share >= ENOUGH else "FAIL"
    print(f"{word}  S12: {killed} of {len(chosen)} mutants noticed, {share:.1%} (at least 85 %), "
          f"seed {options.seed}")  # fmt: skip
    return 0 if share >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
