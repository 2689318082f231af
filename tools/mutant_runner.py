"""Runs the tests against mutants: one prepared process that forks for each of them.

pytest collects the tests once. A survey runs them all, with coverage, and records which test
executes which line of the codecs and rules. For a mutant, only the tests that execute its line are
run, fastest first, until one fails. A change inside a function is made in the fork, by replacing
the function's code; a change of a module-level statement needs a new process that imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from tools.mutations import ROOT, SOURCE, Mutant, files, mutated, text_of

TESTS = ("tests/protocols", "tests/testing", "tests/core/test_encodings.py",
         "tests/core/test_encoding_forms.py", "tests/core/test_flood_guard.py",
         "tests/core/test_endpoint.py", "tests/aio/protocols/test_streamux.py",
         "tests/aio/protocols/test_omnistreams.py", "tests/aio/protocols/test_minmux.py",
         "tests/aio/protocols/test_nerdbank.py", "tests/aio/protocols/test_yamux.py",
         "tests/aio/streams/test_duplex.py", "tests/aio/test_limits.py",
         "tests/aio/protocols/test_minmux_ends.py")  # fmt: skip
LIVE_TESTS = "tests/aio/"  # these use real time: a failure counts if it happens twice
MAX_ADDRESS_SPACE = 4 << 30  # bytes; a mutant may allocate without end
EXTRA_TEST_SECONDS = 15.0  # beyond ten times a test's own time; a run that hangs counts as killed
KILLED, SURVIVED = 1, 0
Lines = dict[str, set[int]]


@dataclass
class CoveredTest:
    """One test: its duration and the lines it executes."""

    name: str
    seconds: float
    lines: Lines = field(default_factory=dict)


def use_deterministic_hypothesis() -> None:
    """Make property tests try the same cases every time, without shrinking."""
    quick = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutants", deadline=None, database=None, derandomize=True, phases=quick,
        suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
    hypothesis.settings.load_profile("mutants")


def failure_text(item: pytest.Item, following: pytest.Item | None) -> str:
    """Run a test. Return the text of its failure, or "" if it passed."""
    reports = runtestprotocol(item, log=False, nextitem=following)
    return next((report.longreprtext or "failed" for report in reports if report.failed), "")


def any_test_fails(items: list[pytest.Item], seconds: dict[str, float]) -> bool:
    """Whether one of these tests fails. A test that spins for too long ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    for item, following in zip(items, [*items[1:], None], strict=False):
        signal.setitimer(signal.ITIMER_VIRTUAL, EXTRA_TEST_SECONDS + 10 * seconds[item.nodeid])
        if failure_text(item, following):
            item._initrequest()  # type: ignore[attr-defined]  # of _pytest: reset it to run again
            if not item.nodeid.startswith(LIVE_TESTS) or failure_text(item, None):
                return True
    return False


def run_forked(act: Callable[[], int]) -> int:
    """Run `act` in a fork, which exits with its result. Return the process id of the fork."""
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        code = act()
    except Exception:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


# Coverage: which test executes which line


@dataclass
class CoverageSurvey:
    """Every test with its lines, the tests that fail unchanged, and the branch coverage."""

    parts: list[CoveredTest]
    failing: list[str]
    branches: float
    missing: list[str]  # per file: the branches that were never taken


def survey_coverage(items: list[pytest.Item], jobs: int) -> CoverageSurvey:
    with tempfile.TemporaryDirectory() as folder:
        children = [
            run_forked(partial(survey_share, items[share::jobs], Path(folder) / str(share)))
            for share in range(jobs)
        ]
        for child in children:
            if os.waitpid(child, 0)[1]:
                raise RuntimeError("the coverage survey did not finish")
        results = [json.loads((Path(folder) / str(n)).read_text()) for n in range(jobs)]
        total = coverage.Coverage(data_file=str(Path(folder) / "all"), branch=True)
        total.combine([str(Path(folder) / f"{n}.data") for n in range(jobs)])
        share, missing = branches(total)
        data = total.get_data()
        parts = {
            name: CoveredTest(name, seconds)
            for result in results
            for name, seconds in result["took"]
        }
        for path in map(str, files()):
            for line, names in data.contexts_by_lineno(path).items():
                for name in names:
                    if name in parts:
                        parts[name].lines.setdefault(path, set()).add(line)
    failing = [name for result in results for name in result["failing"]]
    return CoverageSurvey(list(parts.values()), failing, share, missing)


def survey_share(items: list[pytest.Item], out: Path) -> int:
    took: list[tuple[str, float]] = []
    failing: list[str] = []
    measured = coverage.Coverage(data_file=f"{out}.data", branch=True, include=[*map(str, files())])
    measured.start()
    for item, following in zip(items, [*items[1:], None], strict=False):
        measured.switch_context(item.nodeid)
        began = time.monotonic()
        problem = failure_text(item, following)
        if problem:
            failing.append(f"{item.nodeid}: {problem.splitlines()[-1]}")
        took.append((item.nodeid, time.monotonic() - began))
    measured.stop()
    measured.save()
    out.write_text(json.dumps({"took": took, "failing": failing}))
    return 0


