"""Recording a connection without its content."""

from __future__ import annotations

from polymux.capture.synthesis.tcp_connection import TcpConnectionWriter
from polymux.core.observer import Observer
from polymux.core.redaction import ConversationRedactor, Redaction
from polymux.core.side import ACCEPTOR, DIALER
from polymux.protocols.registry import create


class RedactedConnectionWriter:
    """Passes a connection on to a `TcpConnectionWriter` without its content.

    Bytes are written once it is known what they are: those of an incomplete header, control frame
    or WebSocket message with the bytes that complete it. The end of a side follows its last bytes.

    Args:
        writer: Where the connection is written.
        protocol: Protocol string of the connection.
        redaction: What is left of it.
    """

    def __init__(self, writer: TcpConnectionWriter, protocol: str, redaction: Redaction) -> None:
        self._writer = writer
        self._redactor = ConversationRedactor(Observer(create(protocol), False), redaction)
        self._ended = [False, False]
        self._finished = False

    def data(self, side: int, payload: bytes, timestamp: int) -> None:
        """Write bytes that a side sent; `timestamp` in nanoseconds since 1970."""
        if self._finished:
            return
        self._redactor.feed(side, payload, timestamp)
        self._write(timestamp)

    def end(self, side: int, timestamp: int) -> None:
        """Write the end of a side."""
        self._ended[side] = True
        if all(self._ended):
            self.flush(timestamp)
        self._write(timestamp)

    def abort(self, side: int, timestamp: int) -> None:
        """Write a reset by a side, which ends both directions."""
        self.flush(timestamp)
        self._writer.abort(side, timestamp)

    def flush(self, timestamp: int) -> None:
        """Write what is held. No further bytes are written after it."""
        if not self._finished:
            self._finished = True
            self._redactor.finish()
            self._write(timestamp)

    def _write(self, timestamp: int) -> None:
        for piece in self._redactor.take():
            self._writer.data(piece.side, piece.data, timestamp)
        for side in (DIALER, ACCEPTOR):
            if self._ended[side] and not self._redactor.holds_bytes(side):
                self._writer.end(side, timestamp)
