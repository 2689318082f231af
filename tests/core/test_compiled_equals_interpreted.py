"""The compiled and the interpreted code give the same results for the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polymux.core import connection

SOURCE = Path(__file__).parent.parent.parent / "src"
COMPILED = not connection.__file__.endswith(".py")
CASES = 3000 if "POLYMUX_SOAK" in os.environ else 120

PROGRAM = """
import hashlib, sys
from random import Random
from polymux.core import connection
from polymux.testing.properties import final_report, new_middle_observer, split_randomly
from polymux.testing.simulator import Simulation
form, cases, texts = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
assert connection.__file__.endswith('.py') == (form == 'interpreted'), connection.__file__
for text in texts:
    for seed in range(cases):
        rng = Random(seed)
        world = Simulation(text, seed)
        world.run(20)
        data = bytearray(b''.join(chunk for _, chunk, _ in world.record))
        for _ in range(rng.randrange(8) if data else 0):
            place = rng.randrange(len(data))
            data[place] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        data += rng.randbytes(rng.randrange(60))
        watcher = new_middle_observer(text)
        for piece in split_randomly(bytes(data), rng):
            watcher.feed(rng.randrange(2) if seed % 3 else 0, piece, 5)
        seen = repr(final_report(watcher, [], [], []))
        print(text, seed, hashlib.sha256(seen.encode()).hexdigest()[:16])
"""


def run(form: str, texts: list[str]) -> list[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if form == "interpreted":
        environment["PYTHONPATH"] = str(SOURCE)
    command = [sys.executable, "-c", PROGRAM, form, str(CASES), *texts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not COMPILED, reason="the core runs interpreted here")
@pytest.mark.parametrize(
    "text",
    [
        "mplex", "nerdbank", "nerdbank:version=1", "nerdbank:version=2", "omnistreams",
        "omnistreams:carrier=websocket", "streamux", "minmux", "yamux",
    ],
)  # fmt: skip
def test_damaged_traffic_looks_the_same_compiled_and_interpreted(text: str) -> None:
    compiled, interpreted = run("compiled", [text]), run("interpreted", [text])
    assert len(compiled) == CASES
    assert compiled == interpreted
