"""`-v`: print the frames of live sessions to standard error as they pass."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import click

from polymux.capture.packets.flows import endpoint_text
from polymux.cli.support.output import warn
from polymux.core.observer import Observer
from polymux.core.token_exchange import PREFIX as TOKEN_PREFIX
from polymux.live.hooks import RecorderFactory, SessionRecorder
from polymux.live.transport import Transport
from polymux.protocols.registry import create, parse_protocol

Command = TypeVar("Command", bound=Callable[..., object])
DIALER = 0


def verbose_option(command: Command) -> Command:
    """Add -v, for commands with live sessions."""
    add: Callable[[Command], Command] = click.option(
        "-v", "--verbose", is_flag=True, help="Print frames to standard error as they pass."
    )
    return add(command)


class FrameLog:
    """Decodes one connection and prints a line for each frame and violation.

    `label` is printed before each line. Behind a preamble or a token exchange, frames are not
    printed: their start is unknown here.
    """

    def __init__(self, protocol: str, label: str = "") -> None:
        preamble = parse_protocol(protocol).options.get("preamble", "")
        self._label = f"{label} " if label else ""
        self._observer = Observer(create(protocol))
        if preamble:
            warn(f"{self._label}frames behind a preamble are not shown")
        self._stopped = bool(preamble)
        self._started = False

    def feed(self, side: int, data: bytes) -> None:
        """Print the frames that `data` completes. A write error ends the log, not the session."""
        try:
            self._show(side, data)
        except OSError:
            self._stopped = True

    def _show(self, side: int, data: bytes) -> None:
        from polymux.analysis.output.frame_dicts import take_frame_rows

        if not self._started and data.startswith(TOKEN_PREFIX):
            warn(f"{self._label}frames behind a token exchange are not shown")
            self._stopped = True
        self._started = True
        if self._stopped:
            return
        observer = self._observer
        observer.feed(side, data, time.time_ns())
        for row in take_frame_rows(observer):
            arrow = ">" if row["sender"] == "dialer" else "<"
            amount = f" amount {row['amount']}" if row["amount"] is not None else ""
            mark = "" if row["verdict"] == "clean" else f"  {row['verdict']}"
            seconds = int(str(row["time"])) // 1_000_000
            clock = time.strftime("%H:%M:%S", time.localtime(seconds))
            warn(
                f"{self._label}{clock} {arrow} {row['stream'] or '-'} {row['kind']} "
                f"{row['payload_bytes']} bytes{amount}{mark}"
            )
        for violation in observer.take_violations():
            warn(f"{self._label}{violation.rule.severity.value}: {violation}")
        direction = observer.connection.direction(side)
        if direction.decoding_stopped:
            self._stopped = True
            warn(f"{self._label}decoding stopped: {direction.stop_reason}")
        observer.take_removed_streams()
        sys.stderr.flush()


class LoggedSession:
    """A `SessionRecorder` that logs frames and passes everything on to `inner`, if there is one."""

    def __init__(self, protocol: str, side: int, inner: SessionRecorder | None) -> None:
        self._log: FrameLog | None = None
        self._protocol = protocol
        self._side = side
        self._inner = inner

    def begin(self, transport: Transport) -> Transport:
        label = ""
        if self._side != DIALER:  # a server has several connections
            peer = transport.get_extra_info("peername")
            label = endpoint_text(*peer[:2]) if isinstance(peer, tuple) else ""
        self._log = FrameLog(self._protocol, label)
        if self._inner is not None:
            transport = self._inner.begin(transport)
        # LoggedTransport forwards every other attribute, so it behaves as a Transport.
        return cast(Transport, LoggedTransport(transport, self))

    def wrote(self, data: bytes) -> None:
        if self._log is not None:
            self._log.feed(self._side, data)

    def read(self, data: bytes) -> None:
        if self._log is not None:
            self._log.feed(1 - self._side, data)
        if self._inner is not None:
            self._inner.read(data)

    def ended(self) -> None:
        if self._inner is not None:
            self._inner.ended()

    def closed(self, error: Exception | None) -> None:
        if self._inner is not None:
            self._inner.closed(error)


class LoggedTransport:
    """A transport that logs what is written before it passes it on."""

    def __init__(self, transport: Transport, session: LoggedSession) -> None:
        self._transport = transport
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._transport.is_closing():
            self._session.wrote(bytes(data))
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))


def with_frame_log(recorder: RecorderFactory | None) -> RecorderFactory:
    """Return a recorder factory that also logs frames."""

    def begin(protocol: str, side: int) -> SessionRecorder:
        inner = recorder(protocol, side) if recorder is not None else None
        return LoggedSession(protocol, side, inner)

    return begin
