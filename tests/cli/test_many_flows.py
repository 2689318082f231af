"""Captures with a flow for every packet: time by their size, and memory of some hundred bytes each.

At a million flows `ls` stays below 256 MiB and takes at most a second for each megabyte.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.capture import capture_builder as build

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
FEW, MANY = 500, 1_000_000 if SOAK else 20_000
PAYLOAD = b"\x08\x04good" + 5 * b"\x0a\x05hello"
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


def no_payload(number: int) -> bytes:
    return b""


def equal_payload(number: int) -> bytes:
    return PAYLOAD


def varying_payload(number: int) -> bytes:
    """Another name, other content and another size in each flow: 3 to 130 bytes."""
    name = b"%x" % (number * 2654435761 % (1 << 4 * (number % 9)))
    opened = mplex(number % 64, 0, name)
    data = bytes(number * step & 0xFF for step in range(1, 2 + number % 37))
    return opened + b"".join(mplex(number % 64, 2, data[part:]) for part in range(number % 4))


def mplex(stream: int, flag: int, payload: bytes) -> bytes:
    header = stream << 3 | flag
    low = bytes([header]) if header < 128 else bytes([header & 127 | 128, header >> 7])
    return low + bytes([len(payload)]) + payload


def write_flows(path: Path, count: int, payload_of: Callable[[int], bytes] = no_payload) -> int:
    """Write a capture of `count` flows of one packet: a SYN, or data without one. Returns its size
    in bytes."""
    moment = build.START
    with open(path, "wb") as file:
        file.write(build.pcapng([]))
        for number in range(count):
            payload = payload_of(number)
            size = 54 + len(payload)
            padding = bytes(-size % 4)
            block_size = 32 + size + len(padding)
            flags = 0x18 if payload else 2
            moment += 1000
            source = struct.pack(">IH", 0x0A000000 + number // 60_000, 1024 + number % 60_000)
            packet = (
                bytes(12) + b"\x08\x00"
                + struct.pack(">BBHHHBBH", 0x45, 0, size - 14, 0, 0x4000, 64, 6, 0)
                + source[:4] + bytes([192, 0, 2, 1])
                + source[4:] + struct.pack(">HIIBBHHH", 9000, number, 0, 5 << 4, flags, 64240, 0, 0)
                + payload
            )  # fmt: skip
            body = struct.pack("<IIIII", 0, moment >> 32, moment & 0xFFFFFFFF, size, size) + packet
            block = struct.pack("<II", 6, block_size) + body + padding
            file.write(block + struct.pack("<I", block_size))
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


@pytest.mark.timeout(2400 if SOAK else 120)
@pytest.mark.parametrize(
    ("payload_of", "protocol"),
    [(equal_payload, "auto"), (varying_payload, "auto"), (varying_payload, "mplex")],
)
def test_flows_with_payload_take_time_by_size_and_little_memory(
    payload_of: Callable[[int], bytes], protocol: str, tmp_path: Path
) -> None:
    """Of mplex: the same 41 bytes in each, which are recognised once; or others in each. Where the
    protocol is named, each session is decoded."""
    few, many = tmp_path / "few.pcapng", tmp_path / "many.pcapng"
    count = MANY if SOAK else 5000
    write_flows(few, FEW, payload_of)
    size = write_flows(many, count, payload_of)
    _, _, small = measure("ls", str(few), "--protocol", protocol)
    lines, seconds, large = measure("ls", str(many), "--protocol", protocol)
    assert sum('"table": "sessions"' in line for line in lines) == count
    print(
        f"S13 ls of {count} flows with {payload_of.__name__.replace('_', ' ')}, {protocol}, "
        f"{size >> 20} MiB: {seconds:.1f} s of processor time, {large >> 20} MiB"
    )
    assert large <= MAX_BYTES
    if SOAK:
        assert (large - small) / count <= MAX_GROWTH_BYTES
        assert seconds <= size / 1e6 * MAX_SECONDS_PER_MB + STARTUP_SECONDS


def test_a_device_that_never_ends_is_no_capture() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from polymux.cli import main; main()", "ls", "/dev/zero"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == "/dev/zero at byte 0: not a capture: neither pcapng nor pcap\n"
