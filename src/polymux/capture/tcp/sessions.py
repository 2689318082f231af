"""TCP sessions out of captures: what the analysis reads, from files or from packed references."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.io.file_pool import FileReader
from polymux.capture.io.read_ahead import Companion
from polymux.capture.io.read_runs import Run, read_run
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.flow_filter import endpoint_text, flow_endpoints
from polymux.capture.packets.indexer import FlowRefs
from polymux.capture.pcapng.comments import read_hint
from polymux.capture.tcp.events import FINISHED, GAP, OCTETS, Events
from polymux.capture.tcp.flow_order import Flow
from polymux.capture.tcp.reassembly import Reassembler
from polymux.capture.tcp.ref_storage import Spool, Stored
from polymux.capture.tcp.session_survey import Survey

DIALER, ACCEPTOR = 0, 1
# Octets of payload read at a time. Flows walked in turns share what they look at of a file: the
# less each takes, the less of it has to be brought anew for the next.
BATCH = 256 * 1024
_EPHEMERAL = 32768
_NOTHING = FlowRefs(b"", 0, "", 0, 0, 0, b"")

Reader = Callable[[int, int], bytes]


class Batch:
    """Events in the order of capture, with their payload joined: made for one call into compiled
    code. Row `n` of the columns, `count` of them, is one event:

    `side[n]` 0 dialer, 1 acceptor; `kind[n]` OCTETS, GAP, FINISHED (its FIN) or ABORTED (its
    RST); `at[n]` nanoseconds; `size[n]` octets. The payload of the OCTETS rows lies in `data`,
    one after another. `events` are the same columns as one compiled object.
    """

    __slots__ = ("at", "count", "data", "events", "kind", "side", "size")

    def __init__(self, events: Events, data: bytes) -> None:
        self.events = events
        self.count: int = events.count
        self.side: vec[i64] = events.side
        self.kind: vec[i64] = events.kind
        self.at: vec[i64] = events.at
        self.size: vec[i64] = events.size
        self.data = data


@dataclass(frozen=True, slots=True)
class Piece:
    """One event: octets, or a gap of `size` (then `data` is empty), or an end (`end` is set)."""

    side: int
    at: int
    size: int
    data: bytes = b""
    end: str | None = None

    @property
    def is_gap(self) -> bool:
        return self.end is None and not self.data


class TcpSession:
    """One TCP connection as captured. Times are nanoseconds since 1970.

    Known at once: endpoints, times, files, hints, `saw_syn`, `ordered`, `note`, `payload`.
    Known once `batches` or `pieces` was read to its end, or after `survey()`: `ends`, `octets`,
    `gaps`, `zero_windows`, `retransmissions`, `rtt_ns`.
    """

    def __init__(
        self,
        flow: bytes,
        order: Flow,
        survey: Survey,
        begin: int,
        files: Sequence[str],
        hints: Sequence[tuple[str, ...]],
        readers: Sequence[Reader],
        limits: CaptureLimits,
        ports: frozenset[int],
        shared: Companion | None = None,
    ) -> None:
        self.flow = flow
        """The 36-octet flow key; with `started_at` it names the session."""
        self.started_at: int = survey.first_at
        self.ended_at: int = survey.last_at
        self.packets = int(survey.packets)
        self.captures = [files[number] for number in survey.files]
        self.saw_syn = survey.asked >= 0 or survey.answered >= 0
        self.ordered = not (order.interleaved or survey.disordered)
        """False if the order of the two directions against each other is not proven."""
        self._flip, self.note = _who_dialled(flow, survey, ports)
        self.payload = (int(survey.payload[self._flip]), int(survey.payload[1 - self._flip]))
        """Octets carried by each side's packets, repeated ones counted again: 0 means silent."""
        heard = [survey.heard(side ^ self._flip) for side in (0, 1)]
        self.unheard = heard.index(False) if any(heard) and not all(heard) else None
        """The side of which no packet was captured, 0 or 1: not one that only was silent."""
        hint = hints[survey.hint_blob][survey.hint] if survey.hint_blob >= 0 else ""
        self.protocol_hint, self.vantage_hint = read_hint(hint)
        if not self.ordered:
            self.note = _also(self.note, "the order of its two directions is not proven")
        self.ends: tuple[str | None, str | None] = (None, None)
        """How each side was seen to end: "fin", "rst", or None. A RST ends both sides."""
        self.octets = self.gaps = (0, 0)
        self.zero_windows: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        """Spans in which each side offered a window of 0, or too small a one for what followed."""
        self.retransmissions: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        """Spans each side's octets lost to retransmission."""
        self.rtt_ns: int | None = None
        self._order = order
        self._span = (begin, begin + self.packets)
        self._files = files
        self._readers = readers
        self._shared = shared
        self._ahead: Iterator[tuple[Events, bytes]] | None = None
        self._limits = limits

    def __repr__(self) -> str:
        return (
            f"<polymux TCP session of {self.dialer} with {self.acceptor}, {self.packets} packets>"
        )

    @property
    def dialer(self) -> str:
        """Address and port of the side that opened the connection."""
        return endpoint_text(*flow_endpoints(self.flow)[self._flip])

    @property
    def acceptor(self) -> str:
        return endpoint_text(*flow_endpoints(self.flow)[1 - self._flip])

    def batches(self, octets: int = BATCH) -> Iterator[Batch]:
        """Everything that passed, about `octets` of payload at a time (more after a hole)."""
        if not self.look_ahead(octets):
            yield from self.alone(octets)
            return
        found, self._ahead = self._ahead, None
        yield from itertools.starmap(Batch, found or ())  # which keeps none of them

    def alone(self, octets: int = BATCH) -> Iterator[Batch]:
        """The same, read for this session only: those who are walked beside it hear nothing."""
        for events in self._events(octets):
            yield Batch(events, gather(events, self._readers))

    def look_ahead(self, octets: int = BATCH) -> bool:
        """Say what `batches` will read first to those who are walked beside it; False if nobody is.

        Who then lets the others have a turn may find it read.
        """
        if self._shared is None:
            return False
        if self._ahead is None:
            found = self._events(octets, cells=True)
            self._ahead = self._shared.begin(found, self._files, self._readers, gather)
        return True

    def pieces(self, octets: int = BATCH) -> Iterator[Piece]:
        """The same one by one, for reading by people and tests; `batches` is the fast way.

        Who wants only the first few should ask for small batches of `octets`.
        """
        for batch in self.batches(octets):
            start = 0
            for n in range(batch.count):
                side, kind, at, size = batch.side[n], batch.kind[n], batch.at[n], batch.size[n]
                if kind == OCTETS:
                    yield Piece(side, at, size, batch.data[start : start + size])
                    start += size
                elif kind == GAP:
                    yield Piece(side, at, size)
                else:
                    yield Piece(side, at, 0, end="fin" if kind == FINISHED else "rst")

    def survey(self) -> TcpSession:
        """Walk the packets without reading payload, so that everything is known."""
        for _ in self._events(1 << 40):
            pass
        return self

    def _events(self, octets: int, cells: bool = False) -> Iterator[Events]:
        limits = self._limits
        walk = Reassembler(
            self._order,
            *self._span,
            self._flip,
            self.ordered,
            limits.out_of_order,
            limits.held_segments,
            limits.hole_wait_ns,
        )
        while not walk.closed:
            events = walk.run(octets, cells)
            if walk.closed:
                self._learn(walk)
            if events.count:
                yield events

    def _learn(self, walk: Reassembler) -> None:
        dialer, acceptor = walk.dialer, walk.acceptor
        self.ends = (dialer.ended(acceptor), acceptor.ended(dialer))
        self.octets = (dialer.octets, acceptor.octets)
        self.gaps = (dialer.gaps, acceptor.gaps)
        self.zero_windows = (dialer.unready(acceptor), acceptor.unready(dialer))
        self.retransmissions = (dialer.retransmitted, acceptor.retransmitted)
        round_trip = walk.round_trip()
        self.rtt_ns = round_trip if round_trip >= 0 else None


