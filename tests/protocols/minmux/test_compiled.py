"""Compiled and interpreted, Minmux decodes and encodes the same at every 64-bit boundary."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import polymux
from polymux.core import connection

COMPILED = not connection.__file__.endswith(".py")
VECTORS = Path(__file__).parent.parent.parent / "vectors" / "minmux"

PROGRAM = r"""
import sys
from random import Random
from polymux.core import connection
from polymux.core.observer import Observer
from polymux.core.side import Vantage
from polymux.protocols.registry import create
from polymux.testing.properties import final_report, take_rows
from polymux.testing.simulator import Simulation
form, folder = sys.argv[1], sys.argv[2]
assert connection.__file__.endswith('.py') == (form == 'interpreted'), connection.__file__
texts = ['minmux', 'minmux:canonical=no', *(f'minmux:profile={folder}/{n}.toml'
         for n in ('shapes', 'named', 'reuse'))]
edges = [e + d for e in (0, 62, 63, 248, 311, 2**8, 2**16, 2**31, 2**32, 2**56, 2**60, 2**61, 2**62,
         2**63 - 63, 2**63, 2**63 + 62, 2**64 - 63, 2**64) for d in (-2, -1, 0, 1, 2)]
edges = [e for e in edges if 0 <= e < 2**64]

def number(rng):
    value = rng.choice(edges) if rng.random() < 0.6 else rng.choice([0, 1, 2, 3, 5])
    width = max(1, (value.bit_length() + 7) // 8)
    if value < 248 and rng.random() < 0.9:
        return bytes([value])
    if rng.random() < 0.1:
        width = rng.randrange(width, 9)
    return bytes([247 + width]) + value.to_bytes(width, 'big')

def packet(rng):
    group = rng.randrange(4) * 64
    if rng.random() < 0.5:
        head = bytes([group + rng.choice([0, 1, 2, 3, 4, 6, 10, 12])])
    else:
        head = bytes([group + 63]) + number(rng)
    return head + number(rng) + rng.choice([b'', b'a', b'\x01a'])

for text in texts:
    for seed in range(250):
        rng = Random(seed)
        watcher = Observer(create(text, vantage=rng.choice(list(Vantage))))
        for _ in range(rng.randrange(30)):
            watcher.feed(rng.randrange(2), packet(rng), 7)
        print(text, seed, final_report(watcher, [], [], []), watcher.accounts_for_all_bytes())
    for seed in range(20):
        world = Simulation(text, seed)
        world.run(60)
        print(text, seed, world.record, world.stream_summaries(), take_rows(world.middle_observer))
"""


def run(form: str, source: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form, str(VECTORS)],
        env=environment, capture_output=True, text=True, cwd="/", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not COMPILED, reason="the core runs interpreted here")
def test_any_packets_look_the_same_compiled_and_interpreted(tmp_path: Path) -> None:
    package = Path(polymux.__file__).parent
    shutil.copytree(package, tmp_path / "polymux", ignore=shutil.ignore_patterns("*.so"))
    here, there = run("compiled", package.parent), run("interpreted", tmp_path)
    for mine, other in zip(here.splitlines(), there.splitlines(), strict=True):
        assert mine == other
