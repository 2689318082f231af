"""The in-process recorder: a live session writes down its own bytes.

It stands at one side: what the process read before it wrote is known, so the analysis can judge
more than from the middle (vantage `dialer` or `acceptor`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import cast

from polymux.capture.pcapng.comments import VANTAGES, hint_comment
from polymux.capture.synthesis.tcp_connection import PacketSink, TcpConnectionWriter
from polymux.core.side import DIALER

UNADDRESSED_HOST = "127.0.0.1"  # stands for both ends of a connection without addresses

HostPort = tuple[str, int]


class Recorder:
    """Records sessions of this process into `sink`: give it to `connect` or `serve`.

        with PcapngWriter("talk.pcapng") as sink:
            async with connect(url, protocol="mplex", recorder=Recorder(sink)) as session:

    Bytes are in the file before the transport has them. The sink is the caller's, who closes it
    after the sessions; a writer's `on_full="gap"` keeps a full disk from stopping the session.
    Over ws:// and wss:// recording begins behind the HTTP upgrade.
    """

    def __init__(self, sink: PacketSink) -> None:
        self.sink = sink
        self._unaddressed_sessions = 0

    def __call__(self, protocol: str, side: int) -> SessionCapture:
        return SessionCapture(self, protocol, side)

    def endpoint_addresses(
        self, transport: asyncio.Transport, side: int
    ) -> tuple[HostPort, HostPort]:
        """Dialer and acceptor, as the socket has them."""
        self._unaddressed_sessions = self._unaddressed_sessions % 60000 + 1
        ends = []
        for name in ("sockname", "peername"):
            found = transport.get_extra_info(name)
            whole = isinstance(found, tuple) and len(found) >= 2
            ends.append((str(found[0]), int(found[1])) if whole else None)
        own = ends[0] or (
            UNADDRESSED_HOST,
            1024 + self._unaddressed_sessions if side == DIALER else 1,
        )
        peer = ends[1] or (
            UNADDRESSED_HOST,
            1 if side == DIALER else 1024 + self._unaddressed_sessions,
        )
        return (own, peer) if side == DIALER else (peer, own)


class SessionCapture:
    """The recorder of one session."""

    def __init__(self, recorder: Recorder, protocol: str, side: int) -> None:
        self._recorder = recorder
        self._comment = hint_comment(protocol, VANTAGES[side])
        self._side = side
        self._tcp_writer: TcpConnectionWriter | None = None
        self._peer_ended = False

    def begin(self, transport: asyncio.Transport) -> asyncio.Transport:
        names = self._recorder.endpoint_addresses(transport, self._side)
        self._tcp_writer = TcpConnectionWriter(
            self._recorder.sink, *names, time.time_ns(), comment=self._comment
        )
        return cast(asyncio.Transport, RecordingTransport(transport, self))

    def on_write(self, data: bytes | bytearray | memoryview) -> None:
        """These bytes leave now."""
        if self._tcp_writer is not None:
            self._tcp_writer.data(self._side, bytes(data), time.time_ns())

    def read(self, data: bytes) -> None:
        if self._tcp_writer is not None:
            self._tcp_writer.data(1 - self._side, data, time.time_ns())

    def on_write_eof(self) -> None:
        """This side ended its direction."""
        if self._tcp_writer is not None:
            self._tcp_writer.end(self._side, time.time_ns())

    def on_abort(self) -> None:
        """This side cut the connection."""
        if self._tcp_writer is not None:
            self._tcp_writer.abort(self._side, time.time_ns())

    def ended(self) -> None:
        self._peer_ended = True
        if self._tcp_writer is not None:
            self._tcp_writer.end(1 - self._side, time.time_ns())

    def closed(self, error: Exception | None) -> None:
        if self._tcp_writer is not None:
            if error is not None:
                self._tcp_writer.abort(1 - self._side, time.time_ns())
            elif self._peer_ended:
                self.on_write_eof()  # the transport closes itself once the peer has ended
            else:
                # This side closed while the peer had not ended, as a WebSocket is closed: what
                # the peer would still send is refused, which to a reader is a reset.
                self.on_abort()
            self._tcp_writer = None


class RecordingTransport:
    """A transport that records what is written before it passes it on."""

    def __init__(self, transport: asyncio.Transport, capture: SessionCapture) -> None:
        self._transport = transport
        self._capture = capture

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._capture.on_write(data)
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self._capture.on_write_eof()
        self._transport.write_eof()

    def abort(self) -> None:
        self._capture.on_abort()
        self._transport.abort()
