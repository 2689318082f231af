"""What a short session costs in analysis, and how CPU time grows with what a capture holds.

Measured in this process, with the functions of the two tasks of the pipeline: index, then analyze,
which detects the protocol and writes all tables.
"""

from __future__ import annotations

import struct
import tempfile
import time
from pathlib import Path

import numpy as np
from bench.byte_traffic import mplex_frame
from bench.capture_writer import ACK, FIN, SYN
from bench.harness import Bound, Figure, Result, growth
from bench.pipeline_captures import PCAP_NS_HEADER, START_NS, ByteArray, Conversations

from polymux.analysis.options import AnalysisOptions
from polymux.capture import CaptureLimits, FileRange
from polymux.spark.batch.analyze_stage import StageResult, analyze_flows
from polymux.spark.batch.index_stage import IndexSpan, index_task
from polymux.spark.batch.reference_shuffle import (
    MIN_BUCKETS,
    FlowSelection,
    IndexResult,
    ReferenceReader,
)

ROUNDS = 3
SESSIONS = 2000  # of each figure per session
BYTES_OF_MIDDLE_SESSION = 12_500  # 115 frames of mplex
# Bytes of each size of a slope. Not from one session on: what a task costs at all is not growth.
SESSION_COUNTS = (1_000, 10_000, 100_000)
FRAME_COUNTS = (20_000, 200_000, 2_000_000)
FILE_COUNTS = (4, 16, 64)
SESSIONS_OF_FILES = 2_048
SIDE_BY_SIDE = 8  # connections that are open at the same time
PACKET_INTERVAL_NS = 1000
ASK = mplex_frame(1, 0, b"s1") + mplex_frame(1, 2, b"hello, world") + mplex_frame(1, 4, b"")
ANSWER = mplex_frame(1, 1, b"goodbye, world") + mplex_frame(1, 3, b"")


def costs(folder: Path) -> list[Result]:
    """The CPU time of sessions of two sizes."""
    short, middle = folder / "short.pcap", folder / "middle.pcap"
    write_short_sessions(short, SESSIONS * 4)
    Conversations(SESSIONS).write(middle, SESSIONS * BYTES_OF_MIDDLE_SESSION)
    return [
        per_session("session of 7 packets, all tables", [short], SESSIONS * 4, 80),
        per_session("session of 115 frames, all tables", [middle], SESSIONS, 200),
    ]


def growth_lines(folder: Path) -> list[Result]:
    """How the CPU time of an analysis grows with sessions, frames and files."""
    return [*growth_with_sessions(folder), *growth_with_frames(folder), *growth_with_files(folder)]


def per_session(name: str, paths: list[Path], sessions: int, most: float) -> Figure:
    """The CPU time of a session in microseconds, of several rounds."""
    spent = [seconds_of(paths, sessions) / sessions * 1e6 for _ in range(ROUNDS + 1)]
    return Figure(name, spent[1:], "µs CPU", [Bound("required", most)], clock="cpu")


def growth_with_sessions(folder: Path) -> list[Figure]:
    times = []
    for count in SESSION_COUNTS:
        path = folder / f"sessions-{count}.pcap"
        write_short_sessions(path, count)
        times.append(best_seconds([path], count))
        path.unlink()
    return growth("CPU time", "sessions of a capture", SESSION_COUNTS, times)


def growth_with_frames(folder: Path) -> list[Figure]:
    times = []
    for count in FRAME_COUNTS:
        path = folder / f"frames-{count}.pcap"
        Conversations(16).write(path, count * 114)  # 100-byte frames, 5 in a packet
        times.append(best_seconds([path], 16))
        path.unlink()
    return growth("CPU time", "frames of a capture", FRAME_COUNTS, times)


