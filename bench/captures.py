"""Captures to packet references and to reassembled and opened bytes; against other programs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import dpkt
from bench import session_costs
from bench.alternating_runs import required_time
from bench.byte_traffic import content, mixed_sizes
from bench.capture_writer import FORMATS, PCAP_HEADER, one_way_packets, packets_carrying, record
from bench.harness import (
    Floor,
    Line,
    NotMeasured,
    Result,
    Times,
    measure_alternating,
    memcpy_of,
    time_call,
)
from bench.tls_captures import key_log_line, listing_line, opening_line

from polymux.capture import index_file, read_sessions

PAYLOAD = 48 * 1024 * 1024
LISTED = 100_000_000  # bytes of the capture for `ls`
SLOW = 3  # rounds for slow candidates
COLD_ROUNDS = 9  # for commands of a fraction of a second
LS = "from polymux.cli import main; main()"
MILLISECONDS = 1e6  # the amount of a line that is printed in milliseconds


def measure() -> list[Result]:
    lines: list[Result] = []
    if shutil.which("tshark") is None:
        lines.append(NotMeasured("tshark -T fields", "not installed"))
    packets = list(one_way_packets(PAYLOAD))
    with tempfile.TemporaryDirectory() as folder:
        for form, write in FORMATS.items():
            data = write(packets)
            path = Path(folder) / f"capture.{form}"
            path.write_bytes(data)
            lines.append(scan(form, path, data, len(packets)))
        lines.append(reassembly(path, data))
        lines.append(listing(Path(folder) / "listed.pcap"))
        lines.append(small_listing(Path(folder) / "small.pcap"))
        lines.append(key_log_line(Path(folder) / "keys.log"))
        lines.append(opening_line(16384, 0.6))
        lines.append(opening_line(1400, None))
        lines.append(listing_line(Path(folder), time_child))
        lines += session_costs.costs(Path(folder))
    return lines


def scan(form: str, path: Path, data: bytes, count: int) -> Line:
    """Flow, timestamp and file offset of every packet."""

    def ours() -> None:
        index = index_file(str(path))
        assert index.summary.tcp_packets == count, index.summary

    times = measure_alternating({"polymux": ours, "memcpy": memcpy_of(data)})
    theirs = measure_alternating({"dpkt": lambda: by_dpkt(path, count)}, SLOW)
    line = Line(f"scan, {form}, 1,448 B segments", times["polymux"], count, "ns/packet")
    line.floors.append(Floor("memcpy", times["memcpy"], 0.80))
    line.floors.append(Floor("dpkt", theirs["dpkt"], 60.0))
    if shutil.which("tshark") is not None:
        line.floors.append(Floor("tshark -T fields", by_tshark(path), 10.0))
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
    """The same fields with tshark, including its start."""
    fields = [f"-e{name}" for name in ("frame.time_epoch", "tcp.stream", "tcp.seq", "tcp.len")]
    times = Times()
    for _ in range(SLOW):
        time_child(["tshark", "-n", "-r", str(path), "-Tfields", *fields], times)
    return times


def time_child(command: list[str], times: Times) -> None:
    """Run another program and measure its CPU time."""
    before = getrusage(RUSAGE_CHILDREN)
    time_call(
        lambda: subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
        ),
        times,
    )
    after = getrusage(RUSAGE_CHILDREN)
    times.cpu[-1] = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def reassembly(path: Path, data: bytes) -> Line:
    """Every session's bytes in order, in batches: the input of the analysis."""

    def ours() -> None:
        size = 0
        with read_sessions([str(path)]) as reading:
            for session in reading:
                for batch in session.batches():
                    size += len(batch.data)
        assert size == PAYLOAD // 1448 * 1448, size

    times = measure_alternating({"polymux": ours, "memcpy": memcpy_of(data)})
    floors = [Floor("memcpy", times["memcpy"], 0.15)]
    return Line("scan and reassembly, pcapng", times["polymux"], len(data), "MB/s", floors,
                scale=1e6)  # fmt: skip


def listing(path: Path) -> Line:
    """`polymux ls` in a new process."""
    sizes = mixed_sizes(LISTED // 20)
    made = content("mplex", sizes, 100)
    talk = b"".join(data for _, data in made.opening) + made.content
    path.write_bytes(PCAP_HEADER)
    size = 0
    with path.open("ab") as file:
        for at, data in packets_carrying(talk, flows=LISTED // len(talk)):
            size += file.write(record(at, data))
    command = [sys.executable, "-c", LS, "ls", str(path), "--port", "9000=mplex"]
    times, reading = Times(), Times()
    for _ in range(SLOW):
        time_child(command, times)
        time_call(path.read_bytes, reading)
    floors = [required_time("within 5 s", 5.0), Floor("reading the file", reading)]
    name = f"polymux ls, {size / 1e6:.0f} MB, from cold"
    return Line(name, times, size, "MB/s", floors, clock="wall", scale=1e6)


def small_listing(path: Path) -> Line:
    """`polymux ls` of a few sessions as a table, in a new process, beside what it must import."""
    session_costs.write_short_sessions(path, session_costs.SIDE_BY_SIDE)
    command = [sys.executable, "-c", LS, "ls", str(path), "--format", "table"]
    times, importing = Times(), Times()
    for _ in range(COLD_ROUNDS):
        time_child(command, times)
        time_child([sys.executable, "-c", "import pyarrow"], importing)
    floors = [Floor("import pyarrow", importing, 1 / 2.5)]
    name = f"polymux ls, {path.stat().st_size / 1e3:.0f} KB, from cold"
    return Line(name, times, MILLISECONDS, "ms", floors, clock="wall")
