"""Any bytes into any decoder: no crash, no hang, no wedge; a few seconds each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.fuzz.seeds import FOUND, mutated, seeds_of
from tests.fuzz.targets import PROTOCOLS, TARGETS

ROOT = Path(__file__).parents[2]
SOAK = float(os.environ.get("POLYMUX_SOAK") or 0)  # minutes asked for; 0: the fast form
SECONDS = min(1200.0, 1 + 4 * SOAK)  # each target: in ten minutes' form a million inputs in all
# Mutated inputs of the fast form: a second's, compiled. Interpreted, as many as take five.
INPUTS = {"websocket": 60_000, "captures": 4_000, "guess": 3_000, "tls": 1_500}
OTHER_INPUTS = 25_000
MAX_PROCESSOR_SECONDS = 5.0
GUIDED_SECONDS = min(120.0, 2 + 12 * SOAK)
GUIDED_INPUTS = 800  # of each target, its seeds among them, in the fast form: always the same ones
DECODERS = set(TARGETS) - {"observer", "websocket", "captures", "guess", "tls"}
LONGEST = 1.0  # seconds an input may take, on an idle machine


def inputs(target: str) -> Iterator[bytes]:
    """The seeds, then random mutations of them: the same in every run. In the fast form their
    number is fixed too, however busy the machine is."""
    seeds = seeds_of(target)
    yield from seeds
    chance = Random(target)
    if SOAK:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for _ in range(20):
                yield mutated(chance, seeds)
        return
    until = time.process_time() + MAX_PROCESSOR_SECONDS
    for _ in range(INPUTS.get(target, OTHER_INPUTS)):
        yield mutated(chance, seeds)
        if time.process_time() > until:
            break


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("target", TARGETS)
def test_mutated_conversations_do_no_harm(target: str) -> None:
    run = TARGETS[target]
    count, worst = 0, 0.0
    for data in inputs(target):
        began = time.process_time()
        try:
            run(data)
        except Exception as problem:
            raise AssertionError(f"{target}: {data.hex()}") from problem
        worst = max(worst, time.process_time() - began)
        count += 1
    print(f"R13 {target}: {count} inputs, the slowest took {worst * 1000:.0f} ms")
    if target in DECODERS:  # behind each of them an opening must be seen, or the end
        print(f"R14 {target}: {count} mutations, no wedge")
    assert worst < LONGEST


@pytest.mark.timeout(7200 if SOAK else 300)
def test_atheris_finds_nothing_either() -> None:
    """Guided by coverage, which only interpreted code shows."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    amount = f"--seconds={GUIDED_SECONDS}" if SOAK else f"--inputs={GUIDED_INPUTS}"
    command = [sys.executable, "-m", "tests.fuzz", amount]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True,
                          check=False)  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pass") == len(TARGETS)


def test_what_once_did_harm_does_none() -> None:
    for path in sorted(FOUND.glob("*/*")):
        TARGETS[path.parent.name](path.read_bytes())


def test_there_is_a_target_for_every_wire() -> None:
    assert len(PROTOCOLS) == 8
    assert set(TARGETS) >= {"observer", "websocket", "captures", "guess", "tls"}
    assert len(TARGETS) == 13
    for target in TARGETS:
        assert len(seeds_of(target)) >= 5, f"{target} has no seeds"
