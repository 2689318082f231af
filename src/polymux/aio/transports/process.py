"""Sessions over a child's standard input and output (`exec:`)."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from polymux.aio.session.session import EXTRA_CHILD_PROCESS, EXTRA_END_DESCRIPTION, Session
from polymux.aio.transports.pipe_pair import PipePairTransport

# Seconds until we learn how a child has ended whose pipes have, or that has broken the protocol.
EXIT_STATUS_WAIT_SECONDS = 0.5
CHILD_GRACE_SECONDS = (
    1.0  # seconds for a child to end by itself, then to end when asked, then it is killed
)


class ChildProcess(asyncio.SubprocessProtocol):
    """A child process; its output goes to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.process: asyncio.SubprocessTransport | None = None
        self.pipes: ChildTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost_pipes: list[
            tuple[int, Exception | None]
        ] = []  # pipes; of which the session is told
        self._exit_status_timer: asyncio.TimerHandle | None = (
            None  # once it is known how the child ended
        )
        self._ended_by_us = False  # by us
        self._on_exit: Callable[[], None] | None = None  # what to do when it has; drops its output
        self._before_attach: list[
            Callable[[], None]
        ] = []  # what happened before the session was there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.process = cast(asyncio.SubprocessTransport, transport)

    def attach(self, pipes: "ChildTransport") -> None:
        """Begin the session, with what has happened already."""
        self.pipes = pipes
        self.session.connection_made(pipes)
        for happening in self._before_attach:
            happening()
        self._before_attach.clear()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if self.pipes is None:
            self._before_attach.append(lambda: self.pipe_data_received(fd, data))
        elif fd == 1 and isinstance(data, bytes) and self._on_exit is None:
            self.session.data_received(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if self.pipes is None:
            self._before_attach.append(lambda: self.pipe_connection_lost(fd, exc))
            return
        self._lost_pipes.append((fd, exc))
        if self._on_exit is not None:
            return
        if self.pipes.exit_description or self.session.shutdown.started or self._ended_by_us:
            self._report_lost_pipes()
        elif self._exit_status_timer is None:
            self._exit_status_timer = self.session.loop.call_later(
                EXIT_STATUS_WAIT_SECONDS, self._report_lost_pipes
            )

    def _report_lost_pipes(self) -> None:
        """Tell the session of pipes that have ended."""
        assert self.pipes is not None
        self._cancel_exit_status_timer()
        lost, self._lost_pipes = self._lost_pipes, []
        for fd, exc in lost:
            if fd == 1:
                self.pipes.on_input_eof()
            else:
                known = self.pipes.exit_description and exc is not None
                self.pipes.on_output_lost(
                    ChildProcessError(self.pipes.exit_description) if known else exc
                )

    def process_exited(self) -> None:
        assert self.process is not None
        if self.pipes is None:
            self._before_attach.append(self.process_exited)
            return
        code = self.process.get_returncode()
        if code is not None and not self._ended_by_us and not self.session.shutdown.started:
            self.pipes.exit_description = describe_exit(code)
            if code:
                self.pipes.error = ChildProcessError(self.pipes.exit_description)
        self._run_on_exit()
        self._report_lost_pipes()
        # Another process may have inherited its pipes: they are not waited for without end.
        self._set_timer(self._close_leftover_pipes)

    def connection_lost(self, exc: Exception | None) -> None:
        """The child has ended and its pipes are closed."""
        self._cancel_timer()
        if self.process is not None:
            self.process.close()
        if self.pipes is None:
            self._before_attach.append(lambda: self.connection_lost(exc))
        else:
            self._run_on_exit()
            self.pipes.on_pipes_closed()

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()

    # --- its end

    def call_on_exit(self, callback: Callable[[], None]) -> None:
        """Call `act` when the child has ended, or after a short while; until then its output is
        read and dropped, because a child that cannot write does not end."""
        assert self.process is not None
        self._cancel_exit_status_timer()
        self._on_exit = callback
        if self.process.get_returncode() is None:
            self._exit_status_timer = self.session.loop.call_later(
                EXIT_STATUS_WAIT_SECONDS, self._run_on_exit
            )
        else:
            self._run_on_exit()

    def _run_on_exit(self) -> None:
        """Do what was to be done when the child has ended."""
        if self._on_exit is not None:
            self._on_exit()

    def describe_end(self) -> str:
        """How the child has ended, or that this side ends it now; it is awaited no longer."""
        assert self.process is not None
        self._cancel_exit_status_timer()
        self._on_exit = None
        code = self.process.get_returncode()
        if code is None or self._ended_by_us:
            return "the child was still running and was ended"
        return describe_exit(code)

    def expect_exit(self) -> None:
        """Its input has ended: it should end too."""
        self._set_timer(self.terminate)

    def terminate(self) -> None:
        if self.process is not None and self.process.get_returncode() is None:
            self._ended_by_us = True
            self.process.terminate()
            self._set_timer(self.kill)

    def _close_leftover_pipes(self) -> None:
        """Close pipes that are still open after the child has ended; not while this side pauses
        reading, because what the child wrote may still be in them."""
        if self.session.read_backpressure.is_paused and not self._ended_by_us:
            self._set_timer(self._close_leftover_pipes)
        else:
            self.kill()

    def kill(self) -> None:
        self._cancel_timer()
        if self.process is None:
            return
        self._ended_by_us = True
        if self.process.get_returncode() is None:
            # Not by `process.kill`, nor by `close`: before Python 3.13 both ask for the exit
            # status, and asyncio's own watcher, which then finds none, complains in the log.
            with suppress(ProcessLookupError):
                os.kill(self.process.get_pid(), signal.SIGKILL)
        else:
            self.process.close()  # and with it the pipes

    def _set_timer(self, callback: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = self.session.loop.call_later(CHILD_GRACE_SECONDS, callback)

    def _cancel_exit_status_timer(self) -> None:
        if self._exit_status_timer is not None:
            self._exit_status_timer.cancel()
            self._exit_status_timer = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ChildTransport(PipePairTransport):
    """The pipes to a child, which ends with them."""

    def __init__(self, session: Session, reader: Any, writer: Any, child: ChildProcess) -> None:
        super().__init__(session, reader, writer)
        self._child = child
        self.exit_description = ""  # how the child has, if not by us

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == EXTRA_CHILD_PROCESS:
            return self._child
        return self.exit_description or default if name == EXTRA_END_DESCRIPTION else default

    def on_pipes_closed(self) -> None:
        if self.exit_description:  # uvloop does not always say that its output has
            self.on_input_eof()
        super().on_pipes_closed()

    def close(self) -> None:
        if not self._closing:
            super().close()
            self._child.expect_exit()

    def abort(self) -> None:
        super().abort()
        self._child.kill()


def describe_exit(code: int) -> str:
    """How a child has ended, by what the system says of it."""
    if code >= 0:
        return f"the child ended with exit status {code}"
    known = {number.value: f" ({number.name})" for number in signal.Signals}
    return f"the child was ended by signal {-code}{known.get(-code, '')}"


async def start_process(command: tuple[str, ...], make: Callable[[], Session]) -> Session:
    """Start a child and talk over its standard input and output; its error output is ours.

    The session is closed once the child has ended. If cancelled, no child is left.
    """
    loop = asyncio.get_running_loop()
    session = make()
    process, child = await loop.subprocess_exec(
        lambda: ChildProcess(session), *command, stdin=-1, stdout=-1, stderr=None
    )
    output, feed = process.get_pipe_transport(1), process.get_pipe_transport(0)
    child.attach(ChildTransport(session, output, feed, child))
    return session
