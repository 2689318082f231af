"""Sessions over a child's standard input and output (`exec:`)."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from polymux.aio.session.session import CHILD, ENDED, Session
from polymux.aio.transports.pipe_pair import DuplexPipe

# Seconds until we learn how a child has ended whose pipes have, or that has broken the protocol.
VERDICT = 0.5
GRACE = 1.0  # seconds for a child to end by itself, then to end when asked, then it is killed


class Child(asyncio.SubprocessProtocol):
    """A child process; its output goes to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.process: asyncio.SubprocessTransport | None = None
        self.pipes: ChildPipes | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._lost: list[tuple[int, Exception | None]] = []  # pipes; of which the session is told
        self._patience: asyncio.TimerHandle | None = None  # once it is known how the child ended
        self._ended = False  # by us
        self._awaited: Callable[[], None] | None = None  # what to do when it has; drops its output
        self._early: list[Callable[[], None]] = []  # what happened before the session was there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.process = cast(asyncio.SubprocessTransport, transport)

    def attach(self, pipes: "ChildPipes") -> None:
        """Begin the session, with what has happened already."""
        self.pipes = pipes
        self.session.connection_made(pipes)
        for happening in self._early:
            happening()
        self._early.clear()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if self.pipes is None:
            self._early.append(lambda: self.pipe_data_received(fd, data))
        elif fd == 1 and isinstance(data, bytes) and self._awaited is None:
            self.session.data_received(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if self.pipes is None:
            self._early.append(lambda: self.pipe_connection_lost(fd, exc))
            return
        self._lost.append((fd, exc))
        if self._awaited is not None:
            return
        if self.pipes.ended or self.session._ending.begun or self._ended:
            self._tell_lost()
        elif self._patience is None:
            self._patience = self.session.loop.call_later(VERDICT, self._tell_lost)

    def _tell_lost(self) -> None:
        """Tell the session of pipes that have ended."""
        assert self.pipes is not None
        self._stop_patience()
        lost, self._lost = self._lost, []
        for fd, exc in lost:
            if fd == 1:
                self.pipes.input_ended()
            else:
                known = self.pipes.ended and exc is not None
                self.pipes.output_broke(ChildProcessError(self.pipes.ended) if known else exc)

    def process_exited(self) -> None:
        assert self.process is not None
        if self.pipes is None:
            self._early.append(self.process_exited)
            return
        code = self.process.get_returncode()
        if code is not None and not self._ended and not self.session._ending.begun:
            self.pipes.ended = verdict(code)
            if code:
                self.pipes.error = ChildProcessError(self.pipes.ended)
        self._go_on()
        self._tell_lost()
        # Another process may have inherited its pipes: they are not waited for without end.
        self._set_clock(self._stop_waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        """The child has ended and its pipes are closed."""
        self._stop_clock()
        if self.process is not None:
            self.process.close()
        if self.pipes is None:
            self._early.append(lambda: self.connection_lost(exc))
        else:
            self._go_on()
            self.pipes.lose()

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()

    # --- its end

    def await_end(self, act: Callable[[], None]) -> None:
        """Call `act` when the child has ended, or after a short while; until then its output is
        read and dropped, because a child that cannot write does not end."""
        assert self.process is not None
        self._stop_patience()
        self._awaited = act
        if self.process.get_returncode() is None:
            self._patience = self.session.loop.call_later(VERDICT, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Do what was to be done when the child has ended."""
        if self._awaited is not None:
            self._awaited()

    def fate(self) -> str:
        """How the child has ended, or that this side ends it now; it is awaited no longer."""
        assert self.process is not None
        self._stop_patience()
        self._awaited = None
        code = self.process.get_returncode()
        if code is None or self._ended:
            return "the child was still running and was ended"
        return verdict(code)

    def dismiss(self) -> None:
        """Its input has ended: it should end too."""
        self._set_clock(self.terminate)

    def terminate(self) -> None:
        if self.process is not None and self.process.get_returncode() is None:
            self._ended = True
            self.process.terminate()
            self._set_clock(self.kill)

    def _stop_waiting(self) -> None:
        """Close pipes that are still open after the child has ended; not while this side pauses
        reading, because what the child wrote may still be in them."""
        if self.session._pacing.is_idle and not self._ended:
            self._set_clock(self._stop_waiting)
        else:
            self.kill()

    def kill(self) -> None:
        self._stop_clock()
        if self.process is None:
            return
        self._ended = True
        if self.process.get_returncode() is None:
            # Not by `process.kill`, nor by `close`: before Python 3.13 both ask for the exit
            # status, and asyncio's own watcher, which then finds none, complains in the log.
            with suppress(ProcessLookupError):
                os.kill(self.process.get_pid(), signal.SIGKILL)
        else:
            self.process.close()  # and with it the pipes

    def _set_clock(self, act: Callable[[], None]) -> None:
        self._stop_clock()
        self._clock = self.session.loop.call_later(GRACE, act)

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


class ChildPipes(DuplexPipe):
    """The pipes to a child, which ends with them."""

    def __init__(self, session: Session, reader: Any, writer: Any, child: Child) -> None:
        super().__init__(session, reader, writer)
        self._child = child
        self.ended = ""  # how the child has, if not by us

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == CHILD:
            return self._child
        return self.ended or default if name == ENDED else default

    def lose(self) -> None:
        if self.ended:  # uvloop does not always say that its output has
            self.input_ended()
        super().lose()

    def close(self) -> None:
        if not self._closing:
            super().close()
            self._child.dismiss()

    def abort(self) -> None:
        super().abort()
        self._child.kill()


def verdict(code: int) -> str:
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
        lambda: Child(session), *command, stdin=-1, stdout=-1, stderr=None
    )
    output, feed = process.get_pipe_transport(1), process.get_pipe_transport(0)
    child.attach(ChildPipes(session, output, feed, child))
    return session
