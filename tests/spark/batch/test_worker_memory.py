"""Memory stays flat: a worker analyzes a session of gigabytes with a few megabytes of memory.

The long form (`make soak`) makes a capture of 4 GB with one session of 2 GB and prints what the
workers and the driver had at most; POLYMUX_SOAK_GIGABYTES makes it larger or smaller.
"""

import json
import os
from pathlib import Path

import pytest
from bench.pipeline_captures import Conversations
from tests.spark.conftest import RunDriver

from polymux.capture import CaptureLimits

LONG = bool(os.environ.get("POLYMUX_SOAK"))
BYTES = int(float(os.environ.get("POLYMUX_SOAK_GIGABYTES", "4")) * 1e9) if LONG else 48_000_000
WORKER = (256 << 20) + 2 * CaptureLimits().read_window_bytes
DRIVER = 1 << 30

PROGRAM = """
import json, sys
from pathlib import Path
import psutil
from polymux.spark import analyze, spark_session

def most(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    # A process that has just ended has no such line.
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0) * 1024

with spark_session("local[2]") as spark:
    done = analyze(spark, [sys.argv[1]], sys.argv[2])
    java = spark.sparkContext._gateway.proc.pid
    workers = [
        most(child.pid)
        for child in psutil.Process(java).children(recursive=True)
        if "java" not in child.name()
    ]
    told = {
        "frames": done.total.frames, "sessions": done.total.sessions,
        "bytes": done.total.total_bytes,
        "conserved": done.conserved, "seconds": done.seconds,
        "worker": max(workers), "driver": most(psutil.Process().pid), "java": most(java),
    }
print(json.dumps(told))
"""


def measured(run_driver: RunDriver, folder: Path, size: int) -> dict[str, int]:
    """Analyse a capture of so many bytes, half of them in one session."""
    talks = Conversations(100, weights=[99.0] + [1.0] * 99)
    capture = folder / "capture.pcap"
    talks.write(capture, size)
    told: dict[str, int] = run_driver(PROGRAM, str(capture), str(folder / "tables"))
    capture.unlink()
    print(json.dumps(told))
    assert told["frames"] == talks.frames
    assert told["sessions"] == 100
    assert told["conserved"]
    return told


@pytest.mark.timeout(3600 if LONG else 300)
def test_workers_and_driver_stay_within_their_bounds(run_driver: RunDriver, tmp_path: Path) -> None:
    told = measured(run_driver, tmp_path, BYTES)
    mebi = 1 << 20
    print(
        f"D13: largest worker {told['worker'] / mebi:.0f} MiB of {WORKER / mebi:.0f}, driver "
        f"{told['driver'] / mebi:.0f} MiB in Python and {told['java'] / mebi:.0f} MiB in Java"
    )
    assert told["worker"] <= WORKER
    assert told["driver"] + told["java"] <= DRIVER
