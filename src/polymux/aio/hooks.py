"""What a live session tells whoever records it; `polymux.record.Recorder` is one."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from polymux.aio.session.session import Session


class SessionRecorder(Protocol):
    """Records one session, byte for byte in the order in which this process reads and writes.

    What was formed before bytes are read is written before `read` is told of them.
    """

    def begin(self, transport: asyncio.Transport) -> asyncio.Transport:
        """The connection stands; returns the transport to write to, which records what it gets."""

    def read(self, data: bytes) -> None:
        """These bytes came and are handed in now."""

    def ended(self) -> None:
        """The peer ended its direction."""

    def closed(self, error: Exception | None) -> None:
        """The connection is gone; with an error, the peer or the network broke it."""


RecorderFactory = Callable[[str, int], SessionRecorder]
"""Given the protocol string and our side, the recorder of one new session."""


def flush_before_read(session: "Session") -> None:
    """Frames formed before reading leave before it: who records us then never sees this side send,
    after what it read, what it said without knowing it."""
    transport = session.transport
    if transport is not None and not session.shutdown.io_stopped and not transport.is_closing():
        data = session.endpoint.data_to_send(0)
        if data:
            session.socket_writer.bytes_sent += len(data)
            transport.write(data)