def branches(total: coverage.Coverage) -> tuple[float, list[str]]:
    """The share of branches that the tests take, and those that none takes."""
    ran = known = 0
    missing: list[str] = []
    for path in files():
        found = total._analyze(str(path))  # private, but its own reports are made of it
        ran += found.numbers.n_executed_branches
        known += found.numbers.n_branches
        arcs = [f"{a}->{b}" for a, ends in sorted(found.missing_branch_arcs().items())
                for b in ends]  # fmt: skip
        if arcs:
            missing.append(f"{path.relative_to(ROOT)}: {' '.join(arcs)}")
    return ran / max(1, known), missing


# Running one mutant


def tests_for(mutant: Mutant, parts: list[CoveredTest]) -> list[CoveredTest]:
    """The tests that execute the mutant's line; at module level, all tests of its protocol."""
    if mutant.function:
        span = set(range(mutant.line, mutant.last + 1))
        found = [part for part in parts if span & part.lines.get(str(mutant.path), set())]
    else:
        near = {str(path) for path in files() if path.parent == mutant.path.parent}
        found = [part for part in parts if near & part.lines.keys() or "rule_tables" in part.name]
    return sorted(found, key=lambda part: (part.name.startswith(LIVE_TESTS), part.seconds))


def patch_function(mutant: Mutant) -> None:
    """Change the function in the module that is already imported."""
    module_code = importlib.abc.InspectLoader.source_to_code(mutated(mutant), str(mutant.path))
    code = next(part for part in nested_code(module_code) if part.co_qualname == mutant.function)
    owner: Any = sys.modules[module_name(mutant)]
    *class_names, name = mutant.function.split(".")
    for class_name in class_names:
        owner = getattr(owner, class_name)
    entry = vars(owner)[name]
    entry = getattr(entry, "__func__", None) or getattr(entry, "fget", None) or entry
    entry.__code__ = code


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from nested_code(part)


def module_name(mutant: Mutant) -> str:
    return ".".join(("polymux", *mutant.path.relative_to(SOURCE).with_suffix("").parts))


class MutantImporter(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """An import hook that loads the changed module in place of the original."""

    def __init__(self, mutant: Mutant, text: str) -> None:
        self.name = module_name(mutant)
        self.text = text
        self.code = self.source_to_code(mutated(mutant, text), str(mutant.path))

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self.name else None

    def is_package(self, name: str) -> bool:
        return False

    def get_source(self, name: str) -> str:
        return self.text

    def get_code(self, name: str) -> types.CodeType:
        return self.code


@dataclass
class FreshRunPlugin:
    """A pytest plugin that runs the named tests in the given order until one fails."""

    seconds: dict[str, float]  # by name, in the order to run them
    killed: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        order = {name: n for n, name in enumerate(self.seconds)}
        items = [item for item in session.items if item.nodeid in order]
        items.sort(key=lambda item: order[item.nodeid])
        self.killed = any_test_fails(items, self.seconds)
        return True


def run_fresh(order: dict[str, Any]) -> int:
    """Run the tests of one mutant in this process, which exits with the result."""
    mutant = Mutant(**{**order["mutant"], "path": Path(order["mutant"]["path"])})
    sys.meta_path.insert(0, MutantImporter(mutant, order["text"]))
    plugin = FreshRunPlugin(order["seconds"])
    ended = collect(sorted({name.partition("::")[0] for name in plugin.seconds}), plugin)
    return KILLED if plugin.killed or ended else SURVIVED  # a failed import counts as killed


def collect(paths: list[str], plugin: object) -> int:
    """Run pytest on these files with a plugin that replaces its test loop."""
    use_deterministic_hypothesis()
    with silenced_stdout():
        arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *paths]
        return int(pytest.main(arguments, plugins=[plugin]))


@contextmanager
def silenced_stdout() -> Iterator[None]:
    """Discard what pytest prints itself."""
    saved = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def start_fresh(mutant: Mutant, parts: list[CoveredTest]) -> int:
    order = {"mutant": {**vars(mutant), "path": str(mutant.path)}, "text": text_of(mutant.path),
             "seconds": {part.name: part.seconds for part in parts}}  # fmt: skip
    command = [sys.executable, "-m", "tools.mutant_runner"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, text=True)  # fmt: skip
    assert process.stdin is not None  # it is a pipe
    process.stdin.write(json.dumps(order))
    process.stdin.close()
    process.returncode = 0  # it is waited for by process id, like the forks
    return process.pid


if __name__ == "__main__":
    sys.exit(run_fresh(json.load(sys.stdin)))