def growth_with_files(folder: Path) -> list[Figure]:
    """The same number of sessions in each file."""
    times = []
    for count in FILE_COUNTS:
        paths = [folder / f"file-{number}.pcap" for number in range(count)]
        for number, path in enumerate(paths):
            write_short_sessions(path, SESSIONS_OF_FILES // 8, number)
        times.append(best_seconds(paths, count * SESSIONS_OF_FILES // 8))
        for path in paths:
            path.unlink()
    return growth("CPU time", "files", FILE_COUNTS, times)


def best_seconds(paths: list[Path], sessions: int) -> float:
    return min(seconds_of(paths, sessions) for _ in range(ROUNDS))


def seconds_of(paths: list[Path], sessions: int) -> float:
    """The CPU time of an index task and an analyze task over these captures."""
    limits = CaptureLimits()
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as staging:
        begun = time.process_time()
        spans = [IndexSpan(str(path), FileRange()) for path in paths]
        index = IndexResult.unpack(index_task(staging, limits)(spans))
        flows = ReferenceReader(staging, [index.name], FlowSelection(range(MIN_BUCKETS)))
        found: StageResult = analyze_flows(flows, staging, AnalysisOptions(), limits)
        spent = time.process_time() - begun
        assert (found.sessions, found.unbalanced) == (sessions, []), found
    return spent


def write_short_sessions(path: Path, count: int, number: int = 0) -> None:
    """A capture of connections of seven packets each, a request and its answer on one stream.

    `count` must be a multiple of `SIDE_BY_SIDE`. Another `number` gives other connections, later.
    """
    asked, answered = len(ASK), len(ANSWER)
    steps = [
        (0, 0, 0, SYN, b""),
        (1, 0, 1, SYN | ACK, b""),
        (0, 1, 1, ACK, b""),
        (0, 1, 1, ACK, ASK),
        (1, 1, 1 + asked, ACK, ANSWER),
        (0, 1 + asked, 1 + answered, ACK | FIN, b""),
        (1, 1 + answered, 2 + asked, ACK | FIN, b""),
    ]
    flow = np.arange(count, dtype=np.int64)
    group, place = flow // SIDE_BY_SIDE, flow % SIDE_BY_SIDE
    begun = START_NS + number * count * len(steps) * PACKET_INTERVAL_NS
    columns = []
    for step, (side, seq, ack, flags, data) in enumerate(steps):
        made = np.tile(np.frombuffer(_packet(side, seq, ack, flags, data), np.uint8), (count, 1))
        order = (group * len(steps) + step) * SIDE_BY_SIDE + place
        at = begun + order * PACKET_INTERVAL_NS
        _put(made, 0, at // 10**9, "<u4")
        _put(made, 4, at % 10**9, "<u4")
        ip = 16 + 14 + 12 + 4 * side  # where the dialer's address is
        _put(made, ip, 0x0A000000 + number * 0x10000 + flow // 50_000, ">u4")
        _put(made, 16 + 14 + 20 + 2 * side, 10_000 + flow % 50_000, ">u2")
        columns.append(made.reshape(count // SIDE_BY_SIDE, -1))
    with path.open("wb") as file:
        file.write(PCAP_NS_HEADER)
        file.write(np.concatenate(columns, axis=1).tobytes())


def _packet(side: int, seq: int, ack: int, flags: int, data: bytes) -> bytes:
    """A packet with its record, without the variable fields."""
    ends = [(0, 0), (0xC6336402, 9000)]
    (source, port), (target, other) = ends[side], ends[1 - side]
    tcp = struct.pack(">HHIIBBHHH", port, other, seq, ack, 0x50, flags, 1000, 0, 0) + data
    ip = struct.pack(">BBHIBBH", 0x45, 0, 20 + len(tcp), 0, 64, 6, 0)
    packet = bytes(12) + b"\x08\x00" + ip + struct.pack(">II", source, target) + tcp
    return struct.pack("<IIII", 0, 0, len(packet), len(packet)) + packet


def _put(rows: ByteArray, column: int, values: np.typing.NDArray[np.int64], form: str) -> None:
    fields = values.astype(form).view(np.uint8).reshape(len(values), -1)
    rows[:, column : column + fields.shape[1]] = fields
