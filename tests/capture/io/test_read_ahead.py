"""Flows analyzed side by side read the same bytes together as each would alone."""

import gzip
import itertools
import os
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture import capture_builder as build
from tests.capture.capture_builder import BOB, MS, START, End

from polymux.capture import FilePool, FlowRefs, index_file, sessions_of
from polymux.capture.io.read_ahead import NOT_STARTED, ReadAhead, ReadCoalescer, interleave
from polymux.capture.io.read_coalescing import PayloadRequest
from polymux.capture.io.sources import PlainSource
from polymux.capture.tcp.reassembly import TcpEvents
from polymux.core.errors import CaptureError

FLOWS = 12


def conversations(seed: int) -> list[list[build.Packet]]:
    """Concurrent conversations with reordered and repeated segments."""
    rng = Random(seed)
    made = []
    for flow in range(FLOWS):
        lines = [(rng.randrange(2), rng.randbytes(rng.choice((1, 30, 900)))) for _ in range(40)]
        packets = build.talk(
            *lines, ends=(End("192.0.2.1", 40000 + flow), BOB), start=START + flow, step=MS
        )
        for _ in range(3):
            n = rng.randrange(4, len(packets) - 3)
            packets[n].data, packets[n + 1].data = packets[n + 1].data, packets[n].data
        packets.insert(20, build.Packet(packets[19].at + 1, packets[15].data))
        made.append(packets)
    return made


def flows_of(paths: list[str]) -> dict[bytes, list[FlowRefs]]:
    flows: dict[bytes, list[FlowRefs]] = {}
    for path in paths:
        for row in index_file(path).rows:
            flows.setdefault(row.flow, []).append(row)
    return flows


def as_rows(events: TcpEvents, data: bytes) -> tuple[list[tuple[int, ...]], bytes]:
    columns = (events.side, events.kind, events.timestamp, events.size)
    return [tuple(int(each[n]) for each in columns) for n in range(events.count)], data


def alone(paths: list[str]) -> dict[bytes, tuple[list[tuple[int, ...]], bytes]]:
    with FilePool() as files:
        return {
            flow: joined(
                as_rows(batch.events, batch.data)
                for session in sessions_of(rows, files.reader)
                for batch in session.batches(2000)
            )
            for flow, rows in flows_of(paths).items()
        }


def joined(
    batches: Iterator[tuple[list[tuple[int, ...]], bytes]],
) -> tuple[list[tuple[int, ...]], bytes]:
    parts = list(batches)
    return [row for rows, _ in parts for row in rows], b"".join(data for _, data in parts)


def side_by_side(
    paths: list[str], choose: Callable[[int], int] = lambda flows: 0
) -> dict[bytes, tuple[list[tuple[int, ...]], bytes]]:
    """Read all flows side by side, a batch at a time, in the order chosen."""
    shared = ReadCoalescer()
    found: dict[bytes, list[tuple[list[tuple[int, ...]], bytes]]] = {}
    with FilePool() as files:

        def walk(flow: bytes, rows: list[FlowRefs]) -> Iterator[None]:
            for session in sessions_of(rows, files.reader, read_ahead=ReadAhead(shared)):
                assert session.prefetch(2000)
                yield
                for batch in session.batches(2000):
                    found.setdefault(flow, []).append(as_rows(batch.events, batch.data))
                    yield

        active = [walk(flow, rows) for flow, rows in flows_of(paths).items()]
        while active:
            walked = active.pop(choose(len(active)))
            if next(walked, True) is None:
                active.append(walked)
    assert shared.pending == []
    return {flow: joined(iter(parts)) for flow, parts in found.items()}


def interleaved(seed: int) -> list[build.Packet]:
    every = [packet for talk in conversations(seed) for packet in talk]
    return sorted(every, key=lambda packet: packet.at)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.randoms(use_true_random=False))
def test_in_any_order_each_flow_gets_its_own_bytes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rng: Random
) -> None:
    packets = interleaved(seed)
    folder = tmp_path_factory.mktemp("captures")
    paths = []
    for number, part in enumerate((packets[:200], packets[200:])):
        path = folder / f"{number}.pcapng"
        path.write_bytes(build.pcapng(part))
        paths.append(str(path))
    assert side_by_side(paths, rng.randrange) == alone(paths)


def test_files_that_interleave_are_read_right(write: Callable[..., str]) -> None:
    packets = interleaved(7)
    paths = [write(build.pcap(packets[n::2], nano=True), f"{n}.pcap") for n in (0, 1)]
    assert side_by_side(paths) == alone(paths)


def test_a_compressed_file_is_read_right(write: Callable[..., str]) -> None:
    paths = [write(gzip.compress(build.pcapng(interleaved(1))), "a.pcapng.gz")]
    assert side_by_side(paths) == alone(paths)


