"""The long forms, one line for each row of the reliability table that they cover.

    python -m tools.soak --minutes 10

Mixed load on every protocol for two fifths of the time; then the tests in their long forms, each
row with its figures and pass or fail. Ends with 1 if any row fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools import mixed_load

ROOT = Path(__file__).parents[1]
LOAD = 0.4  # of the time


@dataclass(frozen=True)
class Row:
    """A row of the table: what is run for it, and by what its figures are known."""

    name: str
    title: str
    tests: tuple[str, ...]


ATTACKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "R1": ("rapid open and reset", (1,)),
    "R2": ("provoked answers, socket unread", (2, 4)),
    "R3": ("openings that nobody takes", (3,)),
    "R6": ("credit overrun", (6,)),
    "R7": ("credit arithmetic", (7, 26)),
    "R8": ("oversized lengths", (8, 27)),
    "R9": ("stalled headers and handshakes", (9, 18)),
    "R10": ("dribble, empty and control floods", (10, 11, 12)),
    "R11": ("duplicate, reused and dead ids", (13, 14)),
    "R12": ("msgpack bombs", (16,)),
    "R20": ("decompression bomb", (22, 23)),
    "ATK": ("slow readers, names, roles, texts, wrong wires", (5, 17, 19, 20, 28, 29)),
}

ROWS = [
    Row("R4", "slow reader without flow control", ("tests/attacks/test_hogs.py",)),
    Row("R5", "hostile schedules", ("tests/stateful/test_hostile_schedules.py",)),
    Row("R11", "ids exhausted", ("tests/attacks/test_exhaustion.py",)),
    Row("R13", "any octets into any decoder; R14 wedges", ("tests/fuzz",)),
    Row("R15", "vectors cut at every octet", ("tests/protocols/test_vectors.py",)),
    Row("R16", "teardown races to depth 8", ("tests/stateful/test_teardown_races.py",)),
    Row("R17", "silent death", ("tests/attacks/test_silence.py",)),
    Row("R18", "cancelled at every suspension", ("tests/aio/test_cancellation.py",)),
    Row("D1", "recorder killed", ("tests/record/test_kill.py",)),
    Row("D2", "power loss", ("tests/capture/test_power_loss.py",)),
    Row("D3", "full and failing disks", ("tests/record/test_disk.py",)),
    Row("D4", "torn and flipped captures; D5", ("tests/capture/test_damage.py",)),
    Row("D6", "rotation under kill", ("tests/record/test_rotation.py",
                                      "tests/capture/test_rotation.py")),
    Row("D10", "split independence; D11", ("tests/analysis/test_splits.py",
                                           "tests/analysis/test_walk.py")),
    Row("S1", "hostile names in the report; S2, S3", ("tests/report",)),
    Row("S4", "special names; S5", ("tests/cli",)),
    Row("S6", "hostile captures; S7", ("tests/capture/test_scan.py",
                                       "tests/capture/test_sources.py",
                                       "tests/analysis/test_hostile.py")),
    Row("S8", "TLS matrix", ("tests/aio/test_bad_input.py", "tests/record/test_tls.py")),
    Row("S9", "audit", ("tests/tools/test_audit.py",)),
    Row("S11", "limits explain themselves", ("tests/aio/test_limits.py",
                                             "tests/core/test_guard.py")),
]  # fmt: skip
NOT_HERE = {
    "R19": "fairness on a shaped link: make bench",
    "R22": "interop: tests/interop, in make test",
    "D7": "replayed batches, D8 kills, D9 arrival orders: tests/spark and tests/collect",
    "D12": "clock steps: tests/record, in make test",
    "S10": "secrets: no key log is ever written; nothing to search",
    "S12": "mutants: python -m tools.mutants --count 600",
}


def pytest(arguments: list[str], minutes: float, figures: Path) -> tuple[bool, str]:
    """Run tests in their long form: did all pass, and what was said?"""
    environment = {**os.environ, "POLYMUX_SOAK": f"{minutes:g}", "POLYMUX_FIGURES": str(figures)}
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True,
                          check=False)  # fmt: skip
    return done.returncode == 0, done.stdout + done.stderr


def verdict(word: bool, row: str, text: str) -> bool:
    print(f"{'pass' if word else 'FAIL'}  {row}: {text}", flush=True)
    return word


def run_load(minutes: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        courses = asyncio.run(mixed_load.run(minutes * 60, Path(folder)))
    for course in courses:
        print(course.line(), flush=True)
    return all(course.passed() for course in courses)


def run_attacks(minutes: float) -> bool:
    """All attacks at once; one line each, then one a row."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        fine, said = pytest(["tests/attacks/test_attacks.py"], minutes, figures)
        lines = figures.read_text().splitlines() if figures.exists() else []
    for line in lines:
        print(f"      {line}")
    if not lines:
        print(said[-3000:])
    for row, (title, numbers) in ATTACKS.items():
        own = [line for line in lines if attack_number(line) in numbers]
        failed = [line for line in own if not line.startswith("pass")]
        most = max((memory_of(line) for line in own), default=0.0)
        text = f"{title}: {len(own)} attacks, {len(failed)} failed, memory at most +{most:.2f} MiB"
        fine &= verdict(bool(own) and not failed, row, text)
    return fine


def attack_number(line: str) -> int:
    found = re.search(r"ATK-(\d\d)", line)
    return int(found[1]) if found else 0


def memory_of(line: str) -> float:
    found = re.search(r"memory \+([\d.]+) MiB", line)
    return float(found[1]) if found else 0.0


def run_row(row: Row, minutes: float) -> bool:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fine, said = pytest(list(row.tests), minutes, Path(folder) / "figures")
    counted = re.findall(r"(\d+ (?:passed|failed|skipped|error)[^\n]*?) in ", said)
    figures = [line for line in said.splitlines() if re.match(r"(R|D|S|ATK-)\d+ ?[:\w]", line)]
    for figure in figures:
        print(f"      {figure}")
    took = time.monotonic() - began
    text = f"{row.title}: {counted[-1] if counted else 'nothing ran'}, {took:.0f} s"
    if not fine:
        print(said[-3000:])
    return verdict(fine, row.name, text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default="", help="rows, such as R4,R21,attacks")
    options = parser.parse_args()
    wanted = set(options.only.split(",")) if options.only else set()
    fine = True
    if not wanted or "R21" in wanted:
        fine &= run_load(options.minutes * LOAD)
    if not wanted or "attacks" in wanted:
        fine &= run_attacks(options.minutes)
    for row in ROWS:
        if not wanted or row.name in wanted:
            fine &= run_row(row, options.minutes)
    for row_name, why in NOT_HERE.items():
        print(f"      {row_name}: not here: {why}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
