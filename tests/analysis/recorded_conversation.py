"""Conversations for the analysis tests: two real endpoints, recorded as a capture.

A `Stage` moves bytes between two sans-IO endpoints on its own clock and records them as the
library's recorder does. It also counts what both applications sent and received.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.arrow_batches import decode_dictionaries
from polymux.analysis.session.analyzer import SessionSummary, analyze_session
from polymux.capture import PcapngWriter, TcpConnectionWriter, hint_comment, read_sessions
from polymux.core.endpoint import Endpoint
from polymux.core.events import Accepted, Credit, Data, Event, Opened
from polymux.core.streams import StreamState
from polymux.protocols.registry import create

MS = 1_000_000
START = 1_700_000_000_000_000_000
DIALER, ACCEPTOR = ("192.0.2.1", 40000), ("198.51.100.2", 9000)
NONCES = (b"\x90" + bytes(15), b"\x10" + bytes(15))

Record = list[tuple[int, bytes, int]]
Row = dict[str, object]


class Stage:
    """Two endpoints and the bytes between them. `now` is nanoseconds."""

    def __init__(self, protocol: str, other: str | None = None) -> None:
        self.ends = [
            Endpoint(create(text, vantage=side), side)
            for side, text in enumerate((protocol, other or protocol))
        ]
        self.now = START + MS
        self.record: Record = []
        self.sent: dict[tuple[str, int], int] = defaultdict(int)
        self.received: dict[tuple[str, int], bytes] = defaultdict(bytes)
        self.offered: list[list[StreamState]] = [[], []]
        self.reading = True
        for side, end in enumerate(self.ends):
            end.start(NONCES[side])
        self.exchange()

    def wait(self, ns: int) -> None:
        self.now += ns

    def move(self, side: int, room: int = 1 << 20) -> bool:
        """Deliver what one side has to send to the other. Return False if there is nothing."""
        data = self.ends[side].data_to_send(room)
        if not data:
            return False
        self.record.append((side, data, self.now))
        self.hear(1 - side, self.ends[1 - side].receive(data, self.now / 1e9))
        return True

    def exchange(self) -> None:
        """Deliver both ways until neither side has anything to send."""
        while any([self.move(0), self.move(1)]):
            pass

    def hear(self, side: int, events: Iterable[Event]) -> None:
        for event in events:
            stream = event.stream
            if stream is None:
                continue
            if isinstance(event, Opened):
                self.offered[side].append(stream)
            elif isinstance(event, Data):
                self.received[stream.label(), 1 - side] += bytes(event.data)
                if self.reading:
                    self.ends[side].read(stream, len(event.data))
            elif isinstance(event, Accepted | Credit):
                self.ends[side].resume(stream)

    # Applications

    def open(self, side: int, name: bytes = b"", window: int = 0) -> StreamState:
        return self.ends[side].open(name, window)

    def accept(self, side: int, window: int = 0) -> StreamState:
        """Accept the oldest offer."""
        stream = self.offered[side].pop(0)
        self.ends[side].accept(stream, window)
        return stream

    def peer_stream(self, side: int, stream: StreamState) -> StreamState:
        """The same stream at the other endpoint."""
        found = self.ends[1 - side].protocol.streams.find(stream.key)
        assert found is not None
        return found

    def send(self, side: int, stream: StreamState, data: bytes) -> None:
        self.ends[side].send(stream, data)
        self.sent[stream.label(), side] += len(data)

    def end(self, side: int, stream: StreamState) -> None:
        self.ends[side].end(stream)

    # Recordings

    def save(self, path: Path, **more: object) -> str:
        return save(path, self.record, self.now + MS, **more)  # type: ignore[arg-type]  # passed on


def save(
    path: Path,
    record: Record,
    closed_at: int | None = None,
    *,
    protocol: str | None = None,
    vantage: str | None = None,
    ends: tuple[tuple[str, int], tuple[str, int]] = (DIALER, ACCEPTOR),
    start: int = START,
) -> str:
    """Write a recording as pcapng. Without `closed_at` the end was not captured."""
    writer = PcapngWriter(str(path), sync="none")
    comment = hint_comment(protocol, vantage) if protocol or vantage else ""
    scribe = TcpConnectionWriter(writer, *ends, start, comment=comment)
    for side, data, at in record:
        scribe.data(side, data, at)
    if closed_at is not None:
        scribe.close(closed_at)
    writer.close()
    return str(path)


@dataclass
class Found:
    """All tables of an analysis, as rows."""

    sessions: list[SessionSummary] = field(default_factory=list)
    batches: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))

    def emit(self, table: str, batch: pa.RecordBatch) -> None:
        self.batches[table].append(batch)

    def rows(self, table: str) -> list[Row]:
        return [
            row
            for batch in self.batches[table]
            for row in decode_dictionaries(table, batch).to_pylist()
        ]

    def stream(self, label: str) -> Row:
        (row,) = [row for row in self.rows("streams") if row["stream"] == label]
        return row

    @property
    def session(self) -> SessionSummary:
        (summary,) = self.sessions
        return summary


def analyse(*paths: str, plan: AnalysisOptions | None = None, filters: Iterable[str] = ()) -> Found:
    """Analyze every session of the captures."""
    found = Found()
    asked = plan or AnalysisOptions()
    with read_sessions(paths, ports=asked.ports, filters=filters) as reading:
        for session in reading:
            found.sessions.append(analyze_session(session, asked, found.emit))
    return found
