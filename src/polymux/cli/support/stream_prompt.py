"""The prompt of `polymux connect`: several streams of one session, from the keyboard.

The main thread reads lines; a second thread runs the event loop with the session. So Ctrl-C reaches
the line that is being typed, and received data is printed while it is typed.
"""

from __future__ import annotations

import asyncio
import readline
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from polymux.aio import MinmuxSession, OmnistreamsSession, Session, Stream, StreamuxSession
from polymux.cli.support.line_editing import line_editing
from polymux.cli.support.peer_io import escape_terminal
from polymux.cli.support.queued_output import queue_of, queued_output, wait_for_room
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.text.sanitize import escape_hidden

Result = TypeVar("Result")
COMMANDS = {
    "/open": "[NAME]  open a stream; Minmux: [ID], odd to write, even to read",
    "/list": "the streams",
    "/switch": "STREAM  what is typed goes to this one",
    "/end": "end the stream: nothing more is sent on it",
    "/reset": "reset the stream, or cancel the request",
    "/quit": "end the session, like Ctrl-D",
    "/help": "this list",
}
MAX_NAME_SHOWN = 40  # characters
MAX_ENDED_STREAMS = 100  # that /list still shows
CLEAR_LINE = "\r\x1b[K"


class ConnectionLost(Exception):
    """The session ended while a line was read, or while a command waited for it."""


@dataclass
class PromptStream:
    """A stream, or a request of Streamux, of the prompt."""

    label: str
    name: str
    stream: Stream | None = None
    task: asyncio.Task[None] | None = None
    sends: bool = False
    state: str = "open"

    def is_over(self) -> bool:
        """Whether nothing more is sent or received; the stream itself is then let go."""
        if self.task is not None and not self.task.done():
            return False
        if self.stream is not None and not self.stream.state.over and self.state != "reset":
            return False
        self.stream = self.task = None
        return True

    def __str__(self) -> str:
        name = escape_hidden(self.name, MAX_NAME_SHOWN)
        return f"{self.label} {name}".strip()


