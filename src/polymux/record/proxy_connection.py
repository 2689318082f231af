"""One conversation through the tap: the dialer's connection, ours to the acceptor, one scribe.

The capture says what the two peers did, never what the tap did: an end is written when a peer
closed or reset its connection, and none is made up when the tap is stopped.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from polymux.aio.session.socket_options import stop_tls_read_ahead
from polymux.capture.packets.flow_filter import endpoint_text
from polymux.capture.synthesis.tcp_connection import TcpConnectionWriter
from polymux.core.side import ACCEPTOR, DIALER

if TYPE_CHECKING:
    from polymux.record.proxy import RecordingProxy

# Why a peer is not read from: the other is not reached yet, is slow, or the disk is full.
HOLD_CONNECTING, HOLD_SLOW_PEER, HOLD_DISK_FULL = 1, 2, 4
OTHER_PEER_GRACE_SECONDS = 2.0  # seconds a peer may go on after the other is gone, to end by itself


class ProxySide(asyncio.Protocol):
    """One of the two connections of a pair: what it hears is recorded, then told to the other."""

    def __init__(self, connection: ProxyConnection, side: int) -> None:
        self.connection = connection
        self.side = side
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.peer_ended = False  # the peer has ended its direction
        self._holds = 0
        self._closed_by_us = False  # we have closed it, not the peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        stop_tls_read_ahead(transport)
        self.connection.on_connection_made(self.side)

    def data_received(self, data: bytes) -> None:
        if self._holds:  # uvloop forgets it when it was told while the connection was made
            self.hold(self._holds)
        self.connection.record_and_forward(self.side, data)

    def eof_received(self) -> bool:
        self.connection.on_peer_end(self.side)
        # The other direction may go on; over TLS there is no such thing.
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if error is None and not self._closed_by_us:
            self.connection.on_peer_end(
                self.side
            )  # uvloop tells of no end that TLS was not told of
        self.connection.on_connection_lost(self.side, error)

    def pause_writing(self) -> None:
        self.connection.sides[1 - self.side].hold(HOLD_SLOW_PEER)

    def resume_writing(self) -> None:
        self.connection.sides[1 - self.side].release(HOLD_SLOW_PEER)

    @property
    def writable_transport(self) -> asyncio.Transport | None:
        """The transport, while anything can be written to it."""
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport

    def hold(self, reason: int) -> None:
        """Read no more from this peer until every reason is released."""
        self._holds |= reason
        if self.writable_transport is not None and not self.peer_ended:
            self.writable_transport.pause_reading()

    def release(self, reason: int) -> None:
        self._holds &= ~reason
        if not self._holds and self.writable_transport is not None and not self.peer_ended:
            self.writable_transport.resume_reading()

    def close(self) -> None:
        """End the connection, once what was written to it has left."""
        if self.writable_transport is not None:
            self._closed_by_us = True
            self.writable_transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None and not self.closed:
            self._closed_by_us = True
            self.transport.abort()

    def reset(self) -> None:
        """End the connection so that the peer sees a reset, as the other peer has made one."""
        if self.transport is None or self.closed:
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()


class ProxyConnection:
    """A dialer's connection to the tap and the tap's to the acceptor."""

    def __init__(self, proxy: RecordingProxy) -> None:
        self.proxy = proxy
        self.sides = (ProxySide(self, DIALER), ProxySide(self, ACCEPTOR))
        self.tcp_writer: TcpConnectionWriter | None = None
        self._stopped = False
        self._observer: Callable[[int, bytes], None] | None = None
        # What the dialer said before the acceptor was reached. It is one read at most: the dialer
        # is held, and a loop that has read nevertheless is told again.
        self._early_chunks: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    def on_connection_made(self, side: int) -> None:
        tap = self.proxy
        dialer, acceptor = self.sides
        if side == DIALER:
            tap.connection_opened(self)
            dialer.hold(HOLD_CONNECTING)
            self._connecting = asyncio.get_running_loop().create_task(tap.connect_upstream(self))
            return
        if self._stopped or dialer.writable_transport is None:
            acceptor.abort()
            return
        names = tap.endpoint_addresses(dialer.transport, acceptor.transport)
        if tap.observer is not None:
            self._observer = tap.observer(endpoint_text(*names[0]))
        self.tcp_writer = TcpConnectionWriter(
            tap.packet_sink, *names, time.time_ns(), comment=tap.comment
        )
        if tap.disk_full:
            acceptor.hold(HOLD_DISK_FULL)
            dialer.hold(HOLD_DISK_FULL)
        early, self._early_chunks = self._early_chunks, []
        for data in early:
            self.record_and_forward(DIALER, data)
        if dialer.peer_ended:
            self._record_end(DIALER)
        dialer.release(HOLD_CONNECTING)

    def record_and_forward(self, side: int, data: bytes) -> None:
        """Record, then forward."""
        if self._stopped:
            return
        if self.tcp_writer is None:
            self._early_chunks.append(data)
            return
        self.tcp_writer.data(side, data, time.time_ns())
        if self._observer is not None:
            self._observer(side, data)
        self.proxy.stats.add_bytes(side, len(data))
        self._after_recorded(partial(self._forward, side, data))

    def on_peer_end(self, side: int) -> None:
        """A peer closed its direction: so do we towards the other."""
        ear = self.sides[side]
        if ear.peer_ended:
            return
        ear.peer_ended = True
        if self.tcp_writer is not None:  # else when the acceptor is reached
            self._record_end(side)

    def on_connection_lost(self, side: int, error: Exception | None) -> None:
        """A connection is gone: by the peer's reset, or after its end and ours."""
        if error is not None and self.tcp_writer is not None and not self._stopped:
            self.tcp_writer.abort(side, time.time_ns())
            self._after_recorded(self.sides[1 - side].reset)
        elif self.tcp_writer is not None:
            self._after_recorded(partial(self._on_side_closed, side))
        else:
            self.stop()
        if all(ear.closed or ear.transport is None for ear in self.sides):
            self.proxy.connection_closed(self)
            if self._linger_timer is not None:
                self._linger_timer.cancel()

    def stop(self) -> None:
        """The tap ends, or the acceptor cannot be reached: nothing more is recorded.

        What was recorded is still forwarded.
        """
        self._stopped = True
        if self._connecting is not None:
            self._connecting.cancel()
        for ear in self.sides:
            ear.close()

    def abort(self) -> None:
        """At once."""
        for ear in self.sides:
            ear.abort()

    def _record_end(self, side: int) -> None:
        if self.tcp_writer is not None and not self._stopped:
            self.tcp_writer.end(side, time.time_ns())
        self._after_recorded(partial(self._forward_end, side))

    def _after_recorded(self, callback: Callable[[], None]) -> None:
        """Do it once everything said so far is recorded."""
        patience = self.proxy.disk_full_queue
        if patience is None:
            callback()
        else:
            patience.call_when_written(callback)

    def _forward(self, side: int, data: bytes) -> None:
        other = self.sides[1 - side].writable_transport
        if other is not None:
            other.write(data)

    def _forward_end(self, side: int) -> None:
        if all(ear.peer_ended for ear in self.sides):
            for ear in self.sides:
                ear.close()
            return
        other = self.sides[1 - side]
        if other.writable_transport is not None:
            if other.writable_transport.can_write_eof():
                other.writable_transport.write_eof()
            else:
                other.close()

    def _on_side_closed(self, side: int) -> None:
        """Nobody is left to hear the other peer; it has a moment to end by itself."""
        other = self.sides[1 - side]
        if other.writable_transport is None or self._linger_timer is not None:
            return
        if other.peer_ended:
            other.close()
        else:
            loop = asyncio.get_running_loop()
            self._linger_timer = loop.call_later(OTHER_PEER_GRACE_SECONDS, other.reset)
