"""Honest Streamux peers over links with delays: no observer reports a violation.

    endpoint | observer ---- near ---- middle observer ---- far ---- observer | endpoint

Every move is drawn by Hypothesis, so that a failure shrinks to the shortest conversation that
shows it. With few ids the same ones are reused often.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, StreamEnded
from polymux.core.events import Data, Ended, Opened
from polymux.core.frames import Frame
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.side import Vantage
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.registry import create
from polymux.protocols.streamux.protocol import Streamux
from polymux.protocols.streamux.rules import EMPTY_REPLY, KEEP_ALIVE, REPLY_BIT, REQUEST_LAST

SPLITS = [(10, 4), (13, 1), (12, 2), (2, 12), (1, 13)], [(17, 13), (29, 1), (28, 2), (1, 29)]
TEXTS = [b"x", b"some", b"data enough for several chunks", bytes(200)]

ACTS = [
    "ask", "ask", "ask all", "more", "end", "cancel", "reply", "reply", "reply all", "finish",
    "drop", "alive",
]  # fmt: skip
MOVES = st.tuples(
    st.sampled_from(ACTS + ["write", "carry", "read"] * 3), st.integers(0, 1), st.integers(0, 30)
)
Move = tuple[str, int, int]


class Peer:
    """One honest side: an endpoint, its streams, and the bytes sent and received on each."""

    def __init__(self, text: str, side: int) -> None:
        self.endpoint = Endpoint(create(text, vantage=side), side)
        self.endpoint.start()
        self.asked: list[StreamState] = []
        self.calls: list[StreamState] = []
        self.sent: dict[int, bytes] = {}  # by serial of the endpoint's stream object
        self.received: dict[int, bytes] = {}

    def send_data(self, stream: StreamState, text: bytes) -> None:
        self.endpoint.send(stream, text)
        self.sent[id(stream)] = self.sent.get(id(stream), b"") + text

    def move(self, name: str, pick: int) -> None:
        mine = self.asked[pick % len(self.asked)] if self.asked else None
        theirs = self.calls[pick % len(self.calls)] if self.calls else None
        text = TEXTS[pick % len(TEXTS)]
        if name.startswith("ask"):
            stream = self.endpoint.open()
            self.asked.append(stream)
            self.send_data(stream, text)
            if name == "ask all":
                self.endpoint.end(stream)
        elif name == "more" and mine is not None:
            self.send_data(mine, text)
        elif name == "end" and mine is not None:
            self.endpoint.end(mine)
        elif name == "cancel" and mine is not None:
            self.endpoint.abort(mine)
        elif name.startswith("reply") and theirs is not None:
            self.send_data(theirs, text)
            if name == "reply all":
                self.endpoint.end(theirs)
        elif name == "finish" and theirs is not None:
            self.endpoint.end(theirs)
        elif name == "drop" and theirs is not None:
            self.endpoint.abort(theirs)
        elif name == "alive":
            protocol = self.endpoint.protocol
            assert isinstance(protocol, Streamux)
            frame = protocol.keep_alive_frame(self.endpoint.side)
            if frame is not None:
                self.endpoint.send_frame(frame)

    def receive_events(self, data: bytes) -> None:
        for event in self.endpoint.receive(data, 0.0):
            stream = event.stream
            if stream is None:
                continue
            if isinstance(event, Opened):
                self.calls.append(stream)
            elif isinstance(event, Data):
                self.received[id(stream)] = self.received.get(id(stream), b"") + bytes(event.data)
            elif isinstance(event, Ended):
                self.endpoint.resume(stream)

    def wind_down(self) -> None:
        for stream in (*self.asked, *self.calls):
            if stream.half(self.endpoint.side).state == OPEN and not stream.over:
                if (
                    stream.serial < 0
                    and stream.buffers is not None
                    and stream.buffers.queued_bytes == 0
                ):
                    self.endpoint.abort(
                        stream
                    )  # the violating side took its id, so nothing was sent
                else:
                    self.endpoint.end(stream)


class ObservedLink:
    """Two peers, two delayed links, three observers."""

    def __init__(self, dialer: str, acceptor: str) -> None:
        self.people = [Peer(dialer, 0), Peer(acceptor, 1)]
        self.beside = [Observer(create("streamux", vantage=side)) for side in (0, 1)]
        self.middle = Observer(create("streamux", vantage=Vantage.MIDDLE))
        self.near = [b"", b""]
        self.far = [b"", b""]

    def write(self, side: int, room: int = 4000) -> None:
        data = self.people[side].endpoint.data_to_send(room)
        self.beside[side].feed(side, data, 0)
        self.near[side] += data

    def carry(self, side: int, size: int) -> None:
        data, self.near[side] = self.near[side][:size], self.near[side][size:]
        self.middle.feed(side, data, 0)
        self.far[side] += data

    def read(self, side: int, size: int) -> None:
        """Deliver to the other side; frames it has already encoded are sent before that."""
        data, self.far[side] = self.far[side][:size], self.far[side][size:]
        self.write(1 - side, 0)
        self.beside[1 - side].feed(side, data, 0)
        self.people[1 - side].receive_events(data)

    def move(self, name: str, side: int, pick: int) -> None:
        if name == "write":
            self.write(side)
        elif name == "carry":
            self.carry(side, 1 + pick * pick)
        elif name == "read":
            self.read(side, 1 + pick * pick)
        else:
            try:
                self.people[side].move(name, pick)
            except (LocalProtocolError, StreamEnded):
                return  # rejected, with no effect

    def drain(self) -> None:
        for _ in range(30):
            for side in (0, 1):
                self.people[side].wind_down()
                self.write(side, 1 << 20)
                self.carry(side, 1 << 20)
                self.read(side, 1 << 20)

    def observers(self) -> list[Observer]:
        return [*self.beside, self.middle]


@st.composite
def lines(draw: st.DrawFn) -> ObservedLink:
    splits = draw(st.sampled_from(SPLITS))
    texts: list[str] = []
    for _ in range(2):
        length_bits, id_bits = draw(st.sampled_from(splits))
        texts.append(f"streamux:length_bits={length_bits},id_bits={id_bits}")
    return ObservedLink(texts[0], texts[1])


@given(lines(), st.lists(MOVES, max_size=150))
@settings(max_examples=150, deadline=None)
def test_honest_peers_have_no_violations_from_any_vantage(
    line: ObservedLink, moves: list[Move]
) -> None:
    for name, side, pick in moves:
        line.move(name, side, pick)
    line.drain()
    for watcher in line.observers():
        watcher.finish(1, True, True)
        assert [str(violation) for violation in watcher.take_violations()] == []
        assert [watcher.connection.direction(side).decoding_stopped for side in (0, 1)] == [
            False,
            False,
        ]
        assert watcher.accounts_for_all_bytes()
    for person in line.people:
        assert person.endpoint.counters.hits == {}
        assert all(stream.over for stream in (*person.asked, *person.calls))
        assert not person.endpoint.protocol.pending_replies


@given(lines(), st.lists(MOVES, max_size=120))
@settings(max_examples=100, deadline=None)
def test_what_is_received_is_what_was_sent(line: ObservedLink, moves: list[Move]) -> None:
    for name, side, pick in moves:
        line.move(name, side, pick)
    line.drain()
    for side in (0, 1):
        asker, server = line.people[side], line.people[1 - side]
        calls = {stream.label(): stream for stream in server.calls}
        for stream in asker.asked:
            if stream.serial < 0:
                continue  # aborted before anything was sent
            call = calls[stream.label()]
            asked, received = asker.sent[id(stream)], server.received.get(id(call), b"")
            replied, got = server.sent.get(id(call), b""), asker.received.get(id(stream), b"")
            if stream.ending == "":
                dropped = call.buffers is not None and call.buffers.discarding
                assert received == asked or (dropped and asked.startswith(received))
                assert got == replied or (dropped and replied.startswith(got))
            else:
                assert asked.startswith(received)
                assert replied.startswith(got)


LIES = st.tuples(st.integers(0, EMPTY_REPLY), st.integers(0, 3), st.booleans())


@given(
    st.sampled_from([("streamux:length_bits=12,id_bits=2",) * 2, ("streamux",) * 2]),
    st.lists(st.tuples(MOVES, st.none() | LIES), max_size=120),
)
@settings(max_examples=150, deadline=None)
def test_a_violation_causes_no_report_about_the_other_side(
    texts: tuple[str, str], moves: list[tuple[Move, tuple[int, int, bool] | None]]
) -> None:
    line = ObservedLink(*texts)
    violator = line.people[0].endpoint
    for (name, side, pick), violating in moves:
        line.move(name, side, pick)
        if violating is not None and violator.protocol.handshake_done:
            send_any(violator, *violating)
            line.write(0)
    line.drain()
    for watcher in line.observers():
        watcher.finish(1, True, True)
        for violation in watcher.take_violations():
            assert violation.sender == 0 or violation.rule.severity is Severity.NOTE


def send_any(violator: Endpoint, kind: int, number: int, long: bool) -> None:
    """Send a frame that can be encoded, whether or not it is legal now."""
    protocol = violator.protocol
    assert isinstance(protocol, Streamux)
    key = number * 2 + (1 - violator.side if kind & REPLY_BIT else violator.side)
    if kind == KEEP_ALIVE and protocol.ends_started_message(
        violator.side, REQUEST_LAST, protocol.streams.find(key)
    ):
        return  # would be decoded as the end of that request
    data = b"" if kind > 3 else b"lies" if long else b"l"
    violator.send_frame(Frame(kind, key, data), force=True)