class StreamPrompt:
    """Opens, lists, switches, ends and resets streams as they are typed, and sends to them.

    Args:
        connect: Makes the session; called in the thread of the loop.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Session]]) -> None:
        self._connect = connect
        self._loop = asyncio.new_event_loop()
        self._streams: dict[str, PromptStream] = {}
        self._current = ""
        self._session: Session | None = None
        self._requests = 0
        self._prompt = ""  # what is shown while a line is read; "" while none is
        self._waiting = False  # the main thread waits, for a line or for the loop
        self._leaving = False  # the main thread no longer waits for the session
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._main = threading.main_thread().ident or 0

    def run(self) -> None:
        """Read lines until Ctrl-D or /quit.

        Raises:
            PolymuxError: The peer cannot be reached, or the connection was lost.
        """
        with queued_output():
            self._run()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        previous = signal.signal(signal.SIGUSR1, self._on_lost)
        self._serving = self._loop.create_task(self._serve())
        thread = threading.Thread(target=self._run_loop, daemon=True)
        thread.start()
        try:
            self._ready.wait()
            if self._failure is None:
                with line_editing(self._words, "connect_history", " \t\n"):
                    self._read_lines()
        except ConnectionLost:
            pass
        finally:
            self._leaving = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end_session)
            thread.join(5)
            signal.signal(signal.SIGUSR1, previous)

    # The main thread

    def _on_lost(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:
            self._waiting = False
            raise ConnectionLost

    @contextmanager
    def _interrupted_if_lost(self) -> Iterator[None]:
        """Raise ConnectionLost in the block, or before it, when the session has ended."""
        self._waiting = True  # from now on, `_on_lost` raises
        try:
            if self._failure is not None:  # its signal may have come before
                raise ConnectionLost
            yield
        finally:
            self._waiting = False

    def _words(self) -> list[str]:
        return [*COMMANDS, *self._streams]

    def _read_lines(self) -> None:
        self._print("a line is sent to the stream of the prompt; /open opens one, /help says more")
        while self._failure is None:
            try:
                line = self._read_line()
            except EOFError:
                sys.stdout.write("\n")
                return
            except KeyboardInterrupt:  # drops what was typed
                sys.stdout.write("^C\n")
                continue
            try:
                if line.strip() == "/quit":
                    return
                self._run_line(line)
            except KeyboardInterrupt:
                self._print("interrupted")
            except (PolymuxError, ValueError) as problem:
                self._print(f"polymux: {escape_hidden(str(problem))}")

    def _read_line(self) -> str:
        output = queue_of(sys.stdout)
        with self._interrupted_if_lost():
            if output is not None:
                output.wait_written()  # the prompt, which is not queued, comes after it
            self._prompt = f"{self._current or 'polymux'}> "
            try:
                # What is printed from now on shows the prompt again, perhaps before `input` does.
                return input(f"\x01{CLEAR_LINE}\x02{self._prompt}")
            finally:
                self._prompt = ""

    def _run_line(self, line: str) -> None:
        word, _, argument = line.strip().partition(" ")
        if word == "/open":
            self._call(self._open(argument.strip()))
        elif word == "/list":
            self._list()
        elif word == "/switch":
            if argument.strip() not in self._streams:
                raise ValueError(f"no stream {argument.strip()!r}; /list shows them")
            self._current = argument.strip()
        elif word == "/end":
            self._call(self._end(self._chosen()))
        elif word == "/reset":
            self._call(self._reset(self._chosen()))
        elif word.startswith("/"):
            for name, text in COMMANDS.items():
                self._print(f"{name:8} {text}")
        elif line or self._current:
            self._call(self._send(line))

    def _list(self) -> None:
        for entry in list(self._streams.values()):
            mark = "*" if entry.label == self._current else " "
            self._print(f"{mark} {entry}  {entry.state}")
        if not self._streams:
            self._print("no streams yet")

    def _chosen(self) -> PromptStream:
        if self._current not in self._streams:
            raise ValueError("no stream is chosen; /open opens one, /switch chooses one")
        return self._streams[self._current]

    def _call(self, work: Coroutine[object, object, Result]) -> Result:
        """Run something in the loop, and wait for it; Ctrl-C cancels it."""
        future: Future[Result] | None = None
        try:
            with self._interrupted_if_lost():
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
                return future.result()
        except KeyboardInterrupt:
            if future is not None:
                future.cancel()
            raise
        except RuntimeError:
            if future is None:  # the loop is closed
                raise ConnectionLost from None
            raise
        finally:
            if future is None:
                work.close()

    # Both threads

    def _print(self, text: str) -> None:
        """Print lines above the line that is being typed."""
        typed = f"{self._prompt}{readline.get_line_buffer()}" if self._prompt else ""
        clear = CLEAR_LINE if typed else ""
        sys.stdout.write(f"{clear}{text}\n{typed}")
        sys.stdout.flush()

    # The thread of the loop

    def _run_loop(self) -> None:
        assert self._serving is not None  # created before this thread
        # Ctrl-C is for the line that is typed. A child of `exec:`, which is in the same process
        # group, inherits the mask of this thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serving)
        except BaseException as problem:  # raised by `run`, in the main thread
            self._failure = problem
        finally:
            self._ready.set()
            self._loop.close()
            if self._failure is not None and not self._leaving:
                signal.pthread_kill(self._main, signal.SIGUSR1)

    def _end_session(self) -> None:
        if self._session is None and self._serving is not None:  # it still connects
            self._serving.cancel()
        self._stop.set()

    async def _serve(self) -> None:
        async with self._connect() as session:
            self._session = session
            self._ready.set()
            tasks = [asyncio.create_task(session.wait_closed())]
            if not isinstance(session, StreamuxSession | MinmuxSession):
                tasks.append(asyncio.create_task(self._accept(session)))
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait([tasks[0], stop], return_when="FIRST_COMPLETED")
            stopped = self._stop.is_set()
            for task in (*tasks, stop, *(entry.task for entry in self._streams.values())):
                if task is not None:
                    task.cancel()
            if not stopped:
                raise session.failure or SessionClosed("the peer has closed the connection")

    async def _accept(self, session: Session) -> None:
        """Show every stream that the peer opens, and what it carries."""
        with suppress(PolymuxError):
            async for stream in session.incoming:
                entry = self._add(stream, sends=not isinstance(session, OmnistreamsSession))
                self._print(f"{entry} opened by the peer")

    def _add(self, stream: Stream, sends: bool, receives: bool = True) -> PromptStream:
        entry = PromptStream(stream.state.label(), stream.name, stream, sends=sends)
        self._list_entry(entry)
        if receives:
            entry.task = asyncio.get_running_loop().create_task(self._show(entry, stream))
        return entry

    def _list_entry(self, entry: PromptStream) -> None:
        """List a new entry, and forget the oldest of those that are over if they are many."""
        self._streams.pop(entry.label, None)
        over = [former.label for former in self._streams.values() if former.is_over()]
        for label in over[: max(0, len(over) - MAX_ENDED_STREAMS)]:
            del self._streams[label]
            if self._current == label:
                self._current = ""
        self._streams[entry.label] = entry

    async def _show(self, entry: PromptStream, stream: Stream) -> None:
        """Print what a stream receives."""
        try:
            async for piece in stream:
                for line in escape_terminal(piece).removesuffix("\n").split("\n"):
                    self._print(f"{entry}: {line}")
                await wait_for_room()
            entry.state = "ended by the peer"
        except PolymuxError as problem:
            entry.state = escape_hidden(str(problem))
        self._print(f"{entry} {entry.state}")

    async def _open(self, argument: str) -> None:
        session = self._session
        assert session is not None  # set before the first line is read
        if isinstance(session, StreamuxSession):
            raise ValueError("Streamux: each line is a request, with a stream of its own")
        if isinstance(session, MinmuxSession):
            if not argument.isdecimal():
                raise ValueError("Minmux: /open ID, odd to write and even to read")
            number = int(argument)
            if number % 2 == 0:
                entry = self._add(session.receiver(number), sends=False)
            else:
                entry = self._add(session.sender(number), sends=True, receives=False)
        else:
            stream = await session.open(argument)
            receives = not isinstance(session, OmnistreamsSession)
            entry = self._add(stream, sends=True, receives=receives)
        if entry.sends:
            self._current = entry.label
        self._print(f"{entry} open")

    async def _send(self, line: str) -> None:
        session = self._session
        assert session is not None
        data = line.encode("utf-8", "surrogateescape")
        if isinstance(session, StreamuxSession):
            self._requests += 1
            entry = PromptStream(f"r{self._requests}", "", sends=False, state="waiting")
            entry.task = asyncio.get_running_loop().create_task(self._request(entry, data))
            self._list_entry(entry)
            self._current = entry.label
            return
        entry = self._chosen()
        if not entry.sends:
            raise ValueError(f"{entry} is only read; /switch to another, or /open one")
        if entry.stream is None:
            raise ValueError(f"{entry} is over: {entry.state}; /switch to another, or /open one")
        keeps_lines = not isinstance(session, OmnistreamsSession)
        await entry.stream.send(data + b"\n" if keeps_lines else data)

    async def _request(self, entry: PromptStream, data: bytes) -> None:
        assert isinstance(self._session, StreamuxSession)  # the caller checked it
        try:
            reply = await self._session.request(data)
            await wait_for_room()
            for line in escape_terminal(reply).removesuffix("\n").split("\n"):
                self._print(f"{entry}: {line}")
            entry.state = "answered"
        except asyncio.CancelledError:
            entry.state = "cancelled"
            raise
        except PolymuxError as problem:
            entry.state = escape_hidden(str(problem))
            self._print(f"{entry} {entry.state}")

    async def _end(self, entry: PromptStream) -> None:
        if not entry.sends:
            raise ValueError(f"{entry} is only read; /reset stops it")
        if entry.stream is None:
            raise ValueError(f"{entry} is over: {entry.state}")
        await entry.stream.end()
        entry.state = "ended"

    async def _reset(self, entry: PromptStream) -> None:
        if entry.stream is None and entry.task is None:
            raise ValueError(f"{entry} is over: {entry.state}")
        if entry.stream is not None:
            entry.stream.abort_with_reason("reset at the prompt")
        if entry.task is not None:
            entry.task.cancel()
        entry.state = "reset" if entry.stream is not None else "cancelled"
