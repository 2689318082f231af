"""`Recorder`: records the sessions of this process.

Its captures have the vantage `dialer` or `acceptor`: it is known what the process had read when it
wrote, so the analysis can report more violations than from a capture made in the middle.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import cast

from polymux.capture.pcapng.comments import VANTAGES, hint_comment
from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.capture.synthesis.tcp_connection import PacketSink, TcpConnectionWriter
from polymux.core.side import DIALER
from polymux.live.one_of import ALONE, OneOf
from polymux.live.peer_identity import identity_of
from polymux.live.transport import ConnectionInfo, Transport
from polymux.record.made_up_ports import MadeUpPorts
from polymux.record.secret_log import SecretLog

UNADDRESSED_HOST = "127.0.0.1"  # both ends of a connection without addresses

HostPort = tuple[str, int]


class Recorder:
    """Records sessions of this process into `sink`: give it to `connect` or `serve`.

        with PcapngWriter("talk.pcapng") as sink:
            async with connect(url, protocol="mplex", recorder=Recorder(sink)) as session:

    Bytes are given to the sink before they are given to the transport. Over ws:// and wss://
    recording begins after the HTTP upgrade. With `on_full="gap"`, a writer does not block the
    session while the disk is full.

    The names in the peer's certificate, if it was verified, are noted in a comment of the capture.

    Args:
        sink: A writer of `polymux.capture`. The caller closes it after the sessions.
        note: Another comment for each session.
        secrets: Of the sessions' TLS contexts. The secrets of a session are then written before its
            first data, so that other captures of it can be opened; `sink` must be a PcapngWriter or
            a RotatingWriter.
        in_middle: Bytes that the sessions write may be held up before they are recorded. The
            captures then have the vantage `middle`.
        one_of: Which of several processes that record sessions of one address this one is.
    """

    def __init__(
        self,
        sink: PacketSink,
        note: str = "",
        secrets: SecretLog | None = None,
        *,
        in_middle: bool = False,
        one_of: OneOf = ALONE,
    ) -> None:
        self.sink = sink
        self.note = note
        self.in_middle = in_middle
        self._secrets = secrets
        self._ports = MadeUpPorts(one_of)

    def __call__(self, protocol: str, side: int) -> SessionCapture:
        return SessionCapture(self, protocol, side)

    def write_secrets(self) -> None:
        """Write the secrets of sessions whose TLS handshakes are complete."""
        if self._secrets is not None and isinstance(self.sink, PcapngWriter | RotatingWriter):
            self._secrets.write_to(self.sink)

    def endpoint_addresses(self, transport: Transport, side: int) -> tuple[HostPort, HostPort]:
        """Return the addresses of dialer and acceptor; made up where the transport has none."""
        port = self._ports.take()
        ends = []
        for name in ("sockname", "peername"):
            address = transport.get_extra_info(name)
            usable = isinstance(address, tuple) and len(address) >= 2
            ends.append((str(address[0]), int(address[1])) if usable else None)
        own = ends[0] or (UNADDRESSED_HOST, port if side == DIALER else 1)
        peer = ends[1] or (UNADDRESSED_HOST, 1 if side == DIALER else port)
        return (own, peer) if side == DIALER else (peer, own)


def identity_note(transport: ConnectionInfo | None) -> str:
    """Return the comment that names the peer by its certificate; empty if it was not verified."""
    identity = identity_of(transport)
    return "" if identity is None else f"peer certificate: {identity}"


class SessionCapture:
    """Records one session; called by the session (`live.hooks.SessionRecorder`)."""

    def __init__(self, recorder: Recorder, protocol: str, side: int) -> None:
        self._recorder = recorder
        vantage = "middle" if recorder.in_middle else VANTAGES[side]
        self._comment = hint_comment(protocol, vantage)
        self._side = side
        self._tcp_writer: TcpConnectionWriter | None = None
        self._peer_ended = False

    def begin(self, transport: Transport) -> Transport:
        """Start to record. Return the transport that the session must use."""
        self._recorder.write_secrets()
        addresses = self._recorder.endpoint_addresses(transport, self._side)
        self._tcp_writer = TcpConnectionWriter(
            self._recorder.sink,
            *addresses,
            time.time_ns(),
            comment=self._comment,
            note="\n".join(filter(None, (identity_note(transport), self._recorder.note))),
        )
        # cast: RecordingTransport delegates what it does not define.
        return cast(Transport, RecordingTransport(transport, self))

    def on_write(self, data: bytes | bytearray | memoryview) -> None:
        """The session writes these bytes."""
        if self._tcp_writer is not None:
            self._tcp_writer.data(self._side, bytes(data), time.time_ns())

    def read(self, data: bytes) -> None:
        """The session has received these bytes."""
        if self._tcp_writer is not None:
            self._tcp_writer.data(1 - self._side, data, time.time_ns())

    def annotate(self, text: str) -> None:
        """Write a comment to the capture, on a packet of its own."""
        if self._tcp_writer is not None:
            self._tcp_writer.annotate(self._side, text, time.time_ns())

    def on_write_eof(self) -> None:
        """This side ends its direction."""
        if self._tcp_writer is not None:
            self._tcp_writer.end(self._side, time.time_ns())

    def on_abort(self) -> None:
        """This side aborts the connection."""
        if self._tcp_writer is not None:
            self._tcp_writer.abort(self._side, time.time_ns())

    def ended(self) -> None:
        """The peer has ended its direction."""
        self._peer_ended = True
        if self._tcp_writer is not None:
            self._tcp_writer.end(1 - self._side, time.time_ns())

    def closed(self, error: Exception | None) -> None:
        """The connection is closed; `error` if it was lost."""
        if self._tcp_writer is not None:
            if error is not None:
                self._tcp_writer.abort(1 - self._side, time.time_ns())
            elif self._peer_ended:
                self.on_write_eof()  # the transport closes itself once the peer has ended
            else:
                # This side closed before the peer had ended, as for a WebSocket. The kernel
                # answers data that still arrives with a reset, so a reset is recorded.
                self.on_abort()
            self._tcp_writer = None


class RecordingTransport:
    """A transport that records bytes before it writes them to another transport."""

    def __init__(self, transport: Transport, capture: SessionCapture) -> None:
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
