"""The in-process recorder: a live session writes down its own octets.

It stands at one side: what the process read before it wrote is known, so the analysis can judge
more than from the middle (vantage `dialer` or `acceptor`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import cast

from polymux.capture.pcapng.comments import hint_comment
from polymux.capture.synthesis.tcp_connection import PacketSink, TcpScribe

LOCAL = "127.0.0.1"  # stands for both ends of a connection without addresses
DIALER = 0
VANTAGES = ("dialer", "acceptor")

End = tuple[str, int]


class Recorder:
    """Records sessions of this process into `sink`: give it to `connect` or `serve`.

        with PcapngWriter("talk.pcapng") as sink:
            async with connect(url, protocol="mplex", recorder=Recorder(sink)) as session:

    Octets are in the file before the transport has them. The sink is the caller's, who closes it
    after the sessions; a writer's `on_full="gap"` keeps a full disk from stopping the session.
    Over ws:// and wss:// recording begins behind the HTTP upgrade.
    """

    def __init__(self, sink: PacketSink) -> None:
        self.sink = sink
        self._unnamed = 0

    def __call__(self, protocol: str, side: int) -> Attendant:
        return Attendant(self, protocol, side)

    def names(self, transport: asyncio.Transport, side: int) -> tuple[End, End]:
        """Dialer and acceptor, as the socket has them."""
        self._unnamed = self._unnamed % 60000 + 1
        ends = []
        for name in ("sockname", "peername"):
            found = transport.get_extra_info(name)
            whole = isinstance(found, tuple) and len(found) >= 2
            ends.append((str(found[0]), int(found[1])) if whole else None)
        own = ends[0] or (LOCAL, 1024 + self._unnamed if side == DIALER else 1)
        peer = ends[1] or (LOCAL, 1 if side == DIALER else 1024 + self._unnamed)
        return (own, peer) if side == DIALER else (peer, own)


class Attendant:
    """The recorder of one session."""

    def __init__(self, recorder: Recorder, protocol: str, side: int) -> None:
        self._recorder = recorder
        self._comment = hint_comment(protocol, VANTAGES[side])
        self._side = side
        self._scribe: TcpScribe | None = None
        self._heard_end = False

    def begin(self, transport: asyncio.Transport) -> asyncio.Transport:
        names = self._recorder.names(transport, self._side)
        self._scribe = TcpScribe(self._recorder.sink, *names, time.time_ns(), comment=self._comment)
        return cast(asyncio.Transport, Pen(transport, self))

    def wrote(self, data: bytes | bytearray | memoryview) -> None:
        """These octets leave now."""
        if self._scribe is not None:
            self._scribe.data(self._side, bytes(data), time.time_ns())

    def read(self, data: bytes) -> None:
        if self._scribe is not None:
            self._scribe.data(1 - self._side, data, time.time_ns())

    def finished(self) -> None:
        """This side ended its direction."""
        if self._scribe is not None:
            self._scribe.end(self._side, time.time_ns())

    def aborted(self) -> None:
        """This side cut the connection."""
        if self._scribe is not None:
            self._scribe.abort(self._side, time.time_ns())

    def ended(self) -> None:
        self._heard_end = True
        if self._scribe is not None:
            self._scribe.end(1 - self._side, time.time_ns())

    def closed(self, error: Exception | None) -> None:
        if self._scribe is not None:
            if error is not None:
                self._scribe.abort(1 - self._side, time.time_ns())
            elif self._heard_end:
                self.finished()  # the transport closes itself once the peer has ended
            else:
                # This side closed while the peer had not ended, as a WebSocket is closed: what
                # the peer would still send is refused, which to a reader is a reset.
                self.aborted()
            self._scribe = None


class Pen:
    """A transport that records what is written before it passes it on."""

    def __init__(self, transport: asyncio.Transport, attendant: Attendant) -> None:
        self._transport = transport
        self._attendant = attendant

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._attendant.wrote(data)
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self._attendant.finished()
        self._transport.write_eof()

    def abort(self) -> None:
        self._attendant.aborted()
        self._transport.abort()
