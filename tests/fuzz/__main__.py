"""Fuzz with atheris: `python -m tests.fuzz [--seconds N] [TARGET...]`, every target in turn.

Coverage is only seen where the code runs interpreted, so run it with PYTHONPATH=src. What is found
is written to tests/vectors/fuzz/TARGET, where the tests run it from then on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.seeds import FOUND, seeds_of
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]


def fuzz(target: str, seconds: float, jobs: Path) -> subprocess.Popen[str]:
    """One target in a process of its own: atheris ends the process it runs in."""
    corpus = jobs / target
    corpus.mkdir()
    for n, seed in enumerate(seeds_of(target)):
        (corpus / f"seed-{n:04d}").write_bytes(seed)
    found = FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "tests.fuzz.one", target, str(corpus), f"-artifact_prefix={found}/",
        f"-max_total_time={max(1, round(seconds))}", "-timeout=5", "-rss_limit_mb=1024",
        "-max_len=6000", "-print_final_stats=1", "-verbosity=0",
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as jobs:
        waiting = list(options.targets)
        running: list[tuple[str, subprocess.Popen[str], float]] = []
        while waiting or running:
            while waiting and len(running) < options.at_once:
                target = waiting.pop(0)
                process = fuzz(target, options.seconds, Path(jobs))
                running.append((target, process, time.monotonic()))
            target, process, began = running.pop(0)
            said, _ = process.communicate()
            failed += process.returncode != 0
            runs = next((line.split()[-1] for line in said.splitlines()
                         if "number_of_executed_units" in line), "?")  # fmt: skip
            word = "pass" if process.returncode == 0 else "FAIL"
            print(
                f"{word}  {target}: {runs} inputs in {time.monotonic() - began:.0f} s", flush=True
            )
            if process.returncode:
                print("\n".join(said.splitlines()[-40:]))
            folder = FOUND / target
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    if FOUND.is_dir() and not any(FOUND.iterdir()):
        FOUND.rmdir()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
