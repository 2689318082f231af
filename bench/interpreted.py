"""The same work on the interpreted source, in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.byte_traffic import content
from bench.harness import ROUNDS, Times

from polymux.core import connection
from polymux.core.observer import Observer
from polymux.protocols.registry import create
from polymux.testing.header_scan import HeaderScan

FRAMES = 5000


def run_interpreted(work: str, protocol: str) -> tuple[Times, float]:
    """Times of `loop` or `scan` on the interpreted source, and the number of frames."""
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-m", "bench.interpreted", work, protocol, str(ROUNDS)]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    times = Times()
    for wall, cpu in json.loads(done.stdout):
        times.add(wall, cpu)
    return times, float(FRAMES)


def main(work: str, protocol: str, rounds: int) -> None:
    assert connection.__file__.endswith(".py"), "this must run the interpreted source"
    traffic = content(protocol, [64] * FRAMES)
    taken = []
    for _ in range(rounds):
        observer = Observer(create(traffic.protocol), True)
        for side, data in traffic.opening:
            observer.feed(side, data, 0)
        act: Callable[[], object]
        if work == "scan":
            scan = HeaderScan(FRAMES)
            protocol_state = observer.protocol
            act = lambda: scan.read(protocol_state, 0, traffic.content, 0, 0)  # noqa: B023, E731
        else:
            act = lambda: observer.feed(0, traffic.content, 0)  # noqa: B023, E731
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    print(json.dumps(taken))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
