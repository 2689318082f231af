"""One proxied connection: the dialer's connection, the one to the acceptor, and their recording.

The capture shows what the two peers did, never what the proxy did: an end is recorded when a peer
has closed or reset its connection, and none when the proxy is stopped. Every action towards a peer
(forwarding data, an end, a reset) happens after its cause was recorded; `_after_recorded` delays it
while the disk is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from polymux.capture.packets.flows import endpoint_text
from polymux.capture.synthesis.tcp_connection import TcpConnectionWriter
from polymux.core.limits import Timeouts
from polymux.core.side import ACCEPTOR, DIALER
from polymux.live.session.socket_options import (
    configure_tcp_keepalive,
    reset_on_close,
    stop_tls_read_ahead,
)
from polymux.record.peer_condition import PeerCondition, has_unread_bytes, peer_condition
from polymux.record.redacted_writer import RedactedConnectionWriter
from polymux.record.session_recorder import identity_note

if TYPE_CHECKING:
    from polymux.live.connection_gate import Place
    from polymux.record.proxy import RecordingProxy

# Reasons not to read from a peer: the other one is not connected yet, is slow, or the disk is full.
HOLD_CONNECTING, HOLD_SLOW_PEER, HOLD_DISK_FULL = 1, 2, 4
OTHER_PEER_GRACE_SECONDS = 2.0  # for a peer to end by itself after the other one has closed


class ProxySide(asyncio.BufferedProtocol):
    """One of the two transport connections; received data is recorded, then forwarded."""

    def __init__(self, connection: ProxyConnection, side: int) -> None:
        self.connection = connection
        self.side = side
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.peer_ended = False  # the peer has ended its direction
        self._holds = 0
        self._closed_by_us = False  # closed by the proxy, not by the peer
        self._waiting_bytes = 0  # recorded or about to be, and not yet written to this transport
        self._read_into = memoryview(b"")
        self._held_bytes = 0  # what counts against the budget: these, and what was not sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        stop_tls_read_ahead(transport)
        # See `ForwardingBudget`. With high=0, the TLS of asyncio would pause for ever.
        self.transport.set_write_buffer_limits(high=1, low=0)
        configure_tcp_keepalive(
            transport, Timeouts().keepalive_interval, bound_unacknowledged=False
        )
        self.connection.on_connection_made(self.side)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._read_into = self.connection.proxy.read_buffer()
        return self._read_into

    def buffer_updated(self, nbytes: int) -> None:
        if self._holds:  # uvloop ignores a pause requested while the connection is being made
            self.hold(self._holds)
        self.connection.record_and_forward(self.side, bytes(self._read_into[:nbytes]))

    def eof_received(self) -> bool:
        self.connection.on_peer_end(self.side)
        # The other direction may continue, except over TLS, which has no half-close.
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._count_held()
        if error is None and not self._closed_by_us:
            # uvloop reports no end of file if the peer sent no TLS close_notify.
            self.connection.on_peer_end(self.side)
        self.connection.on_connection_lost(self.side, error)

    def pause_writing(self) -> None:
        self.connection.sides[1 - self.side].hold(HOLD_SLOW_PEER)

    def resume_writing(self) -> None:
        self._count_held()
        self.connection.sides[1 - self.side].release(HOLD_SLOW_PEER)

    def expect(self, size: int) -> None:
        """So many more bytes will be given to `forward`; fewer, if that is negative."""
        self._waiting_bytes += size
        self._count_held()

    def forward(self, data: bytes) -> None:
        """Write bytes that were expected."""
        if self.writable_transport is not None:
            self.writable_transport.write(data)
        self.expect(-len(data))

    def expect_nothing(self) -> None:
        """What was expected is not forwarded."""
        self._waiting_bytes = 0
        self._count_held()

    def _count_held(self) -> None:
        """Count what is held for this peer against the budget."""
        unsent = 0 if self.transport is None else self.transport.get_write_buffer_size()
        held = 0 if self.closed else self._waiting_bytes + unsent
        self.connection.proxy.budget.held_bytes += held - self._held_bytes
        self._held_bytes = held

    @property
    def writable_transport(self) -> asyncio.Transport | None:
        """The transport; None if it cannot be written to."""
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport

    def hold(self, reason: int) -> None:
        """Pause reading from this peer until every reason is released."""
        self._holds |= reason
        if self.writable_transport is not None and not self.peer_ended:
            self.writable_transport.pause_reading()

    def release(self, reason: int) -> None:
        """Remove a reason; resume reading if no other is left."""
        self._holds &= ~reason
        if not self._holds and self.writable_transport is not None and not self.peer_ended:
            self.writable_transport.resume_reading()

    def close(self) -> None:
        """Close the connection after the data written to it was sent."""
        if self.writable_transport is not None:
            self._closed_by_us = True
            self.writable_transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self.transport is not None and not self.closed:
            self._closed_by_us = True
            self.transport.abort()

    def reset(self) -> None:
        """Reset the connection, because the other peer has reset its own."""
        if self.transport is None or self.closed:
            return
        reset_on_close(self.transport)
        self.abort()


class ProxyConnection:
    """A dialer's connection to the proxy and the proxy's connection to the acceptor."""

    def __init__(self, proxy: RecordingProxy, place: Place) -> None:
        self.proxy = proxy
        self.place = place
        self.dialer_spoke = False
        self.sides = (ProxySide(self, DIALER), ProxySide(self, ACCEPTOR))
        self.tcp_writer: TcpConnectionWriter | RedactedConnectionWriter | None = None
        self.number = 0  # among the connections of the proxy, from 1 on
        self.dialer_name = ""  # for the audit log
        self.forwarded = [0, 0]  # bytes recorded of each side
        self._stopped = False
        self._observer: Callable[[int, bytes], None] | None = None
        # Data of the dialer that arrived before the acceptor was connected. At most one read: the
        # dialer is paused, and paused again if the loop has read nevertheless.
        self._early_chunks: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    def on_connection_made(self, side: int) -> None:
        """One of the two connections is established; with the second, recording begins."""
        proxy = self.proxy
        dialer, acceptor = self.sides
        if side == DIALER:
            refusal = proxy.allowed.refusal(dialer.transport)
            if refusal:
                proxy.connection_refused(dialer.transport, refusal)
                self._stopped = True
                dialer.abort()
                return
            proxy.connection_opened(self)
            self.place.attach(lambda _: self.give_up(), lambda: not self.dialer_spoke)
            self.place.established()  # the handshakes that follow are the peers' own
            dialer.hold(HOLD_CONNECTING)
            if not proxy.disk_full:
                self.start()
            return
        if self._stopped or dialer.writable_transport is None:
            acceptor.abort()
            return
        addresses = proxy.endpoint_addresses(dialer.transport, acceptor.transport)
        if proxy.observer is not None:
            self._observer = proxy.observer(endpoint_text(*addresses[0]))
        proxy.write_secrets()
        redaction = proxy.redaction
        writer = TcpConnectionWriter(
            proxy.packet_sink,
            *addresses,
            time.time_ns(),
            comment=proxy.comment,
            note=identity_note(dialer.transport) if redaction is None else "",
        )
        self.tcp_writer = writer
        if redaction is not None:
            self.tcp_writer = RedactedConnectionWriter(writer, proxy.protocol, redaction)
        if proxy.disk_full:
            acceptor.hold(HOLD_DISK_FULL)
            dialer.hold(HOLD_DISK_FULL)
        early, self._early_chunks = self._early_chunks, []
        for data in early:
            self._record(DIALER, data)
        if dialer.peer_ended:
            self._record_end(DIALER)
        dialer.release(HOLD_CONNECTING)

    def start(self) -> None:
        """Connect to the acceptor, unless that has begun. It waits while the disk is full."""
        if self._connecting is None and not self._stopped:
            loop = asyncio.get_running_loop()
            self._connecting = loop.create_task(self.proxy.connect_upstream(self))

    def close_lost_sides(self) -> None:
        """While the disk is full and nothing is read: close what has lost its peer.

        The loss is recorded, and the other peer learns of it, when there is space. Of a connection
        that has not begun there is nothing to record.
        """
        for proxy_side in self.sides:
            condition = peer_condition(proxy_side.writable_transport)
            if self._connecting is None:
                silent = not has_unread_bytes(proxy_side.writable_transport)
                if condition is PeerCondition.GONE or (condition is PeerCondition.ENDED and silent):
                    self._stopped = True
                    proxy_side.abort()
            elif condition is PeerCondition.GONE and self.tcp_writer is not None:
                if not self._stopped:
                    self.tcp_writer.abort(proxy_side.side, time.time_ns())
                self._after_recorded(self.sides[1 - proxy_side.side].reset)
                proxy_side.abort()

    def record_and_forward(self, side: int, data: bytes) -> None:
        """Record data of `side`, then forward it."""
        if self._stopped:
            return
        if side == DIALER:
            self.dialer_spoke = True
        self.sides[1 - side].expect(len(data))
        if self.tcp_writer is None:
            self._early_chunks.append(data)
            return
        self._record(side, data)

    def _record(self, side: int, data: bytes) -> None:
        """Record data, and forward it when that is done."""
        assert self.tcp_writer is not None, "recording has begun"
        self.tcp_writer.data(side, data, time.time_ns())
        if self._observer is not None:
            self._observer(side, data)
        self.proxy.stats.add_bytes(side, len(data))
        self.forwarded[side] += len(data)
        self._after_recorded(partial(self.sides[1 - side].forward, data))

    def on_peer_end(self, side: int) -> None:
        """A peer has ended its direction: record it, then end it towards the other peer."""
        if self.sides[side].peer_ended:
            return
        self.sides[side].peer_ended = True
        if self.tcp_writer is not None:  # else when the acceptor is connected
            self._record_end(side)

    def on_connection_lost(self, side: int, error: Exception | None) -> None:
        """A connection is closed: `error` if it was reset or lost."""
        if error is not None and self.tcp_writer is not None and not self._stopped:
            self.tcp_writer.abort(side, time.time_ns())
            self._after_recorded(self.sides[1 - side].reset)
        elif self.tcp_writer is not None:
            self._after_recorded(partial(self._on_side_closed, side))
        else:
            self.stop()
        if all(each.closed or each.transport is None for each in self.sides):
            self.proxy.connection_closed(self)
            self.place.release()
            for proxy_side in self.sides:
                proxy_side.expect_nothing()
            if self._linger_timer is not None:
                self._linger_timer.cancel()

    def stop(self) -> None:
        """Stop recording and close both connections after recorded data was forwarded.

        Called when the proxy is closed, or the acceptor cannot be reached.
        """
        if not self._stopped and isinstance(self.tcp_writer, RedactedConnectionWriter):
            self.tcp_writer.flush(time.time_ns())
        self._stopped = True
        if self._connecting is not None:
            self._connecting.cancel()
        for proxy_side in self.sides:
            proxy_side.close()

    def abort(self) -> None:
        """Close both connections immediately."""
        for proxy_side in self.sides:
            proxy_side.abort()

    def give_up(self) -> None:
        """Stop, and close both connections immediately: another one takes their place."""
        self.stop()
        self.abort()

    def _record_end(self, side: int) -> None:
        if self.tcp_writer is not None and not self._stopped:
            self.tcp_writer.end(side, time.time_ns())
        self._after_recorded(partial(self._forward_end, side))

    def _after_recorded(self, callback: Callable[[], None]) -> None:
        """Call `callback` when everything received so far is recorded."""
        queue = self.proxy.disk_full_queue
        if queue is None:
            callback()
        else:
            queue.call_when_written(callback)

    def _forward_end(self, side: int) -> None:
        if all(each.peer_ended for each in self.sides):
            for proxy_side in self.sides:
                proxy_side.close()
            return
        other = self.sides[1 - side]
        if other.writable_transport is not None:
            if not other.writable_transport.can_write_eof():
                other.close()
                return
            # A connection that its peer has reset is closed when the event loop notices.
            with contextlib.suppress(OSError):
                other.writable_transport.write_eof()

    def _on_side_closed(self, side: int) -> None:
        """One connection is closed: close the other one, or reset it after a grace period."""
        other = self.sides[1 - side]
        if other.writable_transport is None or self._linger_timer is not None:
            return
        if other.peer_ended:
            other.close()
        else:
            loop = asyncio.get_running_loop()
            self._linger_timer = loop.call_later(OTHER_PEER_GRACE_SECONDS, other.reset)
