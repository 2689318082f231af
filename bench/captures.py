"""Capture files to references, and to the octets of each flow; against memcpy, dpkt and tshark."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import dpkt

from polymux.capture import index_file, read_sessions

from .harness import Floor, Line, Times, clocked, race
from .kernels import copier
from .packets import FORMATS, traffic

PAYLOAD = 48 * 1024 * 1024
SMALL = 4 * 1024 * 1024  # for those who take their time


def measure() -> list[Line]:
    lines: list[Line] = []
    packets = list(traffic(PAYLOAD))
    few = list(traffic(SMALL))
    with tempfile.TemporaryDirectory() as folder:
        for form, write in FORMATS.items():
            data = write(packets)
            path = Path(folder) / f"capture.{form}"
            path.write_bytes(data)
            small = Path(folder) / f"small.{form}"
            small.write_bytes(write(few))
            lines.append(scan(form, path, data, len(packets), small, len(few)))
        lines.append(reassembly(path, data))
    return lines


def scan(form: str, path: Path, data: bytes, count: int, small: Path, few: int) -> Line:
    """Every packet to its flow, instant and place."""

    def ours() -> None:
        index = index_file(str(path))
        assert index.summary.tcp_packets == count, index.summary

    times = race({"polymux": ours, "memcpy": copier(data)})
    theirs = race({"dpkt": lambda: by_dpkt(small, few)})
    line = Line(f"scan, {form}, 1,448 B segments", times["polymux"], count, "ns/packet")
    line.floors.append(Floor("memcpy", times["memcpy"], 0.80))
    line.floors.append(Floor("dpkt", theirs["dpkt"], 60.0, few))
    if shutil.which("tshark") is not None:
        line.floors.append(Floor("tshark, start-up included", by_tshark(small), None, few))
    return line


def by_dpkt(path: Path, count: int) -> None:
    """The same fields with dpkt."""
    flows: dict[tuple[bytes, bytes, int, int], int] = {}
    seen = []
    with path.open("rb") as file:
        reader = dpkt.pcap.UniversalReader(file)
        for at, data in reader:
            ip = dpkt.ethernet.Ethernet(data).data
            tcp = ip.data
            flow = flows.setdefault((ip.src, ip.dst, tcp.sport, tcp.dport), len(flows))
            seen.append((at, flow, tcp.seq, tcp.ack, tcp.flags, len(tcp.data)))
    assert len(seen) == count


def by_tshark(path: Path) -> Times:
    """One run for each round, start-up included; its time is spent in a child, so it is wall."""
    fields = [f"-e{name}" for name in ("frame.time_epoch", "tcp.stream", "tcp.seq", "tcp.len")]
    command = ["tshark", "-n", "-r", str(path), "-Tfields", *fields]
    times = Times()
    for _ in range(3):
        clocked(lambda: subprocess.run(command, capture_output=True, check=True), times)
    times.cpu = times.wall
    return times


def reassembly(path: Path, data: bytes) -> Line:
    """Every session's octets in order, joined batch by batch."""

    def ours() -> None:
        octets = 0
        with read_sessions([str(path)]) as reading:
            for session in reading:
                for batch in session.batches():
                    octets += len(batch.data)
        assert octets == PAYLOAD // 1448 * 1448, octets

    times = race({"polymux": ours, "memcpy": copier(data)})
    floors = [Floor("memcpy", times["memcpy"], 0.18)]
    return Line("scan and reassembly, pcapng", times["polymux"], len(data), "MB/s", floors,
                scale=1e6)  # fmt: skip
