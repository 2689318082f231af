"""Run the tests in their long forms; print one line for each row of the reliability table.

    python -m tools.soak --minutes 10

Two jobs run at a time. One runs everything that measures time or memory: mixed load on every
protocol for 40 % of the time, the attacks, thousands of sessions for twice the time, and so on. The
other runs the tests that only count. Mutants get as long as the load. From ten minutes on every
count reaches its requirement, which takes about 65 minutes in all; each line has the figure reached
and the figure required. The exit code is 1 if any row fails. Rows that take very long run only when
they are named with --only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import many_sessions, mixed_load
from tools.soak_rows import ATTACKS, NOT_HERE, ROWS, Row

ROOT = Path(__file__).parents[1]
LOAD_SHARE = 0.4  # part of --minutes for the mixed load, and for the mutants
TEST_TIMEOUT_SECONDS = 7200  # for a test that sets no timeout of its own
Job = Callable[[], bool]
printing = threading.Lock()


def pytest(
    arguments: list[str], minutes: str, figures: Path, gently: bool = False
) -> tuple[bool, str]:
    """Run tests in their long form. Return whether all passed, and the output."""
    environment = {**os.environ, "POLYMUX_SOAK": minutes, "POLYMUX_FIGURES": str(figures)}
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider",
               "-o", f"timeout={TEST_TIMEOUT_SECONDS}", *arguments]  # fmt: skip
    return run(command, environment, gently)


def run(command: list[str], environment: dict[str, str], gently: bool) -> tuple[bool, str]:
    """Run a command; `gently` lowers its priority, so that measurements are not disturbed."""
    start = ["nice", "-n", "10"] if gently else []
    done = subprocess.run([*start, *command], cwd=ROOT, env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    return done.returncode == 0, done.stdout + done.stderr


def print_row_result(passed: bool, row: str, text: str, details: list[str] | None = None) -> bool:
    with printing:
        for line in details or []:
            print(f"      {line}")
        print(f"{'pass' if passed else 'FAIL'}  {row}: {text}", flush=True)
    return passed


def run_load(minutes: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(mixed_load.run(minutes * 60, Path(folder)))
    with printing:
        for protocol_run in runs:
            print(protocol_run.line(), flush=True)
    return all(protocol_run.passed() for protocol_run in runs)


def run_many_sessions(minutes: float) -> bool:
    """Run thousands of sessions for so many minutes, then the same beside hostile ones."""
    fine, lines = asyncio.run(many_sessions.run(minutes * 60))
    return print_row_result(fine, "R30", lines[2].partition(": ")[2], lines[:2] + lines[3:])


def run_attacks(minutes: float) -> bool:
    """Run all attacks; print a line for each, then one per row."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        fine, said = pytest(["tests/attacks/test_attacks.py"], f"{minutes:g}", figures)
        lines = figures.read_text().splitlines() if figures.exists() else []
    details = list(lines) if lines else said[-3000:].splitlines()
    for row, (title, numbers) in ATTACKS.items():
        own = [line for line in lines if attack_number(line) in numbers]
        failed = [line for line in own if not line.startswith("pass")]
        most = max((memory_of(line) for line in own), default=0.0)
        text = f"{title}: {len(own)} attacks, {len(failed)} failed, memory at most +{most:.2f} MiB"
        fine &= print_row_result(bool(own) and not failed, row, text, details)
        details = []
    return fine


def attack_number(line: str) -> int:
    found = re.search(r"ATK-(\d\d)", line)
    return int(found[1]) if found else 0


def memory_of(line: str) -> float:
    found = re.search(r"memory \+([\d.]+) MiB", line)
    return float(found[1]) if found else 0.0


def run_row(row: Row, minutes: float) -> bool:
    began = time.monotonic()
    fine, said = True, ""
    for _ in range(row.times):
        with tempfile.TemporaryDirectory() as folder:
            figures = Path(folder) / "figures"
            well, more = pytest(list(row.tests), f"{minutes:g}", figures, gently=not row.alone)
        fine &= well
        said += more
    counted = re.findall(r"(\d+ (?:passed|failed|skipped|error)[^\n]*?) in ", said)
    details = [line for line in said.splitlines() if re.match(r"(R|D|S|ATK-)\d+ ?[:\w]", line)]
    if not fine:
        details += said[-3000:].splitlines()
    parts = [figure.of(said) for figure in row.figures]
    parts += counted or ["nothing ran"]
    text = f"{row.title}: {', '.join(parts)}, {time.monotonic() - began:.0f} s"
    return print_row_result(fine, row.name, text, details)


def run_mutants(minutes: float) -> bool:
    """Try as many of the 600 mutants as there is time for; `make mutants` tries all."""
    command = [sys.executable, "-m", "tools.mutants", "--jobs", "1", "--minutes", f"{minutes:g}"]
    fine, said = run(command, dict(os.environ), gently=True)
    lines = said.splitlines()
    last = next((line for line in reversed(lines) if "S12:" in line), "nothing was tried")
    details = [line for line in lines if line.startswith(("survives", "fails"))]
    return print_row_result(
        fine, "S12", f"{last.partition('S12: ')[2] or last}, 600 required", details
    )


def run_in_order(own: list[Job], shared: Iterator[Job]) -> bool:
    """Run the jobs of `own`, then those left in `shared`; a failure does not stop the rest."""
    results = [job() for job in itertools.chain(own, shared)]
    return all(results)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default="", help="rows, such as R4,R21,attacks,S12")
    options = parser.parse_args()
    minutes: float = options.minutes
    rows = set(options.only.split(",")) if options.only else set()
    chosen: list[tuple[str, bool, Job]] = [
        ("R21", True, lambda: run_load(minutes * LOAD_SHARE)),
        ("attacks", True, lambda: run_attacks(minutes)),
        ("R30", True, lambda: run_many_sessions(minutes)),
        *((row.name, row.alone, lambda row=row: run_row(row, minutes)) for row in ROWS),
        ("S12", False, lambda: run_mutants(minutes * LOAD_SHARE)),
    ]
    by_name = {row.name: row.title for row in ROWS if row.only_by_name}
    asked = [
        (alone, job)
        for name, alone, job in chosen
        if name in rows or (not rows and name not in by_name)
    ]
    shared = iter([job for alone, job in asked if not alone])
    with ThreadPoolExecutor(2) as pool:
        measured = pool.submit(run_in_order, [job for alone, job in asked if alone], shared)
        counted = pool.submit(run_in_order, [], shared)
        fine = all([measured.result(), counted.result()])
    for row_name, reason in NOT_HERE.items():
        print(f"      {row_name}: not covered: {reason}")
    for row_name in by_name.keys() - rows:
        print(f"      {row_name}: not run: {by_name[row_name]}: --only {row_name}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
