"""Fuzz with atheris: `python -m tests.fuzz [--seconds N] [TARGET...]`, every target in turn.

With `--inputs N` each target gets so many inputs with its seeds, however long they take: the same
ones in every run.

Coverage is only seen where the code runs interpreted, so run it with PYTHONPATH=src. What is found
is written to tests/vectors/fuzz/TARGET, where the tests run it from then on.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import atheris

DECODERS = ["polymux.core", "polymux.protocols", "polymux.capture", "polymux.analysis"]

with atheris.instrument_imports(include=DECODERS):
    from tests.fuzz.seeds import FOUND, seeds_of
    from tests.fuzz.targets import TARGETS


def fuzz(target: str, seconds: float, inputs: int | None, jobs: Path) -> int:
    """Fork a process for one target, because atheris ends its process. Return the process id.

    The code has been instrumented for all targets before the fork.
    """
    corpus = jobs / target
    corpus.mkdir()
    seeds = seeds_of(target)
    for n, seed in enumerate(seeds):
        (corpus / f"seed-{n:04d}").write_bytes(seed)
    if inputs is None:
        amount = [f"-max_total_time={max(1, round(seconds))}"]
    else:
        assert inputs > len(seeds), f"{target} has {len(seeds)} seeds: ask for more inputs"
        amount = [f"-runs={inputs}", "-seed=1"]
    found = FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    number = os.fork()
    if number:
        return number
    said = os.open(jobs / f"{target}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    options = [
        f"-artifact_prefix={found}/", *amount, "-timeout=5", "-rss_limit_mb=1024",
        "-max_len=6000", "-print_final_stats=1", "-verbosity=0",
    ]  # fmt: skip
    atheris.Setup([target, str(corpus), *options], TARGETS[target])
    atheris.Fuzz()
    os._exit(1)  # it does not come back


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument(
        "--inputs", type=int, help="for each target with its seeds, instead of seconds"
    )
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        jobs = Path(name)
        waiting = list(options.targets)
        running: list[tuple[str, int, float]] = []
        while waiting or running:
            while waiting and len(running) < options.at_once:
                target = waiting.pop(0)
                number = fuzz(target, options.seconds, options.inputs, jobs)
                running.append((target, number, time.monotonic()))
            target, number, began = running.pop(0)
            ended = os.waitpid(number, 0)[1]
            failed += ended != 0
            said = (jobs / f"{target}.log").read_text(errors="replace").splitlines()
            runs = next((line.split()[-1] for line in said
                         if "number_of_executed_units" in line), "?")  # fmt: skip
            word = "pass" if ended == 0 else "FAIL"
            print(
                f"{word}  {target}: {runs} inputs in {time.monotonic() - began:.0f} s", flush=True
            )
            if ended:
                print("\n".join(said[-40:]))
            folder = FOUND / target
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    if FOUND.is_dir() and not any(FOUND.iterdir()):
        FOUND.rmdir()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
