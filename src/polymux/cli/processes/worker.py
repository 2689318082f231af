"""A worker process: its start, and its end of the link to its parent.

A worker is started with SIGINT and SIGHUP blocked, which a terminal sends to all processes of a
command: the parent stops its workers, by the end of the link. SIGTERM stops one worker in good
order, and its parent starts another. First the parent gives up its copies of the listening sockets,
so that the kernel gives the other workers what connects while this one ends. SIGTERM is blocked
until it is handled here, and handled until the process has ended: also a second one ends no worker
that publishes its last file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from polymux.cli.processes.member import Member
from polymux.cli.processes.report import Report
from polymux.live.listener import Inherited
from polymux.live.one_of import OneOf
from polymux.metrics import Family

REPORT_SECONDS: Final = 1.0  # between two reports to the parent
SEND_SECONDS: Final = 2.0  # for the parent to take the last message
RELEASE_SECONDS: Final = 1.0  # for the parent to give up its copies of the listening sockets
COLLECT: Final = "collect"  # a request of the parent: the metrics
RELEASED: Final = "released"  # an answer of the parent: it has no say in who gets connections

Collect = Callable[[], list[Family]]


class ParentLink:
    """The socket to the parent.

    Args:
        link: It is read and written without blocking while an event loop runs. From now on, this
            handles SIGTERM.

    Attributes:
        stopped: Whether this worker was told to stop.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.stopped = False
        self._received = b""
        self._outgoing = bytearray()
        self._report: Callable[[], Report] | None = None
        self._collect: Collect | None = None
        self._reported: Report | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        link.set_inheritable(False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def stop_event(self) -> asyncio.Event:
        """Return an event that is set by SIGTERM, and when the parent ends the link or is gone."""
        stop = self._stop = asyncio.Event()
        loop = self._loop = asyncio.get_running_loop()
        if self.stopped:
            stop.set()
        self._link.setblocking(False)
        loop.add_reader(self._link, self._read, loop)
        return stop

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Stop in good order; once the event loop is closed, the command is ending anyway."""
        if self._loop is None:
            self._stop_now()
        else:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._stop_when_released)

    def _stop_when_released(self) -> None:
        """Stop when the parent has given up its copies of the sockets.

        Until then this worker accepts: what waits in the queues of the kernel is lost when the last
        copy of a socket is closed.
        """
        if self._report is None:  # it does not accept yet
            self._stop_now()
        elif not self.stopped:
            assert self._loop is not None, "stop_event() comes before ready()"
            self.stopped = True
            self._send({"stopping": True})
            self._loop.call_later(RELEASE_SECONDS, self._stop_now)

    def _stop_now(self) -> None:
        self.stopped = True
        if self._stop is not None:
            self._stop.set()

    def ready(self, report: Callable[[], Report], collect: Collect | None) -> None:
        """This worker accepts connections.

        Args:
            report: Returns what the parent adds up. Called every second from now on, and once when
                the command has ended.
            collect: Returns the metrics; None without --metrics.
        """
        self._report, self._collect = report, collect
        self._send({"ready": True})
        self._send_report()

    def ended(self, code: int) -> None:
        """The command has ended with this exit code, and its event loop is closed."""
        last: dict[str, object] = {"ended": code, "stopped": self.stopped}
        if self._report is not None:
            last["report"] = self._report().as_json()
        if self._collect is not None:
            last["families"] = [family.as_json() for family in self._collect()]
        with suppress(OSError):  # the parent is gone
            self._link.settimeout(SEND_SECONDS)
            self._link.sendall(self._outgoing + encoded(last))

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            data = self._link.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(self._link)
            self._stop_now()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message == RELEASED:
                self._stop_now()
            elif message == COLLECT and self._collect is not None:
                self._send({"families": [family.as_json() for family in self._collect()]})

    def _send_report(self) -> None:
        assert self._loop is not None, "stop_event() comes before ready()"
        assert self._report is not None, "set by ready()"
        report = self._report()
        if report != self._reported:
            self._reported = report
            self._send({"report": report.as_json()})
        self._loop.call_later(REPORT_SECONDS, self._send_report)

    def _send(self, message: dict[str, object]) -> None:
        waiting = bool(self._outgoing)
        self._outgoing += encoded(message)
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        """Send what the socket takes, and the rest when it takes more."""
        assert self._loop is not None, "stop_event() comes before ready()"
        try:
            sent = self._link.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:  # the parent is gone, which `_read` notices
            sent = len(self._outgoing)
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(self._link, self._flush)
        else:
            self._loop.remove_writer(self._link)


def encoded(message: object) -> bytes:
    """A message as it is sent over the link."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def inherited_sockets(descriptors: list[int], shared: bool, backlog: int) -> Inherited:
    """The listening sockets of one URL."""
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for listening in sockets:
        listening.setblocking(False)
    return Inherited(sockets, shared, backlog)


def main(link: socket.socket, setup: dict[str, Any], arguments: list[str]) -> None:
    """Run a command as a worker. The process ends with the exit code of the command.

    Args:
        link: The socket to the parent.
        setup: What the parent has sent, see `supervisor.Supervisor`.
        arguments: The command line, without the name of the program.
    """
    from polymux.cli import main as run

    for descriptor in setup["descriptors"]:  # not for processes that this one starts
        os.set_inheritable(descriptor, False)
    token = setup["token"]
    parent = ParentLink(link)
    member = Member(
        OneOf(setup["index"], setup["count"]),
        parent,
        tuple(inherited_sockets(*each) for each in setup["listening"]),
        None if token is None else bytes.fromhex(token),
        setup["disk_count"],
        setup["line_lock"],
    )
    sys.argv = ["polymux", *arguments]
    try:
        run(member)
    except SystemExit as end:
        parent.ended(end.code if isinstance(end.code, int) else 0)
        raise
