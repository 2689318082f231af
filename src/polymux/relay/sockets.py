"""Sockets as an end: the channel of a TCP or Unix socket, and a set of sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from polymux.core.errors import PolymuxError, SessionClosed, StreamAborted
from polymux.live.connection_gate import Place
from polymux.live.errors import describe_os_error
from polymux.live.session.socket_options import peer_name, reset_on_close
from polymux.relay.channels import ALL, SLOW_READER, Callback, Channel
from polymux.relay.ends import Arrival, ArrivalQueue, End

WRITE_BUFFER_BYTES = 262144  # written and not taken by the socket before the channel is full


class SocketChannel(Channel, asyncio.Protocol):
    """The channel of a socket; asyncio's connection functions take it as their protocol.

    Content that arrives while the pump cannot take it stops the reading, so at most one chunk
    (256 KiB) is held and the kernel closes the window of the peer. An abort becomes a TCP reset in
    both directions.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._unread: list[bytes] = []
        self._ended = False  # the peer has ended its direction
        self._lost: StreamAborted | None = None
        self._paused = False
        self._full = False
        self._awaits_room = False
        self._on_change: Callback | None = None
        self._on_room: Callback | None = None
        self._label = ""
        self._writing_ended = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def label(self) -> str:
        return self._label

    def watch(self, on_change: Callback, on_room: Callback) -> None:
        self._on_change = on_change
        self._on_room = on_room

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # asyncio declares the base class only
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._label = peer_name(self.transport, "a local socket")

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._changed()
        if self._unread and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._ended = True
        self._changed()
        return True  # keep the other direction

    def connection_lost(self, error: Exception | None) -> None:
        reason = describe_os_error(error) if error is not None else "the connection was closed"
        self._lost = StreamAborted(f"{self._label}: {reason}")
        if error is None and self._ended:
            self._lost = None if self._writing_ended else self._lost
        if not self.closed.done():
            self.closed.set_result(None)
        self._changed()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._awaits_room:
            self._awaits_room = False
            if self._on_room is not None:
                self._on_room()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    # Reading

    def has_unread(self) -> bool:
        return bool(self._unread)

    def take(self, size: int = ALL) -> bytes:
        unread = self._unread
        data = unread[0] if len(unread) == 1 else b"".join(unread)
        if 0 <= size < len(data):
            self._unread = [data[size:]]
            return data[:size]
        self._unread = []
        if self._paused and self.transport is not None:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        return data

    def put_back(self, data: bytes) -> None:
        """Return content to the front of what is unread."""
        if data:
            self._unread.insert(0, data)

    def at_end(self) -> bool:
        if self._lost is not None and not self._ended:
            raise StreamAborted(str(self._lost))
        return self._ended

    def stop_reading(self) -> bool:
        return False

    # Writing

    def is_full(self) -> bool:
        return self._full

    def wait_for_room(self) -> None:
        self._awaits_room = True

    def why_full(self) -> str:
        return SLOW_READER

    def write_failure(self) -> PolymuxError | None:
        return self._lost

    def put(self, data: bytes) -> None:
        if self._lost is not None:
            raise StreamAborted(str(self._lost))
        if self.transport is not None:
            self.transport.write(data)

    def end(self) -> None:
        self._writing_ended = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()

    # Ending

    def abort(self, reason: str) -> bool:
        self.release()
        transport = self.transport
        if transport is not None and self._lost is None:
            reset_on_close(transport)
            transport.abort()
        return not reason

    @property
    def abort_reason(self) -> str:
        return ""

    def release(self) -> None:
        self._on_change = self._on_room = None
        if self.transport is not None:
            self.transport.close()  # after what is queued


class AcceptedSocket(SocketChannel):
    """The channel of a socket that a listener accepted.

    Args:
        place: Its place among the connections of the listener.
        on_connected: Called with the channel when it can be read.
    """

    def __init__(self, place: Place, on_connected: Callable[[AcceptedSocket], None]) -> None:
        super().__init__()
        self._place = place
        self._on_connected = on_connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._place.attach(lambda reason: self.abort_now(), lambda: False)
        self._on_connected(self)

    def established(self) -> None:
        """The connection is one to forward: nothing of its own has to be negotiated any more."""
        self._place.established()

    def abort_now(self) -> None:
        """Close the connection at once, for want of room."""
        self.abort("")

    def connection_lost(self, error: Exception | None) -> None:
        self._place.release()
        super().connection_lost(error)


class SocketsEnd(End):
    """A set of sockets as an end: accepted ones arrive, and opening a stream connects.

    Args:
        arrivals: What was accepted; it outlives the end.
        dial: Connects for the name of a stream; see `End.open`.
    """

    def __init__(self, arrivals: ArrivalQueue, dial: Callable[[bytes], Awaitable[Channel]]) -> None:
        self._arrivals = arrivals
        self._dial = dial
        self._closed = False

    async def next_arrival(self) -> Arrival:
        return await self._arrivals.take(self._check_open)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed("the sockets are no longer forwarded")

    async def open(self, name: bytes) -> Channel:
        return await self._dial(name)

    async def close(self) -> None:
        self.abort("")

    def abort(self, reason: str) -> None:
        self._closed = True
        self._arrivals.wake()
