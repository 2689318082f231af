"""Carrying out a breach on a session that is in use.

The bytes are written between the session's own frames. The session's endpoint is told of them as of
frames of its own side, so that its state stays that of the wire: what it sends afterwards is legal,
and answers of the peer are expected. It also finds the rules that the bytes have broken, which
shows whether the breach was one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from polymux.conform.notation.base import Notation
from polymux.conform.notation.payload import FrameWords
from polymux.conform.notation.selection import NOTATIONS
from polymux.core.endpoint import Endpoint
from polymux.core.protocol import NO_ID
from polymux.core.streams import ABORTED, OPEN
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.protocols.registry import parse_protocol
from polymux.relay.faults.breaches import Breach, Step

REACTION_SECONDS: Final = 1.0  # a peer has to react before a connection without framing is ended
OVER_PIECE_BYTES: Final = 16384  # of content beyond the credit, in one frame
KEYS_PER_ID: Final = {"mplex": 2, "nerdbank": 4, "yamux": 1}  # of keys that `allocate` returns
FIRST_FRESH_PAIR: Final = 1 << 20  # of Minmux streams
MESSAGE_IDS: Final = 256  # of omnistreams
OBSERVED_ONLY: Final = ("yamux.update-after-fin",)  # rules that endpoints do not look for


def notation_for(protocol: str, session: Session) -> Notation:
    """The encoder of frames that this side of a session sends."""
    spec = parse_protocol(protocol)
    options = dict(spec.options)
    if session.endpoint.websocket is not None:
        options["carrier"] = "websocket"
    notation = NOTATIONS[spec.name](options, session.endpoint.side)
    if spec.name == "streamux":
        notation.encode(FrameWords("Initiator", values=initiator_values(options)))
    return notation


def initiator_values(options: dict[str, str]) -> dict[str, int]:
    return {"length": int(options.get("length_bits", 16)), "id": int(options.get("id_bits", 14))}


class BreachRun:
    """One breach on one session.

    Args:
        breach: What to do.
        protocol: The protocol string of the session.
        session: Where to do it.
        stream: The stream of the session on which it happens, for the places that have one.
        on_done: Called once, with whether the rule was broken as far as can be told.
    """

    def __init__(
        self,
        breach: Breach,
        protocol: str,
        session: Session,
        stream: Stream | None,
        on_done: Callable[[bool], None],
    ) -> None:
        self.breach = breach
        self.session = session
        self.stream = stream
        self.is_over = False
        self.ended_half = False  # of this side of the stream, by the breach
        self._on_done = on_done
        self._notation = notation_for(protocol, session)
        self._left = list(breach.steps)
        self._broken: set[str] = set()
        self._lost_framing = False
        self._fresh: dict[str, int] = {}

    def advance(self) -> None:
        """Do the steps that can be done now. Call it again when something happens on the stream."""
        if not self._is_on_wire():
            return
        data = b""
        while self._left and self._can_go_on(self._left[0]):
            step = self._left.pop(0)
            if isinstance(step, FrameWords):
                data += self._encode(step)
            elif isinstance(step, bytes):
                data += step
            elif data:
                self._send(data)
                data = b""
        self._send(data)
        if not self._left and not self.is_over:
            self.is_over = True
            unknown = self.session.endpoint.websocket is not None or self._lost_framing
            found = self.breach.rule in (*self._broken, *OBSERVED_ONLY)
            self._on_done(unknown or found)
            if self.breach.ends:
                self._end_connection()

    def _is_on_wire(self) -> bool:
        """Whether the stream was opened towards the peer: in Streamux, its first content does."""
        if self.stream is not None and self.stream.state.serial < 0:
            self.session.flush()
            return bool(self.stream.state.serial >= 0)
        return True

    def _can_go_on(self, step: object) -> bool:
        if not isinstance(step, Step) or self.stream is None:
            return True
        state = self.stream.peer_half.state
        return state == ABORTED if step is Step.AWAIT_ABORT else state != OPEN

    # Frames

    def _encode(self, words: FrameWords) -> bytes:
        named = replace(words, stream=self._wire_word(words.stream))
        if words.value("over"):
            return self._beyond_credit(named)
        return self._notation.encode(named) * words.value("times", 1)

    def _wire_word(self, word: str) -> str:
        """The word of the notation for the id that stands for a stream of the script."""
        kind, number = word[:1], word.lstrip("owr")
        if self.stream is not None and word in ("1", "w1", "p"):
            return f"{'p' if word == 'p' else '#'}{self.stream.stream_id}"
        if kind in ("w", "r"):
            return f"{kind}{FIRST_FRESH_PAIR + int(number)}"
        if kind == "o":
            return f"#{self._fresh_id(word) + 1}"
        return f"#{self._fresh_id(word)}" if word.isdecimal() else word

    def _fresh_id(self, word: str) -> int:
        """An id that no stream has: the same for the same word, greater for a greater number."""
        if not self._fresh:
            words = {step.stream for step in self.breach.steps if isinstance(step, FrameWords)}
            numbers = {each: each.lstrip("o") for each in words}
            for each in sorted(words, key=lambda each: numbers[each].zfill(9)):
                if numbers[each].isdecimal():
                    self._fresh[each] = fresh_id(self.session.endpoint, int(numbers[each]))
        return self._fresh[word]

    def _beyond_credit(self, words: FrameWords) -> bytes:
        """Frames with one unit of content more than the stream has credit for."""
        assert self.stream is not None  # by the places of such scripts
        own = self.stream.own_half
        left = max(0, own.credit_granted - own.credit_spent) + 1
        if self.session.endpoint.protocol.content_is_messages:
            return self._notation.encode(replace(words, payload=b"z", values={})) * left
        frames = []
        while left > 0:
            size = min(left, OVER_PIECE_BYTES)
            frames.append(self._notation.encode(replace(words, payload=bytes(size), values={})))
            left -= size
        return b"".join(frames)

    # Sending

    def _send(self, data: bytes) -> None:
        session = self.session
        transport = session.transport
        if not data or transport is None or transport.is_closing() or session.shutdown.io_stopped:
            return
        endpoint = session.endpoint
        scheduler = endpoint.scheduler
        if (
            self.breach.steps[0] is Step.AWAIT_ABORT
            and not len(scheduler.writer)
            and not scheduler.chunks
        ):
            before = b""  # the answer to the abort comes after the breach
        else:
            session.flush()  # content that is queued comes first, as far as it can be sent
            before = endpoint.data_to_send(0)
        session.socket_writer.bytes_sent += len(before) + len(data)
        transport.write(before + data)
        if endpoint.websocket is None:
            was_open = self.stream is not None and self.stream.own_half.state == OPEN
            self._broken |= apply_own_bytes(endpoint, data)
            if was_open and self.stream is not None and self.stream.own_half.state != OPEN:
                self.ended_half = True
            discard_unclaimed(session)
            d = endpoint.connection.direction(endpoint.side)
            if d.decoding_stopped or d.in_payload or d.buffered_bytes():
                self._lost_framing = True
                session.loop.call_later(REACTION_SECONDS, self._end_connection)
        session.flush()

    def _end_connection(self) -> None:
        """End the connection: what follows the breach could not be understood."""
        if not self.session.closed.done():
            self.session.abort(f"the connection was ended after breaking {self.breach.rule}")


def apply_own_bytes(endpoint: Endpoint, data: bytes) -> set[str]:
    """Let an endpoint take bytes that were written as its own; return the rules they break."""
    connection = endpoint.connection
    connection.receive(endpoint.side, data, endpoint.now)
    own = [found for found in connection.violations if found.sender == endpoint.side]
    connection.violations = [
        found for found in connection.violations if found.sender != endpoint.side
    ]
    return {found.rule.name for found in own}


def discard_unclaimed(session: Session) -> None:
    """Discard what arrives on streams that a breach has opened: nothing reads them."""
    endpoint = session.endpoint
    for state in endpoint.protocol.streams.all():
        unclaimed = state.opener == endpoint.side and state not in session.streams
        if unclaimed and state.buffers is not None:
            endpoint.receive_queue.discard(state.buffers)


def fresh_id(endpoint: Endpoint, number: int) -> int:
    """An id on the wire for a new stream of this side; `number` tells several apart."""
    protocol = endpoint.protocol
    if protocol.name in KEYS_PER_ID:
        key = protocol.allocate(endpoint.side)
        return 0 if key == NO_ID else int(key) // KEYS_PER_ID[protocol.name]
    top = MESSAGE_IDS if protocol.name == "omnistreams" else 1 << 13
    return top - 1 - number % 64
