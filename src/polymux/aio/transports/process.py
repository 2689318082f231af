"""Sessions over the standard input and output of a child process (`exec:`).

The exit status of a child is often the best explanation of a broken session, but it arrives after
the end of its output, or a little later than a protocol error. So the end of a pipe, and a protocol
error, are reported to the session only when the exit status is known, or after
`EXIT_STATUS_WAIT_SECONDS`.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from polymux.aio.transports.pipe_pair import PipePairTransport
from polymux.live.session.session import EXTRA_CHILD_PROCESS, EXTRA_END_DESCRIPTION, Session

EXIT_STATUS_WAIT_SECONDS = 0.5  # how long to wait for the exit status before reporting an end
CHILD_GRACE_SECONDS = 1.0  # from the end of its input to SIGTERM, and from that to SIGKILL


class ChildProcess(asyncio.SubprocessProtocol):
    """The protocol of a child process; passes its output to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.process: asyncio.SubprocessTransport | None = None
        self.pipes: ChildTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Pipes that have ended, with the error, and were not reported to the session yet.
        self._lost_pipes: list[tuple[int, Exception | None]] = []
        self._stdout_ended = False
        self._exit_status_timer: asyncio.TimerHandle | None = None
        self._ended_by_us = False  # this side has terminated or killed the child
        # Called when the child has ended; while it is set, output of the child is dropped.
        self._on_exit: Callable[[], None] | None = None
        # Callbacks that arrived before `attach`, to be repeated there.
        self._before_attach: list[Callable[[], None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.process = cast(asyncio.SubprocessTransport, transport)

    def attach(self, pipes: "ChildTransport") -> None:
        """Start the session, and repeat the callbacks that arrived before."""
        self.pipes = pipes
        self.session.connection_made(pipes)
        for callback in self._before_attach:
            callback()
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
        """Report pipes that have ended to the session.

        After the child has exited, its standard output is read to the end first: it may say why
        the child did not read its input.
        """
        assert self.pipes is not None
        self._cancel_exit_status_timer()
        lost, self._lost_pipes = self._lost_pipes, []
        if any(fd == 1 for fd, _ in lost):
            self._stdout_ended = True
            self.pipes.on_input_eof()
        for fd, exc in lost:
            if fd == 1:
                continue
            if self.pipes.exit_description and not self._stdout_ended:
                self._lost_pipes.append((fd, exc))
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
        # Another process may have inherited the pipes and keep them open: limit the wait for them.
        self._set_timer(self._close_leftover_pipes)

    def connection_lost(self, exc: Exception | None) -> None:
        """The child has ended, and its pipes are closed."""
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

    # Ending the child

    def call_on_exit(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the child has ended, or after `EXIT_STATUS_WAIT_SECONDS`.

        Until then its output is read and dropped: a child that is blocked writing does not end.
        """
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
        """Call the callback of `call_on_exit`, if there is one."""
        if self._on_exit is not None:
            self._on_exit()

    def describe_end(self) -> str:
        """Return how the child has ended, or that this side ends it; cancels `call_on_exit`."""
        assert self.process is not None
        self._cancel_exit_status_timer()
        self._on_exit = None
        code = self.process.get_returncode()
        if code is None or self._ended_by_us:
            return "the child was still running and was ended"
        return describe_exit(code)

    def expect_exit(self) -> None:
        """Its input has ended: terminate it unless it ends by itself in time."""
        self._set_timer(self.terminate)

    def terminate(self) -> None:
        """Send SIGTERM, and SIGKILL if the child has not ended in time."""
        if self.process is not None and self.process.get_returncode() is None:
            self._ended_by_us = True
            self.process.terminate()
            self._set_timer(self.kill)

    def _close_leftover_pipes(self) -> None:
        """Close pipes that are still open after the child has ended.

        Not while reading is paused: they may hold output of the child.
        """
        if self.session.read_backpressure.is_paused and not self._ended_by_us:
            self._set_timer(self._close_leftover_pipes)
        else:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL; if the child has ended, close its pipes."""
        self._cancel_timer()
        if self.process is None:
            return
        self._ended_by_us = True
        if self.process.get_returncode() is None:
            # Not `process.kill` or `close`: before Python 3.13 both collect the exit status, and
            # asyncio's child watcher, which then finds none, logs a warning.
            with suppress(ProcessLookupError):
                os.kill(self.process.get_pid(), signal.SIGKILL)
        else:
            self.process.close()  # closes its pipes

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
        self.exit_description = ""  # how the child has ended, unless this side ended it

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == EXTRA_CHILD_PROCESS:
            return self._child
        return self.exit_description or default if name == EXTRA_END_DESCRIPTION else default

    def on_pipes_closed(self) -> None:
        if self.exit_description:  # uvloop does not always report the end of output
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
    """Return a sentence for an exit status; negative values are signals."""
    if code >= 0:
        return f"the child ended with exit status {code}"
    known = {number.value: f" ({number.name})" for number in signal.Signals}
    return f"the child was ended by signal {-code}{known.get(-code, '')}"


async def start_process(command: tuple[str, ...], make: Callable[[], Session]) -> Session:
    """Start a child process and a session over its standard input and output.

    Its standard error is inherited. The session is closed when the child has ended. If cancelled,
    no child process is left.

    Args:
        command: Program and arguments.
        make: Creates the session.
    """
    loop = asyncio.get_running_loop()
    session = make()
    process, child = await loop.subprocess_exec(
        lambda: ChildProcess(session), *command, stdin=-1, stdout=-1, stderr=None
    )
    output, feed = process.get_pipe_transport(1), process.get_pipe_transport(0)
    child.attach(ChildTransport(session, output, feed, child))
    return session
