"""The compiled loop and the sans-IO objects, against C, memcpy and pure Python; CPU time."""

from __future__ import annotations

from collections.abc import Callable

from bench.byte_traffic import Traffic, content, mixed_sizes, mplex_frame
from bench.harness import Floor, Line, measure_alternating, memcpy_of
from bench.interpreted import run_interpreted
from bench.pure_python import Decoder, Encoder
from bench.reference import NoCompiler, Reference
from bench.reference_agreement import check_agreement
from bench.scans import scan_lines

from polymux.core.endpoint import Endpoint
from polymux.core.observer import Observer
from polymux.core.side import ACCEPTOR, DIALER
from polymux.protocols.registry import create

FRAMES = 100_000
WINDOW = 512 * 1024
LARGE = 48 * 1024 * 1024  # bytes; more than any cache holds
CHUNK = 64 * 1024

Act = Callable[[], object]


def measure() -> list[Line]:
    try:
        reference = Reference()
    except NoCompiler as problem:
        print(f"kernels: {problem}")
        reference = None
    lines: list[Line] = []
    for protocol in ("mplex", "nerdbank"):
        lines.append(whole_loop(protocol, reference))
    for protocol, name, sizes in (
        ("mplex", "mixed 16 B-4 KB", mixed_sizes(LARGE)),
        ("nerdbank", "mixed 16 B-4 KB", mixed_sizes(LARGE)),
        ("mplex", "4 KB", [4096] * (LARGE // 4096)),
        ("mplex", "64 KB", [65536] * (LARGE // 65536)),
    ):
        lines.append(windowed_loop(protocol, name, sizes))
    lines += scan_lines(reference)
    lines += [receive_small(), receive_parts(), send_small()]
    return lines


def opened_observer(traffic: Traffic) -> Observer:
    observer = Observer(create(traffic.protocol), True)
    for side, data in traffic.opening:
        observer.feed(side, data, 0)
    return observer


def feed(observer: Observer, pieces: list[bytes]) -> None:
    """Take full batches of rows, as the analysis does, and drop them."""
    rows = observer.rows
    assert rows is not None
    for piece in pieces:
        observer.feed(DIALER, piece, 0)
        rows.full_batches.clear()


def whole_loop(protocol: str, reference: Reference | None) -> Line:
    """Decode, look up, validate, apply, write a row: 64-byte frames on 1,000 streams at random."""
    traffic = content(protocol, [64] * FRAMES)
    data = traffic.content
    pieces = [data[at : at + WINDOW] for at in range(0, len(data), WINDOW)]
    observer = opened_observer(traffic)
    candidates: dict[str, Act] = {
        "polymux": lambda: feed(observer, pieces),
        "memcpy": memcpy_of(data),
    }
    if reference is not None:
        agreed = check_agreement(reference, content(protocol, [64] * 2000))
        print(f"  {protocol}: polymux and the C reference agree on {agreed} violations")
        loop = reference.loop(protocol, create(protocol).finding_mask)
        for side, opening in traffic.opening:
            loop.feed(side, opening, 0)
        candidates["C"] = lambda: loop.feed(DIALER, data, 0)
    times = measure_alternating(candidates)
    line = Line(
        f"whole loop, {protocol}, 64 B, 1,000 streams", times["polymux"], FRAMES, "ns/frame"
    )
    if "C" in times:
        line.floors.append(Floor("C, same rules", times["C"], 0.25))
    line.floors.append(Floor("memcpy", times["memcpy"]))
    slow, frames = run_interpreted("loop", protocol)
    line.floors.append(Floor("same source interpreted", slow, 50.0, frames))
    return line


def windowed_loop(protocol: str, name: str, sizes: list[int]) -> Line:
    """The same loop over much data, copied window by window as from a file."""
    traffic = content(protocol, sizes)
    data = traffic.content
    observer = opened_observer(traffic)

    def walk() -> None:
        rows = observer.rows
        assert rows is not None
        view = memoryview(data)
        for at in range(0, len(data), WINDOW):
            observer.feed(DIALER, bytes(view[at : at + WINDOW]), 0)
            rows.full_batches.clear()

    times = measure_alternating({"polymux": walk, "memcpy": memcpy_of(data)})
    line = Line(f"whole loop, {protocol}, {name}, windows", times["polymux"], len(data), "MB/s")
    line.scale = 1e6
    line.floors.append(Floor("memcpy", times["memcpy"]))
    return line


def endpoint_with(streams: int) -> Endpoint:
    """A listening mplex endpoint on which the dialer has opened streams 1, 3, 5..."""
    endpoint = Endpoint(create("mplex", vantage=ACCEPTOR), ACCEPTOR)
    for number in range(streams):
        endpoint.receive(mplex_frame(2 * number + 1, 0), 1.0)
    return endpoint


def receive_small() -> Line:
    """Bytes to events: content of 100 bytes, in chunks of 64 KB."""
    traffic = content("mplex", [100] * FRAMES, 100, whole=False)
    data = traffic.content
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    endpoint = endpoint_with(100)
    plain = Decoder()
    plain.receive(traffic.opening[0][1])

    def ours() -> int:
        return sum(len(endpoint.receive(piece, 1.0)) for piece in pieces)

    def theirs() -> int:
        return sum(len(plain.receive(piece)) for piece in pieces)

    # A frame that is split between two chunks gives two events.
    assert theirs() == FRAMES <= ours() <= FRAMES + len(pieces)
    times = measure_alternating({"polymux": ours, "pure": theirs, "memcpy": memcpy_of(data)})
    floors = [Floor("tuned pure Python", times["pure"], 7.0), Floor("memcpy", times["memcpy"])]
    return Line("sans-IO receive, mplex, 100 B", times["polymux"], FRAMES, "ns/frame", floors)


def receive_parts() -> Line:
    """Content of 64 KB in chunks of 64 KB, delivered in parts without copying."""
    count = 400
    data = content("mplex", [65536] * count, 1, whole=False).content
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    endpoint = endpoint_with(1)

    def ours() -> None:
        for piece in pieces:
            endpoint.receive(piece, 1.0)

    times = measure_alternating({"polymux": ours, "memcpy": memcpy_of(data)})
    floors = [Floor("memcpy", times["memcpy"], 5.0)]
    line = Line("sans-IO receive as parts, mplex, 64 KB", times["polymux"], len(data), "MB/s")
    line.scale, line.floors = 1e6, floors
    return line


def send_small() -> Line:
    """Content to bytes: 100 bytes at a time, taken 64 KB at a time."""
    endpoint = Endpoint(create("mplex", vantage=DIALER), DIALER)
    streams = [endpoint.open() for _ in range(100)]
    plain = Encoder()
    payload = bytes(100)
    rounds = range(FRAMES // 100)

    def ours() -> int:
        made = 0
        for turn in rounds:
            for stream in streams:
                endpoint.send(stream, payload)
            if turn % 6 == 0:
                made += len(endpoint.data_to_send())
        return made + len(endpoint.data_to_send())

    def theirs() -> int:
        made = 0
        for turn in rounds:
            for number in range(1, 201, 2):
                plain.send(number, payload)
            if turn % 6 == 0:
                made += len(plain.data_to_send())
        return made + len(plain.data_to_send())

    times = measure_alternating({"polymux": ours, "pure": theirs})
    floors = [Floor("tuned pure Python", times["pure"])]
    return Line("sans-IO send, mplex, 100 B", times["polymux"], FRAMES, "ns/frame", floors)
