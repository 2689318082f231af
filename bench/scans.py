"""Headers into columns, and payload to Arrow: against C and memcpy; CPU time."""

from __future__ import annotations

import pyarrow as pa
from bench.byte_traffic import Traffic, content, mixed_sizes
from bench.harness import Floor, Line, measure_alternating, memcpy_of
from bench.interpreted import run_interpreted
from bench.reference import Reference

from polymux.core.observer import Observer
from polymux.core.protocol import Protocol
from polymux.protocols.registry import create
from polymux.testing.header_scan import HeaderScan

FRAMES = 100_000
WINDOW = 512 * 1024
ROWS = 65536
LARGE = 48 * 1024 * 1024  # bytes; more than any cache holds

# protocol, required share of the C reference
WIRES = (("mplex", 0.60), ("streamux", 0.60), ("nerdbank", 0.80))
# protocol, name, sizes, required share of memcpy for the columns, and with the payload to Arrow
WINDOWED = (
    ("mplex", "64 B", [64] * (LARGE // 4 // 64), 0.28, 0.15),
    ("nerdbank", "64 B", [64] * (LARGE // 4 // 64), 0.28, None),
    ("mplex", "mixed 16 B-4 KB", mixed_sizes(LARGE), 0.75, 0.40),
    ("nerdbank", "mixed 16 B-4 KB", mixed_sizes(LARGE), 0.75, None),
    ("mplex", "4 KB", [4096] * (LARGE // 4096), 0.85, 0.55),
    ("mplex", "64 KB", [65536] * (LARGE // 65536), 0.85, 0.55),
)


def scan_lines(reference: Reference | None) -> list[Line]:
    lines = [in_place(protocol, target, reference) for protocol, target in WIRES]
    for protocol, name, sizes, target, to_arrow in WINDOWED:
        lines += in_windows(protocol, name, sizes, target, to_arrow)
    return lines


def opened_protocol(traffic: Traffic) -> Protocol:
    """A protocol object that has decoded the opening, so that it knows the header layout."""
    observer = Observer(create(traffic.protocol))
    for side, data in traffic.opening:
        observer.feed(side, data, 0)
    return observer.protocol


def in_place(protocol: str, target: float, reference: Reference | None) -> Line:
    """64-byte frames in one buffer, into allocated columns."""
    traffic = content(protocol, [64] * FRAMES)
    data = traffic.content
    book = opened_protocol(traffic)
    chain = HeaderScan(FRAMES)

    def ours() -> None:
        chain.used = 0
        chain.read(book, 0, data, 0, 0)

    candidates = {"polymux": ours, "memcpy": memcpy_of(data)}
    if reference is not None:
        assert reference.chain(protocol, data) == FRAMES
        candidates["C"] = lambda: reference.chain(protocol, data)
    times = measure_alternating(candidates)
    assert chain.used == FRAMES
    line = Line(f"scan, {protocol}, 64 B", times["polymux"], FRAMES, "ns/frame")
    if "C" in times:
        line.floors.append(Floor("C reference", times["C"], target))
    line.floors.append(Floor("memcpy", times["memcpy"]))
    slow, frames = run_interpreted("scan", protocol)
    line.floors.append(Floor("same source interpreted", slow, 50.0, frames))
    return line


def in_windows(
    protocol: str, name: str, sizes: list[int], target: float, to_arrow: float | None
) -> list[Line]:
    """Copied window by window, as from a file; then with the payload as a column."""
    traffic = content(protocol, sizes)
    data = traffic.content
    book = opened_protocol(traffic)
    chain = HeaderScan(ROWS)

    def columns() -> int:
        return scan_windows(data, book, chain, False)

    def payloads() -> int:
        return scan_windows(data, book, chain, True)

    assert columns() == traffic.frames
    candidates = {"polymux": columns, "memcpy": memcpy_of(data)}
    if to_arrow is not None:
        assert payloads() == traffic.frames
        candidates["payload"] = payloads
    times = measure_alternating(candidates)
    made = [(f"scan, {protocol}, {name}, windows", times["polymux"], target)]
    if to_arrow is not None:
        made.append((f"scan and payload to Arrow, {protocol}, {name}", times["payload"], to_arrow))
    return [
        Line(title, taken, len(data), "MB/s", [Floor("memcpy", times["memcpy"], wanted)], scale=1e6)
        for title, taken, wanted in made
    ]


def scan_windows(data: bytes, protocol: Protocol, chain: HeaderScan, payload: bool) -> int:
    """Count frames. A frame that crosses the end of a window is decoded in the next."""
    view = memoryview(data)
    frames = 0
    pos = 0
    while pos < len(data):
        window = bytes(view[pos : pos + WINDOW])
        read = 0
        while read < len(window):
            chain.used = 0
            after = chain.read(protocol, 0, window, read, 0)
            frames += chain.used
            if payload and chain.used:
                payload_column(window, chain)
            if after == read:
                break
            read = after
        pos += read
    return frames


def payload_column(window: bytes, chain: HeaderScan) -> pa.Array:
    """The payloads as Arrow's plain `binary`: views into the window, then one gather."""
    buffers = [None, pa.py_buffer(chain.payload_views(window, 0)), pa.py_buffer(window)]
    return pa.Array.from_buffers(pa.binary_view(), chain.used, buffers).cast(pa.binary())