def sessions_of(
    rows: Iterable[FlowRefs],
    open_reader: Callable[[str], Reader],
    *,
    limits: CaptureLimits | None = None,
    ports: Iterable[int] = (),
    spool: Spool | None = None,
    shared: Companion | None = None,
) -> list[TcpSession]:
    """The sessions of one flow, from all its rows in any order.

    `open_reader(path)` gives a function that reads `size` octets at `offset` of that file;
    `Files(limits).reader` does. Rows given twice change nothing. `spool` opens a file for what a
    huge flow has to set aside; without it that stays in memory. `shared` reads payload together
    with that of the flows that are walked beside this one.
    """
    places: dict[tuple[str, int], list[FlowRefs]] = {}
    flow = b""
    for row in rows:
        flow, direction, file, start = row[:4]
        if (file, start) not in places:
            places[file, start] = [_NOTHING, _NOTHING]
        places[file, start][direction] = row
    order = Flow(spool)
    hints: list[tuple[str, ...]] = []
    files: list[str] = []
    ranges: list[tuple[Stored, Stored]] = []
    for place in sorted(places):
        if files and place[0] != files[-1]:
            order.add_stored(ranges)
            ranges = []
        if not ranges:
            files.append(place[0])
        forth, back = places[place]
        ranges.append((_stored(forth), _stored(back)))
        hints += (forth.hints, back.hints)
    if ranges:
        order.add_stored(ranges)
    order.arrange()
    readers = [open_reader(file) for file in files]
    limits = limits or CaptureLimits()
    listening = frozenset(ports)
    return [
        TcpSession(flow, order, survey, begin, files, hints, readers, limits, listening, shared)
        for begin, survey in zip(order.sessions, order.surveys, strict=True)
    ]


def _stored(row: FlowRefs) -> Stored:
    return row.refs, row.stored, row.packets


def gather(events: Events, readers: Sequence[Reader]) -> bytes:
    """Payload of all OCTETS rows, in order, with as few calls as the files allow."""
    found: list[bytes] = []
    stop = 0
    while stop < events.count:
        run = Run(events, stop)
        stop = run.stop
        if run.pieces == 0:
            break
        reader = readers[run.file]
        data = None
        if run.is_sparse() and isinstance(reader, FileReader):
            data = reader.join(events, run)
        found.append(read_run(events, run, reader) if data is None else data)
    return found[0] if len(found) == 1 else b"".join(found)


def _who_dialled(flow: bytes, survey: Survey, ports: frozenset[int]) -> tuple[int, str | None]:
    """The direction of the dialer, and a note if it was only guessed."""
    if survey.asked >= 0:
        return survey.asked, None
    if survey.answered >= 0:
        return 1 - survey.answered, None
    (_, port1), (_, port2) = flow_endpoints(flow)
    note = "its start was not captured; who dialled is guessed: "
    if (port1 in ports) != (port2 in ports):
        return (1 if port1 in ports else 0), note + "the port named is the acceptor's"
    if (port1 < _EPHEMERAL) != (port2 < _EPHEMERAL):
        return (1 if port1 < port2 else 0), note + "the lower port is the acceptor's"
    if survey.spoke >= 0:
        return survey.spoke, note + "the dialer spoke first"
    return (1 if port1 < port2 else 0), note + "the lower port is the acceptor's"


def _also(note: str | None, more: str) -> str:
    return f"{note}; {more}" if note else more
