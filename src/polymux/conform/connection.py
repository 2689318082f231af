"""The tester's connection to a peer: raw bytes out, frames in, everything observed and recorded.

The frames of both sides are decoded by a `polymux.Observer` at the tester's side, the same machine
that judges captures. What it holds of a peer is bounded: a peer that sends more than `MAX_RECEIVED`
bytes or `MAX_FRAMES` frames is disconnected.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from polymux.capture.pcapng.comments import VANTAGES, hint_comment
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.capture.synthesis.tcp_connection import TcpConnectionWriter
from polymux.conform.notation.base import Notation
from polymux.core.errors import PolymuxError
from polymux.core.frames import ABORTS, ACCEPTS, GRANTS, FrameHeader, FrameRows
from polymux.core.observer import Observer
from polymux.core.rules import Certainty, Severity, Violation
from polymux.protocols.registry import create

MAX_RECEIVED = 32 << 20  # bytes of a peer in one case
MAX_FRAMES = 50_000  # frames of a peer in one case
MAX_KEPT_CONTENT = 8 << 20  # bytes of content that are kept for comparison, of all streams together
MAX_LOG_LINES = 400
FIRST_BYTES = 64  # of a peer are kept: its handshake
MAX_CONTROL_BYTES = 4096  # of a frame without content that are kept
NO_STREAM = 255
UNADDRESSED = "127.0.0.1"


@dataclass(slots=True)
class SeenFrame:
    """A frame of the peer."""

    kind: str
    effect: int
    opener: int
    stream_id: int
    amount: int
    payload: bytes  # the content; of a frame without content, the frame
    taken: bool = False  # a step of the script has waited for it


@dataclass(frozen=True, slots=True)
class LogLine:
    """One frame, or one event, of the wire log of a case."""

    seconds: float  # since the connection was made
    sender: str  # "tester", "peer" or ""
    text: str


class PeerConnection(asyncio.Protocol):
    """One connection to the peer under test.

    Args:
        protocol: the protocol string.
        side: of the tester.
        notation: of the protocol, for this connection.
        capture: the path of a capture to write; None: none is written.

    Attributes:
        content_bytes: of the peer that were kept, of all streams together.
        capture_problem: why the capture could not be written; "" if it could.
    """

    def __init__(
        self, protocol: str, side: int, notation: Notation, capture: str | None = None
    ) -> None:
        self.side = side
        self.notation = notation
        self.protocol = protocol
        self.observer = Observer(create(protocol, vantage=side))
        # Decodes single headers; messages of a WebSocket are given to it with their length.
        self._headers = self.observer.protocol
        self._is_websocket = "carrier=websocket" in protocol
        if self._is_websocket:
            self._headers = create(protocol.replace("carrier=websocket", "carrier=length"))
        self.transport: asyncio.Transport | None = None
        self.frames: list[SeenFrame] = []
        self.content: dict[tuple[int, int], bytearray] = {}
        self.credit: dict[int, int] = {}  # by stream id: what the peer has granted
        self.log: list[LogLine] = []
        self.first_bytes = bytearray()  # of the peer
        self.closed = ""  # "ended" or "reset", by the peer
        self.closed_by_us = False
        self.ended_by_us = False  # this side sends no more
        self.flooded = ""
        self.changed = asyncio.Event()
        self._started = time.monotonic()
        self._peer_bytes = bytearray()  # of frames that are not complete
        self._peer_offset = 0  # of the first of them
        self.received = self._sent = self.content_bytes = self._frame_count = 0
        self._violations: list[Violation] = []
        self._capture_path = capture
        self.capture_problem = ""
        self._writer: PcapngWriter | None = None
        self._packets: TcpConnectionWriter | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._capture_path is not None:
            self._begin_capture(self._capture_path)
        self.changed.set()

    def _begin_capture(self, path: str) -> None:
        try:
            self._writer = PcapngWriter(path, sync="none")
        except PolymuxError as problem:
            self.capture_problem = str(problem)
            return
        self._packets = TcpConnectionWriter(
            self._writer, *self._addresses(), time.time_ns(),
            comment=hint_comment(self.protocol, VANTAGES[self.side]),
        )  # fmt: skip

    def data_received(self, data: bytes) -> None:
        if self.flooded or self.closed_by_us:
            return
        self.received += len(data)
        if len(self.first_bytes) < FIRST_BYTES:
            self.first_bytes += data[:FIRST_BYTES]
        if self._packets is not None:
            self._packets.data(1 - self.side, data, time.time_ns())
        self._peer_bytes += data
        self.observer.feed(1 - self.side, data, time.time_ns())
        self._take_rows()
        if self.received > MAX_RECEIVED or self._frame_count > MAX_FRAMES:
            self.flooded = (
                f"more than {MAX_RECEIVED} bytes" if self.received > MAX_RECEIVED
                else f"more than {MAX_FRAMES} frames"
            )  # fmt: skip
            self.abort()
        self.changed.set()

    def eof_received(self) -> bool:
        self._peer_closed("ended")
        # The case may still write, where one direction can end without the other.
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed_by_us:
            self._peer_closed("reset" if exc is not None else "ended")
        self.changed.set()

    def _peer_closed(self, how: str) -> None:
        if self.closed:
            return
        self.closed = how
        self._note("", "the peer ended its direction" if how == "ended" else "the peer reset")
        if self._packets is not None:
            if how == "ended":
                self._packets.end(1 - self.side, time.time_ns())
            else:
                self._packets.abort(1 - self.side, time.time_ns())
        self.changed.set()

    # Sending

    def send(self, data: bytes) -> None:
        """Send bytes, unless the connection is over."""
        if not data or self.transport is None or self.transport.is_closing() or self.ended_by_us:
            return
        if self._packets is not None:
            self._packets.data(self.side, data, time.time_ns())
        self.observer.feed(self.side, data, time.time_ns())
        self._take_rows()
        self._sent += len(data)
        self.transport.write(data)

    def end(self) -> None:
        """End the tester's direction.

        TLS has no such end: there the whole connection is closed, and is over when the peer has
        closed it too.
        """
        if self.transport is None or self.transport.is_closing():
            return
        if self._packets is not None:
            self._packets.end(self.side, time.time_ns())
        self._note("", "the tester ended its direction")
        self.ended_by_us = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection."""
        self.closed_by_us = True
        if self.transport is not None:
            self.transport.abort()

    def finish(self) -> None:
        """Drop the connection and complete the capture."""
        self.abort()
        self.observer.finish(time.time_ns(), bool(self.closed), bool(self.closed))
        if self._packets is not None and self._writer is not None:
            if self.closed == "ended":
                self._packets.end(self.side, time.time_ns())
            else:
                self._packets.abort(self.side, time.time_ns())
            try:
                self._writer.close()
            except PolymuxError as problem:
                self.capture_problem = str(problem)
            self._packets = self._writer = None

    def _addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Addresses of dialer and acceptor; made up where the transport has none."""
        assert self.transport is not None  # called once it is made
        ends = []
        for name, port in (("sockname", 1024), ("peername", 1)):
            address = self.transport.get_extra_info(name)
            usable = isinstance(address, tuple) and len(address) >= 2
            ends.append((str(address[0]), int(address[1])) if usable else (UNADDRESSED, port))
        return (ends[0], ends[1]) if self.side == 0 else (ends[1], ends[0])

    # Frames

    def _take_rows(self) -> None:
        rows = self.observer.rows
        assert rows is not None  # the observer was made with rows
        for batch in rows.take():
            for i in range(batch.used):
                self._take_row(batch, i)
        if not self._violations or len(self._violations) < MAX_LOG_LINES:
            self._violations += self.observer.take_violations()
        else:
            self.observer.take_violations()

    def _take_row(self, batch: FrameRows, i: int) -> None:
        protocol = self.observer.protocol
        number = int(batch.kind[i])
        known = protocol.kinds.get(number)
        kind = known.name if known is not None else f"Code{number}"
        opener, stream_id = int(batch.opener[i]), int(batch.stream_id[i])
        amount, size = int(batch.amount[i]), int(batch.payload_bytes[i])
        sender = int(batch.sender[i])
        frame_bytes = b""
        if sender != self.side:
            taken = self._take_frame(int(batch.byte_offset[i]), int(batch.size[i]))
            frame_bytes = self._unwrapped(taken)
            if opener == NO_STREAM:
                opener, stream_id = self._named_stream(frame_bytes)
        stream_text = "" if opener == NO_STREAM else f" {'das'[opener]}{stream_id}"
        self._note(
            "tester" if sender == self.side else "peer",
            f"{kind}{stream_text}" + (f" {amount}" if amount >= 0 else "")
            + (f" ({size} bytes)" if size else ""),
        )  # fmt: skip
        if sender == self.side:
            return
        self._frame_count += 1
        effect = int(protocol.effects[number])
        payload = frame_bytes[-(size or MAX_CONTROL_BYTES) :]
        frame = SeenFrame(kind, effect, opener, stream_id, amount, payload)
        self.frames.append(frame)
        if size and self.content_bytes < MAX_KEPT_CONTENT:
            self.content_bytes += len(payload)
            self.content.setdefault((opener, stream_id), bytearray()).extend(payload)
        if effect in (GRANTS, ACCEPTS) and amount > 0:
            self.credit[stream_id] = self.credit.get(stream_id, 0) + amount
        answer = self.notation.answer(kind, stream_id, amount)
        if answer:
            self.send(answer)

    def _take_frame(self, offset: int, size: int) -> bytes:
        """The bytes of a complete frame of the peer; what came before it is forgotten."""
        start = offset - self._peer_offset
        frame = bytes(self._peer_bytes[max(start, 0) : start + size])
        del self._peer_bytes[: max(start + size, 0)]
        self._peer_offset += max(start + size, 0)
        return frame

    def _named_stream(self, frame: bytes) -> tuple[int, int]:
        """Opener and id in a frame that belongs to no stream the observer knows."""
        head = FrameHeader()
        head.opener = NO_STREAM
        found = self._headers.decode_header(1 - self.side, frame, 0, len(frame), head)
        return (int(head.opener), int(head.stream_id)) if found >= 0 else (NO_STREAM, 0)

    def _unwrapped(self, frame: bytes) -> bytes:
        """A WebSocket frame as the same message with its length before it; others as they are."""
        if not self._is_websocket or len(frame) < 2:
            return frame
        at = {126: 4, 127: 10}.get(frame[1] & 0x7F, 2)
        message = frame[at:]
        if frame[1] & 0x80:
            key, message = message[:4], message[4:]
            message = bytes(byte ^ key[i % 4] for i, byte in enumerate(message))
        return struct.pack(">I", len(message)) + message

    def _note(self, sender: str, text: str) -> None:
        if len(self.log) < MAX_LOG_LINES:
            self.log.append(LogLine(time.monotonic() - self._started, sender, text))

    # What was seen

    def progress(self) -> int:
        """A number that grows whenever the peer sends something, or takes what was sent to it."""
        unsent = 0
        if self.transport is not None and not self.transport.is_closing():
            unsent = self.transport.get_write_buffer_size()
        return self.received + self._sent - unsent

    def take(self, matches: Callable[[SeenFrame], bool]) -> SeenFrame | None:
        """The first matching frame that was not taken yet."""
        for frame in self.frames:
            if not frame.taken and matches(frame):
                frame.taken = True
                return frame
        return None

    def aborted_streams(self) -> list[SeenFrame]:
        """Frames by which the peer aborted a stream, and which no step has waited for."""
        return [
            frame for frame in self.frames
            if not frame.taken and (frame.effect == ABORTS or "RST" in frame.kind)
        ]  # fmt: skip

    def undecodable(self) -> str:
        """Why the peer's bytes cannot be decoded any more; "" if they can."""
        direction = self.observer.connection.direction(1 - self.side)
        return direction.stop_reason or "not decodable" if direction.decoding_stopped else ""

    def violations(self, sender: int) -> list[Violation]:
        """What a side has broken so far."""
        self._violations += self.observer.take_violations()
        return [found for found in self._violations if found.sender == sender]

    def peer_errors(self) -> list[Violation]:
        """Errors of the peer that are certain."""
        return [
            found for found in self.violations(1 - self.side)
            if found.rule.severity is Severity.ERROR and found.certainty is Certainty.CERTAIN
        ]  # fmt: skip
