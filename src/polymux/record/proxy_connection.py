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

from polymux.aio.session.socket_options import look_no_further
from polymux.capture.packets.flow_filter import endpoint_text
from polymux.capture.synthesis.tcp_connection import TcpScribe

if TYPE_CHECKING:
    from polymux.record.proxy import Tap

DIALER, ACCEPTOR = 0, 1
# Why a peer is not read from: the other is not reached yet, is slow, or the disk is full.
CONNECTING, SLOW, FULL = 1, 2, 4
LINGER = 2.0  # seconds a peer may go on after the other is gone, to end by itself


class Ear(asyncio.Protocol):
    """One of the two connections of a pair: what it hears is recorded, then told to the other."""

    def __init__(self, pair: Pair, side: int) -> None:
        self.pair = pair
        self.side = side
        self.transport: asyncio.Transport | None = None
        self.gone = False
        self.finished = False  # the peer has ended its direction
        self._holds = 0
        self._left = False  # we have closed it, not the peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        look_no_further(transport)
        self.pair.made(self.side)

    def data_received(self, data: bytes) -> None:
        if self._holds:  # uvloop forgets it when it was told while the connection was made
            self.hold(self._holds)
        self.pair.pass_on(self.side, data)

    def eof_received(self) -> bool:
        self.pair.ended(self.side)
        # The other direction may go on; over TLS there is no such thing.
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        if error is None and not self._left:
            self.pair.ended(self.side)  # uvloop tells of no end that TLS was not told of
        self.pair.lost(self.side, error)

    def pause_writing(self) -> None:
        self.pair.ears[1 - self.side].hold(SLOW)

    def resume_writing(self) -> None:
        self.pair.ears[1 - self.side].release(SLOW)

    @property
    def usable(self) -> asyncio.Transport | None:
        """The transport, while anything can be written to it."""
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport

    def hold(self, reason: int) -> None:
        """Read no more from this peer until every reason is released."""
        self._holds |= reason
        if self.usable is not None and not self.finished:
            self.usable.pause_reading()

    def release(self, reason: int) -> None:
        self._holds &= ~reason
        if not self._holds and self.usable is not None and not self.finished:
            self.usable.resume_reading()

    def close(self) -> None:
        """End the connection, once what was written to it has left."""
        if self.usable is not None:
            self._left = True
            self.usable.close()

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None and not self.gone:
            self._left = True
            self.transport.abort()

    def reset(self) -> None:
        """End the connection so that the peer sees a reset, as the other peer has made one."""
        if self.transport is None or self.gone:
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()


class Pair:
    """A dialer's connection to the tap and the tap's to the acceptor."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.ears = (Ear(self, DIALER), Ear(self, ACCEPTOR))
        self.scribe: TcpScribe | None = None
        self._stopped = False
        self._watch: Callable[[int, bytes], None] | None = None
        # What the dialer said before the acceptor was reached. It is one read at most: the dialer
        # is held, and a loop that has read nevertheless is told again.
        self._early: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None

    def made(self, side: int) -> None:
        tap = self.tap
        dialer, acceptor = self.ears
        if side == DIALER:
            tap.joined(self)
            dialer.hold(CONNECTING)
            self._connecting = asyncio.get_running_loop().create_task(tap.reach(self))
            return
        if self._stopped or dialer.usable is None:
            acceptor.abort()
            return
        names = tap.names(dialer.transport, acceptor.transport)
        if tap.watch is not None:
            self._watch = tap.watch(endpoint_text(*names[0]))
        self.scribe = TcpScribe(tap.scribes_to, *names, time.time_ns(), comment=tap.comment)
        if tap.full:
            acceptor.hold(FULL)
            dialer.hold(FULL)
        early, self._early = self._early, []
        for data in early:
            self.pass_on(DIALER, data)
        if dialer.finished:
            self._end(DIALER)
        dialer.release(CONNECTING)

    def pass_on(self, side: int, data: bytes) -> None:
        """Record, then forward."""
        if self._stopped:
            return
        if self.scribe is None:
            self._early.append(data)
            return
        self.scribe.data(side, data, time.time_ns())
        if self._watch is not None:
            self._watch(side, data)
        self.tap.counts.passed(side, len(data))
        self._then(partial(self._forward, side, data))

    def ended(self, side: int) -> None:
        """A peer closed its direction: so do we towards the other."""
        ear = self.ears[side]
        if ear.finished:
            return
        ear.finished = True
        if self.scribe is not None:  # else when the acceptor is reached
            self._end(side)

    def lost(self, side: int, error: Exception | None) -> None:
        """A connection is gone: by the peer's reset, or after its end and ours."""
        if error is not None and self.scribe is not None and not self._stopped:
            self.scribe.abort(side, time.time_ns())
            self._then(self.ears[1 - side].reset)
        elif self.scribe is not None:
            self._then(partial(self._pass_loss, side))
        else:
            self.stop()
        if all(ear.gone or ear.transport is None for ear in self.ears):
            self.tap.parted(self)
            if self._linger is not None:
                self._linger.cancel()

    def stop(self) -> None:
        """The tap ends, or the acceptor cannot be reached: nothing more is recorded.

        What was recorded is still forwarded.
        """
        self._stopped = True
        if self._connecting is not None:
            self._connecting.cancel()
        for ear in self.ears:
            ear.close()

    def abort(self) -> None:
        """At once."""
        for ear in self.ears:
            ear.abort()

    def _end(self, side: int) -> None:
        if self.scribe is not None and not self._stopped:
            self.scribe.end(side, time.time_ns())
        self._then(partial(self._pass_end, side))

    def _then(self, act: Callable[[], None]) -> None:
        """Do it once everything said so far is recorded."""
        patience = self.tap.patience
        if patience is None:
            act()
        else:
            patience.after(act)

    def _forward(self, side: int, data: bytes) -> None:
        other = self.ears[1 - side].usable
        if other is not None:
            other.write(data)

    def _pass_end(self, side: int) -> None:
        if all(ear.finished for ear in self.ears):
            for ear in self.ears:
                ear.close()
            return
        other = self.ears[1 - side]
        if other.usable is not None:
            if other.usable.can_write_eof():
                other.usable.write_eof()
            else:
                other.close()

    def _pass_loss(self, side: int) -> None:
        """Nobody is left to hear the other peer; it has a moment to end by itself."""
        other = self.ears[1 - side]
        if other.usable is None or self._linger is not None:
            return
        if other.finished:
            other.close()
        else:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(LINGER, other.reset)
