"""Captures with a flow for every packet: time by their size, and memory of some hundred bytes each.

At a million flows `ls` stays below 256 MiB and takes at most a second for each megabyte.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capture import capture_builder as build

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
FEW, MANY = 500, 1_000_000 if SOAK else 20_000
MAX_BYTES = 256 << 20
MAX_GROWTH_BYTES = 700  # for each of `MANY` flows; among them the spool's first four megabytes
MAX_SECONDS_PER_MB = 1.0
STARTUP_SECONDS = 3.0  # of processor time, on a busy machine
# Runs a command, and prints its processor time and its peak memory as the last line.
MEASURED = """
import resource, sys
from polymux.cli import main
try:
    main()
except SystemExit:
    pass
used = resource.getrusage(resource.RUSAGE_SELF)
# Not `ru_maxrss`, which begins at what the parent had.
with open("/proc/self/status") as status:
    (peak,) = [line.split()[1] for line in status if line.startswith("VmHWM")]
sys.stdout.write(f"{used.ru_utime + used.ru_stime} {peak}\\n")
"""


def write_flows(path: Path, count: int) -> int:
    """Write a capture of `count` flows of one packet, a SYN; returns its size in bytes."""
    moment = build.START
    with open(path, "wb") as file:
        file.write(build.pcapng([]))
        for number in range(count):
            moment += 1000
            source = struct.pack(">IH", 0x0A000000 + number // 60_000, 1024 + number % 60_000)
            packet = (
                bytes(12) + b"\x08\x00"
                + struct.pack(">BBHHHBBH", 0x45, 0, 40, 0, 0x4000, 64, 6, 0)
                + source[:4] + bytes([192, 0, 2, 1])
                + source[4:] + struct.pack(">HIIBBHHH", 9000, number, 0, 5 << 4, 2, 64240, 0, 0)
            )  # fmt: skip
            body = struct.pack("<IIIII", 0, moment >> 32, moment & 0xFFFFFFFF, 54, 54) + packet
            block = struct.pack("<II", 6, 88) + body + b"\0\0" + struct.pack("<I", 88)
            file.write(block)
    return path.stat().st_size


def measure(*arguments: str) -> tuple[list[str], float, int]:
    """Run a command: the lines it printed, its processor time, and its peak memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments],
        capture_output=True,
        text=True,
        timeout=1000 if SOAK else 280,
        env={**os.environ, "COLUMNS": "160"},
    )
    *lines, last = done.stdout.splitlines()
    seconds, kilobytes = last.split()
    return lines, float(seconds), int(kilobytes) * 1024


@pytest.mark.timeout(1200 if SOAK else 300)
def test_ls_takes_time_by_size_and_little_memory_for_each_flow(tmp_path: Path) -> None:
    few, many = tmp_path / "few.pcapng", tmp_path / "many.pcapng"
    write_flows(few, FEW)
    size = write_flows(many, MANY)
    table, _, small = measure("ls", str(few), "--format", "table")
    assert f"{FEW} sessions, 0 streams, 0 frames" in table
    assert f"and {FEW - 50} more; --format json lists them all" in table
    lines, seconds, large = measure("ls", str(many))
    assert len(lines) == MANY
    rows = [json.loads(line) for line in (lines[0], lines[-1])]
    assert rows[0]["dialer"] == "10.0.0.0:1024"
    assert rows[0]["started_at"] < rows[1]["started_at"]
    print(
        f"S13 ls of {MANY} flows, {size >> 20} MiB: {seconds:.1f} s of processor time, "
        f"{large >> 20} MiB"
    )
    assert (large - small) / MANY <= MAX_GROWTH_BYTES
    assert large <= MAX_BYTES
    assert seconds <= size / 1e6 * MAX_SECONDS_PER_MB + STARTUP_SECONDS


def test_a_device_that_never_ends_is_no_capture() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from polymux.cli import main; main()", "ls", "/dev/zero"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == "/dev/zero at byte 0: not a capture: neither pcapng nor pcap\n"
