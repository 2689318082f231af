"""Mutation testing of the codecs and rules: small faults that the tests must detect.

    python -m tools.mutants --count 600 --seed 7

The tests run interpreted, and the source tree is not changed. A mutant that no test detects
survives and is printed with its line. Also prints the branch coverage of the tests.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field

import pytest
from tools.mutant_runner import (
    EXTRA_TEST_SECONDS,
    KILLED,
    SURVIVED,
    TESTS,
    CoveredTest,
    any_test_fails,
    collect,
    patch_function,
    run_forked,
    start_fresh,
    survey_coverage,
    tests_for,
)
from tools.mutations import ROOT, Mutant, sample

MIN_KILLED_SHARE = 0.85  # of the mutants that were tried
MIN_BRANCH_SHARE = 0.95  # of the branches


@dataclass
class MutationRun:
    """A pytest plugin that runs, for every mutant, the tests that execute its line."""

    mutants: list[Mutant]
    jobs: int
    minutes: float = 0.0  # start no mutant after this time; 0: try all
    print_missing: bool = False  # print the branches that no test takes
    survivors: list[Mutant] = field(default_factory=list)
    tried: int = 0
    branches: float = 0.0
    healthy: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            self.run_all(session.items)
        except Exception as problem:  # pytest's own output is discarded
            self.healthy = False
            say(f"the tool itself failed: {problem!r}")
        return True

    def run_all(self, items: list[pytest.Item]) -> None:
        survey = survey_coverage(items, self.jobs)
        self.branches = survey.branches
        for line in survey.missing if self.print_missing else []:
            say(f"never taken  {line}")
        for name in survey.failing:
            say(f"fails without any change: {name}")
        self.healthy = not survey.failing
        if self.healthy:
            self.try_all({item.nodeid: item for item in items}, survey.parts)

    def try_all(self, items: dict[str, pytest.Item], parts: list[CoveredTest]) -> None:
        """Try mutants, `jobs` at a time. One that hangs is killed and counts as detected."""
        until = time.monotonic() + self.minutes * 60 if self.minutes else float("inf")
        waiting = list(reversed(self.mutants))
        running: dict[int, tuple[Mutant, float]] = {}
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < self.jobs and time.monotonic() < until:
                mutant = waiting.pop()
                own = tests_for(mutant, parts)
                allowed = 4 * EXTRA_TEST_SECONDS + 10 * sum(part.seconds for part in own)
                running[start_run(mutant, own, items)] = (mutant, time.monotonic() + allowed)
            time.sleep(0.005)
            for child, (mutant, deadline) in list(running.items()):
                done, status = os.waitpid(child, os.WNOHANG)
                if not done:
                    if time.monotonic() > deadline:
                        os.kill(child, signal.SIGKILL)
                    continue
                del running[child]
                self.add_result(mutant, os.waitstatus_to_exitcode(status))

    def add_result(self, mutant: Mutant, code: int) -> None:
        if code not in (KILLED, SURVIVED) and code >= 0:  # negative: it hung, or ran out of memory
            raise RuntimeError(f"{mutant}: its run ended with {code}")
        self.tried += 1
        if code == SURVIVED:
            self.survivors.append(mutant)
            say(f"survives  {mutant}")


def start_run(mutant: Mutant, parts: list[CoveredTest], items: dict[str, pytest.Item]) -> int:
    """Start the tests of a mutant in a new process. Return its id."""
    if not mutant.function:
        return start_fresh(mutant, parts)
    chosen = [items[part.name] for part in parts]
    seconds = {part.name: part.seconds for part in parts}

    def act() -> int:
        patch_function(mutant)
        try:
            return KILLED if any_test_fails(chosen, seconds) else SURVIVED
        except MemoryError:  # not even enough for pytest's report
            return KILLED

    return run_forked(act)


def say(text: str) -> None:
    """Print to standard error: pytest uses standard output."""
    print(text, file=sys.__stderr__, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="start no mutant after this time"
    )
    parser.add_argument(
        "--branches", action="store_true", help="print the branches that no test takes"
    )
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="files to run")
    parser.add_argument(
        "--only", default="", help="only mutants whose path:function: contains this"
    )
    options = parser.parse_args(arguments)
    chosen = sample(options.count, options.seed, options.only)
    print(f"seed {options.seed}: {len(chosen)} mutants", flush=True)
    mutation_run = MutationRun(chosen, options.jobs, options.minutes, options.branches)
    if chosen:
        sys.path.insert(0, str(ROOT / "src"))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        collect(options.tests, mutation_run)
        if not mutation_run.healthy:
            return 2
    killed = mutation_run.tried - len(mutation_run.survivors)
    share = killed / max(1, mutation_run.tried)
    fine = share >= MIN_KILLED_SHARE and mutation_run.branches >= MIN_BRANCH_SHARE
    print(f"{'pass' if fine else 'FAIL'}  S12: {killed} of {mutation_run.tried} mutants noticed, "
          f"{share:.1%} (at least 85 %), branches run {mutation_run.branches:.1%} (at least 95 %), "
          f"seed {options.seed}")  # fmt: skip
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
