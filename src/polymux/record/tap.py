"""The tap: a proxy that records every octet before it forwards it.

A chunk is handed to the operating system as a packet of the capture first and to the other peer
second, so whatever a peer has received is in the file, even if the tap is killed.
"""

import asyncio
import logging
import ssl
import time
from dataclasses import dataclass
from typing import cast

from ..aio.connect import Unreachable
from ..aio.urls import Address, BadUrl, parse_url
from ..capture.hints import hint_comment
from ..capture.scribe import PacketSink, TcpScribe

log = logging.getLogger("polymux.record")

DIALER, ACCEPTOR = 0, 1
LOCAL = "127.0.0.1"  # stands for both ends of a Unix socket


@dataclass
class TapCounts:
    """What has passed: connections taken and open, and octets by who sent them."""

    connections: int = 0
    open: int = 0
    refused: int = 0
    octets_dialer: int = 0
    octets_acceptor: int = 0


class Tap:
    """Listens at one URL, connects to another, and writes what passes to `sink`.

    `protocol` goes into the capture as a comment, so that nobody has to guess later. TLS is ended
    here: `tls` is the context we listen with, `upstream_tls` the one we connect with.
    """

    def __init__(
        self,
        listen: str,
        upstream: str,
        sink: PacketSink,
        *,
        protocol: str = "",
        tls: ssl.SSLContext | None = None,
        upstream_tls: ssl.SSLContext | None = None,
        note: str = "",
    ) -> None:
        self.address = parse_url(listen)
        self.upstream = parse_url(upstream)
        for address in (self.address, self.upstream):
            if address.scheme not in ("tcp", "tls", "ws", "wss", "unix"):
                raise BadUrl(f"{address}: a tap stands between tcp, tls, ws, wss or unix URLs")
        self.sink = sink
        self.counts = TapCounts()
        self.comment = hint_comment(protocol or None, "middle")
        if note:
            self.comment += f"\n{note}"
        self.failure = ""
        self._tls = tls
        self._upstream_tls = upstream_tls
        self._listener: asyncio.AbstractServer | None = None
        self._pairs: set[Pair] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._unnamed = 0

    @property
    def url(self) -> str:
        return str(self.address)

    async def start(self) -> None:
        """Begin to listen; port 0 takes a free port and `url` says which."""
        loop = asyncio.get_running_loop()
        secure = self.address.scheme in ("tls", "wss")
        if secure and self._tls is None:
            raise BadUrl(f"{self.address}: needs a certificate to listen with")
        try:
            if self.address.scheme == "unix":
                self._listener = await loop.create_unix_server(self._arrive, self.address.path)
            else:
                listener = await loop.create_server(
                    self._arrive, self.address.host, self.address.port,
                    ssl=self._tls if secure else None,
                )  # fmt: skip
                self._listener = listener
                port = listener.sockets[0].getsockname()[1]
                self.address = Address(
                    self.address.scheme, self.address.host, port, self.address.path
                )
        except OSError as problem:
            raise BadUrl(f"{self.address}: cannot listen there: {problem.strerror}") from None
        self._tick()

    async def close(self) -> None:
        """Stop listening and end the connections that are open; the sink is the caller's."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._listener is not None:
            self._listener.close()
        for pair in list(self._pairs):
            pair.close()
        await asyncio.sleep(0)

    async def __aenter__(self) -> "Tap":
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    def _tick(self) -> None:
        """Let the writer keep its sync interval while nothing passes."""
        tick = getattr(self.sink, "tick", None)
        if tick is not None:
            tick()
        self._ticker = asyncio.get_running_loop().call_later(0.25, self._tick)

    def _arrive(self) -> "Ear":
        return Pair(self).ears[DIALER]

    def _name(self, transport: asyncio.Transport) -> tuple[str, int]:
        """The address of a peer; ends of a Unix socket get a port of their own."""
        found = transport.get_extra_info("peername")
        if isinstance(found, tuple):
            return str(found[0]), int(found[1])
        self._unnamed += 1
        return LOCAL, 1024 + self._unnamed % 60000

    async def reach(self, pair: "Pair") -> None:
        """Connect to the upstream on behalf of somebody who connected to us."""
        loop = asyncio.get_running_loop()
        where = self.upstream
        ear = pair.ears[ACCEPTOR]
        try:
            if where.scheme == "unix":
                await loop.create_unix_connection(lambda: ear, where.path)
                return
            context = None
            if where.scheme in ("tls", "wss"):
                context = self._upstream_tls or ssl.create_default_context()
            await loop.create_connection(lambda: ear, where.host, where.port, ssl=context)
        except OSError as problem:
            self.counts.refused += 1
            self.failure = str(Unreachable(f"{where}: {problem.strerror or problem}"))
            log.warning("%s", self.failure)
            pair.close()


class Ear(asyncio.Protocol):
    """One of the two connections of a pair: what it hears is recorded, then told to the other."""

    def __init__(self, pair: "Pair", side: int) -> None:
        self.pair = pair
        self.side = side
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []  # heard before the other connection stood

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.pair.made(self.side)

    def data_received(self, data: bytes) -> None:
        self.pair.pass_on(self.side, data)

    def eof_received(self) -> bool:
        self.pair.ended(self.side)
        return True  # the other direction may go on

    def connection_lost(self, error: Exception | None) -> None:
        self.pair.lost(self.side, error)

    def pause_writing(self) -> None:
        self.pair.hold(1 - self.side, True)

    def resume_writing(self) -> None:
        self.pair.hold(1 - self.side, False)


class Pair:
    """A dialer's connection to us, ours to the acceptor, and the scribe of both directions."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.ears = (Ear(self, DIALER), Ear(self, ACCEPTOR))
        self.scribe: TcpScribe | None = None
        self.over = False
        self._connecting: asyncio.Task[None] | None = None
        self._finished = [False, False]

    def made(self, side: int) -> None:
        if side == DIALER:
            self.tap.counts.connections += 1
            self.tap.counts.open += 1
            self.tap._pairs.add(self)
            transport = self.ears[DIALER].transport
            assert transport is not None
            transport.pause_reading()
            self._connecting = asyncio.get_running_loop().create_task(self.tap.reach(self))
            return
        dialer, acceptor = self.ears[DIALER].transport, self.ears[ACCEPTOR].transport
        assert acceptor is not None
        if dialer is None or dialer.is_closing():
            acceptor.abort()
            return
        self.scribe = TcpScribe(
            self.tap.sink, self.tap._name(dialer), self.tap._name(acceptor), time.time_ns(),
            comment=self.tap.comment,
        )  # fmt: skip
        dialer.resume_reading()

    def pass_on(self, side: int, data: bytes) -> None:
        """Record, then forward."""
        assert self.scribe is not None
        self.scribe.data(side, data, time.time_ns())
        if side == DIALER:
            self.tap.counts.octets_dialer += len(data)
        else:
            self.tap.counts.octets_acceptor += len(data)
        other = self.ears[1 - side].transport
        if other is not None and not other.is_closing():
            other.write(data)

    def ended(self, side: int) -> None:
        """One peer closed its direction: so do we towards the other."""
        if self.scribe is not None:
            self.scribe.end(side, time.time_ns())
        self._finished[side] = True
        other = self.ears[1 - side].transport
        if other is not None and not other.is_closing():
            if other.can_write_eof() and not all(self._finished):
                other.write_eof()
            else:
                other.close()
        if all(self._finished):
            self.close()

    def lost(self, side: int, error: Exception | None) -> None:
        if self.scribe is not None and not self.over:
            if error is not None:
                self.scribe.abort(side, time.time_ns())
            elif not self._finished[side]:
                self.scribe.end(side, time.time_ns())
        other = self.ears[1 - side].transport
        if other is not None and not other.is_closing():
            if error is not None:
                other.abort()
            else:
                other.close()
        self.finish()

    def hold(self, side: int, hold: bool) -> None:
        """The other peer does not take what this one sends: read no more from it for now."""
        transport = self.ears[side].transport
        if transport is not None and not transport.is_closing():
            if hold:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def close(self) -> None:
        for ear in self.ears:
            if ear.transport is not None:
                ear.transport.close()
        self.finish()

    def finish(self) -> None:
        if not self.over:
            self.over = True
            self.tap.counts.open -= 1
            self.tap._pairs.discard(self)
            if self.scribe is not None:
                self.scribe.close(time.time_ns())
