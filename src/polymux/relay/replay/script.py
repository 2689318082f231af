"""The script of a recorded session: what each side did, and which answers came before it.

`read_recording` decodes a captured session into the events of both sides in their order. A
`Script` is the same for one side that is to be spoken again: its actions, each with what the other
side had done since the action before. Content is kept in memory, up to `MAX_CONTENT_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from polymux.analysis.detection.detector import select_protocol
from polymux.analysis.detection.sample import PeekedSession, may_begin_client_hello
from polymux.analysis.detection.verdict import Detection
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.session_rows import make_session_id
from polymux.analysis.session.analyzer import CLOSED_STREAMS_REMEMBERED, begins_in_middle
from polymux.analysis.tls.key_log import KeyLog
from polymux.analysis.tls.session import OpenedSession, read_client_hello
from polymux.analysis.tracking.session_tracker import SkippedPrefix
from polymux.capture import StreamBatch, TcpSession
from polymux.capture.tcp.reassembly import GAP, PAYLOAD
from polymux.capture.tcp.sessions import BATCH_BYTES
from polymux.core.errors import LimitExceeded, PolymuxError
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.side import Vantage
from polymux.core.streams import StreamState
from polymux.protocols.registry import create, parse_protocol
from polymux.relay.replay.event_sink import (
    ABORTED,
    ACCEPTED,
    CONTENT,
    CONTROL,
    ENDED,
    OPENED,
    EventLog,
    RecordedEvent,
)
from polymux.relay.traits import protocol_traits

MAX_CONTENT_BYTES: Final = 256 << 20  # of both sides of a session
CONTROL_KIND: Final = "CONTROL_MESSAGE"  # frames that are content without a stream
WHOLE_SESSION: Final = -1  # as the number of a stream: control messages belong to none


class CannotReplay(PolymuxError):
    """A recorded session cannot be spoken again; the text says why."""


class Deed(Enum):
    """What a side does on a stream, or on the session."""

    OPEN = OPENED
    ACCEPT = ACCEPTED
    SEND = CONTENT
    END = ENDED
    ABORT = ABORTED
    CONTROL = CONTROL


@dataclass
class RecordedStream:
    """A stream of a recording.

    Attributes:
        label: As the recording numbers it: `d3`.
        stream_id: On the wire.
        opener: DIALER or ACCEPTOR; 2 if neither opened it.
        name: Its name or metadata.
        content: What each side sent.
        endings: How each side's half ended: `ended`, `aborted`, or empty.
    """

    label: str
    stream_id: int
    opener: int
    name: bytes
    content: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    endings: list[str] = field(default_factory=lambda: ["", ""])


@dataclass(frozen=True)
class Event:
    """One deed of one side; `stream` is its number in the recording, or WHOLE_SESSION.

    `data` is content, a control message, or the reason of an abort; `at` is in seconds since the
    first event.
    """

    deed: Deed
    sender: int
    stream: int
    data: bytes
    at: float


@dataclass
class Recording:
    """A recorded session.

    Attributes:
        session_id: As `polymux ls` shows it.
        protocol: Protocol string to speak it with.
        streams: Its streams, in the order in which they appeared.
        events: What both sides did.
    """

    session_id: str
    protocol: str
    streams: list[RecordedStream]
    events: list[Event]

    @property
    def seconds(self) -> float:
        """From the first event to the last."""
        return self.events[-1].at if self.events else 0.0


Need = tuple[int, Deed, int]
"""A stream, a deed of the other side, and how much of it: bytes of content, or how often."""


@dataclass(frozen=True)
class Action:
    """One deed of the side that is spoken again.

    Attributes:
        event: The deed.
        needs: What the other side had done by then, as far as the action before did not need it.
    """

    event: Event
    needs: tuple[Need, ...]


@dataclass
class Script:
    """What one side of a recording does.

    Attributes:
        recording: The recording.
        side: The side, DIALER or ACCEPTOR.
        actions: Its deeds in order.
        expected: All that the other side did.
    """

    recording: Recording
    side: int
    actions: list[Action]
    expected: dict[tuple[int, Deed], int]


def make_script(recording: Recording, side: int) -> Script:
    """The script of one side of a recording."""
    actions: list[Action] = []
    done: dict[tuple[int, Deed], int] = {}
    changed: dict[tuple[int, Deed], int] = {}
    for event in recording.events:
        if event.sender == side:
            if event.deed is not Deed.ACCEPT:  # done by the endpoint itself
                needs = tuple((*key, amount) for key, amount in changed.items())
                actions.append(Action(event, needs))
                changed.clear()
            continue
        key = (event.stream, event.deed)
        done[key] = done.get(key, 0) + (len(event.data) if event.deed is Deed.SEND else 1)
        changed[key] = done[key]
    return Script(recording, side, actions, done)


# Reading


def read_recording(session: TcpSession, options: AnalysisOptions) -> Recording:
    """Decode a captured session.

    Raises:
        CannotReplay: It is not complete, or its protocol is not known.
        LimitExceeded: It has more than `MAX_CONTENT_BYTES` of content.
        CaptureError: The capture cannot be read.
    """
    session_id = make_session_id(session.flow, session.started_at)
    session.scan_packets()
    peeked = PeekedSession(session, BATCH_BYTES)
    sample = peeked.sample()
    head = sample.head(0)
    opened: OpenedSession | None = None
    if may_begin_client_hello(head) and read_client_hello(head) is not None:
        opened = OpenedSession(peeked.batches(), options.keys or KeyLog())
        sample = opened.sample()
        if opened.layer.failure:
            raise CannotReplay(f"session {session_id}: TLS not opened: {opened.layer.failure}")
    detection = select_protocol(session, options, sample)
    if detection.protocol is None:
        raise CannotReplay(
            f"session {session_id}: its protocol is not known; name it with --protocol"
        )
    if any(session.missing_bytes) or begins_in_middle(session, detection):
        raise CannotReplay(f"session {session_id}: parts of it were not captured")
    reader = RecordingReader(session_id, detection)
    for batch in peeked.batches() if opened is None else opened.batches(session.ended_at):
        reader.feed(batch)
    return reader.recording()


class RecordingReader:
    """Decodes the batches of one session into events."""

    def __init__(self, session_id: str, detection: Detection) -> None:
        assert detection.protocol is not None  # the caller checked it
        limits = Limits(closed_streams_remembered=CLOSED_STREAMS_REMEMBERED)
        protocol = create(detection.protocol, limits, Vantage.MIDDLE)
        kinds = [number for number, kind in protocol.kinds.items() if kind.name == CONTROL_KIND]
        self._session_id = session_id
        self._protocol = detection.protocol
        self._log = EventLog(kinds[0] if kinds else -1)
        self._observer = Observer(protocol, False, self._log)
        self._prefix = SkippedPrefix(*detection.skip_bytes)
        self._one_way = protocol_traits(protocol).is_one_way

    def feed(self, batch: StreamBatch) -> None:
        """Decode the next bytes."""
        start = 0
        observer, log = self._observer, self._log
        for n in range(batch.count):
            side, kind, at, size = (
                int(column[n]) for column in (batch.side, batch.kind, batch.timestamp, batch.size)
            )
            if kind == PAYLOAD:
                stop = start + size
                if self._prefix.remaining > 0:
                    direction = observer.connection.direction(side)
                    start += int(self._prefix.consume(direction, size))
                log.timestamp = at
                if stop > start:
                    observer.feed(side, batch.data[start:stop], at)
                start = stop
            elif kind == GAP:
                raise CannotReplay(f"session {self._session_id}: parts of it were not captured")
        observer.take_removed_streams()
        observer.take_violations()
        if log.size > MAX_CONTENT_BYTES:
            raise LimitExceeded(
                f"session {self._session_id}: more than {MAX_CONTENT_BYTES >> 20} MiB of content; "
                "a replay keeps all of it in memory"
            )

    def recording(self) -> Recording:
        """Return what was decoded.

        Raises:
            CannotReplay: A direction could not be decoded to its end.
        """
        for direction in (self._observer.connection.dialer, self._observer.connection.acceptor):
            if direction.decoding_stopped:
                raise CannotReplay(
                    f"session {self._session_id}: not decoded to its end: {direction.stop_reason}"
                )
        streams: list[RecordedStream] = []
        numbers: dict[StreamState, int] = {}
        events: list[Event] = []
        began = self._log.events[0].timestamp if self._log.events else 0
        for found in self._log.events:
            number = WHOLE_SESSION
            if found.stream is not None:
                number = numbers.setdefault(found.stream, len(streams))
                if number == len(streams):
                    streams.append(recorded_stream(found.stream))
            event = make_event(found, number, began)
            if event is not None and not self._is_of_reader(event, streams):
                events.append(event)
                note_on_stream(event, streams)
        return Recording(self._session_id, live_protocol(self._protocol), streams, events)

    def _is_of_reader(self, event: Event, streams: list[RecordedStream]) -> bool:
        """Whether the reader of a one-way stream says that it is done: a writer need not know."""
        return (
            self._one_way
            and event.deed is Deed.END
            and event.sender != streams[event.stream].opener
        )


def recorded_stream(state: StreamState) -> RecordedStream:
    return RecordedStream(
        state.label(), int(state.stream_id) % (1 << 64), int(state.opener), state.name or b""
    )


def make_event(found: RecordedEvent, number: int, began: int) -> Event | None:
    """The event of a deed; None for the appearance of a stream that neither side opens."""
    sender = found.sender
    if found.kind == OPENED and found.stream is not None:
        if found.stream.opener > 1:
            return None
        sender = int(found.stream.opener)  # in Minmux, the reader may be first to name it
    return Event(Deed(found.kind), sender, number, found.data, (found.timestamp - began) / 1e9)


def note_on_stream(event: Event, streams: list[RecordedStream]) -> None:
    """Add content and endings to the stream of an event."""
    if event.stream == WHOLE_SESSION:
        return
    stream = streams[event.stream]
    if event.deed is Deed.SEND:
        stream.content[event.sender].extend(event.data)
    elif event.deed in (Deed.END, Deed.ABORT):
        stream.endings[event.sender] = "ended" if event.deed is Deed.END else "aborted"


def live_protocol(protocol: str) -> str:
    """The protocol string for a live session: the carrier follows from the URL."""
    spec = parse_protocol(protocol)
    spec.options.pop("carrier", None)
    return str(spec)