def test_flows_side_by_side_cost_few_calls(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    read_at = PlainSource.read_at

    def count(self: PlainSource, offset: int, size: int) -> bytes:
        calls.append(size)
        return read_at(self, offset, size)

    monkeypatch.setattr(PlainSource, "read_at", count)
    path = write(build.pcapng(interleaved(2)))
    found = side_by_side([path])
    assert len(found) == FLOWS
    batches = sum(len(data) for _, data in found.values()) // 2000
    assert len(calls) < batches / 2


def bytes_read(path: str, wanted: slice) -> int:
    """The bytes read of a file by some of its flows, side by side."""
    shared = ReadCoalescer()
    with FilePool() as files:
        walks = []
        for rows in list(flows_of([path]).values())[wanted]:
            (session,) = sessions_of(rows, files.reader, read_ahead=ReadAhead(shared))
            session.prefetch(2000)
            walks.append(session.batches(2000))
        before = read_of(files, path)
        while walks:
            walk = walks.pop(0)
            if next(walk, None) is not None:
                walks.append(walk)
        return read_of(files, path) - before


def read_of(files: FilePool, path: str) -> int:
    source = files.source(path)
    assert isinstance(source, PlainSource)
    return source.bytes_read


def test_some_flows_of_a_file_are_read_without_the_others(write: Callable[..., str]) -> None:
    """However many tasks share a file, together they read it about once; two read it twice."""
    path = write(build.pcapng(interleaved(5)))
    size = os.path.getsize(path)
    for tasks in (4, 6, 12):
        assert sum(bytes_read(path, slice(n, None, tasks)) for n in range(tasks)) < size * 1.2


def test_when_a_file_shrinks_each_flow_reads_as_far_as_it_reaches(
    write: Callable[..., str],
) -> None:
    path = write(build.pcapng(interleaved(3)))
    whole = alone([path])
    flows = flows_of([path])
    os.truncate(path, os.path.getsize(path) // 2)
    shared = ReadCoalescer()
    problems: list[str] = []
    with FilePool() as files:
        walks = {}
        for flow, rows in flows.items():
            (session,) = sessions_of(rows, files.reader, read_ahead=ReadAhead(shared))
            session.prefetch(500)
            walks[flow] = session.batches(500)
        got: dict[bytes, bytes] = dict.fromkeys(flows, b"")
        for flow in itertools.cycle(list(walks)):
            if flow in walks:
                try:
                    batch = next(walks[flow], None)
                except CaptureError as problem:
                    problems.append(str(problem))
                    batch = None
                if batch is None:
                    del walks[flow]
                else:
                    got[flow] += batch.data
            if not walks:
                break
    assert len(problems) == FLOWS
    assert all("shrank" in problem for problem in problems)
    assert all(data and whole[flow][1].startswith(data) for flow, data in got.items())
    assert shared.pending == []


def test_nothing_is_read_ahead_for_a_flow_that_is_read_no_further(
    write: Callable[..., str],
) -> None:
    path = write(build.pcapng(interleaved(4)))
    shared = ReadCoalescer()
    companion = ReadAhead(shared)
    assert companion.next_timestamp == NOT_STARTED
    with FilePool() as files:
        rows = next(iter(flows_of([path]).values()))
        (session,) = sessions_of(rows, files.reader, read_ahead=companion)
        assert session.prefetch(500)
        assert companion.next_timestamp == session.started_at + 3 * MS  # its first bytes
        batches = session.batches(500)
        assert next(batches).data
        (request,) = shared.pending
        (again,) = sessions_of(rows, files.reader, read_ahead=companion)
        assert again.prefetch(500)  # as the next session of a flow does
        assert request not in shared.pending
        assert len(shared.pending) == 1
        companion.withdraw()
        assert shared.pending == []
        companion.withdraw()
        assert next(batches).data  # it can be read, by itself
        (other,) = sessions_of(rows, files.reader)
        assert not other.prefetch()


def test_what_a_flow_requested_is_withdrawn_when_it_ends_early(write: Callable[..., str]) -> None:
    path = write(build.pcapng(interleaved(4)))
    waiting = []

    class Flow:
        held_bytes = 1

        def __init__(self, rows: list[FlowRefs], batches: int) -> None:
            self.rows = rows
            self.batches = batches

    def steps(flow: Flow, companion: ReadAhead) -> Iterator[int]:
        (session,) = sessions_of(flow.rows, files.reader, read_ahead=companion)
        assert session.prefetch(500)
        yield 0
        for batch in itertools.islice(session.batches(500), flow.batches):
            waiting.append(companion.pending_requests)
            yield len(batch.data)

    first, second = list(flows_of([path]).values())[:2]
    with FilePool() as files:
        sizes = list(interleave([Flow(first, 1), Flow(second, 10_000)], steps))
    assert sum(sizes) > 2000
    assert max(waiting) == 2  # its own, and that of the other
    assert waiting[-2] == 1  # the other has ended early


def test_a_request_that_begins_in_the_second_half_is_not_read_along() -> None:
    def asked(*offsets: int, path: str = "a") -> PayloadRequest:
        events = TcpEvents(len(offsets))
        for offset in offsets:
            events.add(0, 0, 0, 10, 0, offset)
        return PayloadRequest(events, [path], [lambda offset, size: bytes(size)])

    wanted = asked(1000, 2000)
    assert asked(1400, 3000).is_near(wanted)
    assert asked(500, 1200).is_near(wanted)
    assert not asked(500, 600).is_near(wanted)
    assert not asked(1600, 3000).is_near(wanted)
    assert not asked(1000, 2000, path="b").is_near(wanted)
    assert not asked().is_near(wanted)
    assert not wanted.is_near(asked())
