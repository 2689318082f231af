"""What `connect` and `serve` share: options, standard input and output, a recording."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import click

from polymux.aio import MinmuxSession, OmnistreamsSession, Session, StreamuxSession
from polymux.aio.hooks import Recording
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.frame_log import logged, verbose_option
from polymux.cli.support.output import json_line
from polymux.text.sanitize import visible

Command = TypeVar("Command", bound=Callable[..., object])

CHUNK = 65536
MOST_OF_A_LINE = 1 << 20  # octets; a longer line is cut
AHEAD = 8  # pieces of standard input read before they are sent


def live_options(command: Command) -> Command:
    """URL, --protocol, --record, -v and --json."""
    for add in (
        verbose_option,
        click.option("--json", "as_json", is_flag=True, help="What is received, as JSON lines."),
        click.option("--record", "record_to", help="Also write what passes to this capture."),
        click.option(
            "--protocol",
            required=True,
            shell_complete=protocol_names,
            help="NAME[:key=value,...], such as mplex.",
        ),
        click.argument("url"),
    ):
        command = add(command)
    return command


class Input:
    """Standard input piece by piece: chunks, or lines, with their ends if these are kept.

    It is read in a thread that nobody waits for: a terminal where nothing is typed keeps no
    command from ending.
    """

    def __init__(self, lines: bool = False, ends: bool = False) -> None:
        self._lines = lines
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(AHEAD)
        threading.Thread(target=self._read, daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._queue.get()) is not None:
            self._room.release()
            yield piece

    def _read(self) -> None:
        """Not through `sys.stdin`: a thread inside its lock would not let the interpreter end."""
        begun = b""  # of a line
        while True:
            try:
                data = os.read(sys.stdin.fileno(), CHUNK)
            except (OSError, ValueError, AttributeError):  # closed, or never there
                data = b""
            if self._lines:
                *whole, begun = (begun + data).split(b"\n")
                for line in whole:
                    self._put(line + b"\n" if self._ends else line.removesuffix(b"\r"))
                if begun and (not data or len(begun) > MOST_OF_A_LINE):
                    self._put(begun)
                    begun = b""
            elif data:
                self._put(data)
            if not data:
                self._tell(None)
                return

    def _put(self, piece: bytes) -> None:
        self._room.acquire()
        self._tell(piece)

    def _tell(self, piece: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is gone: nobody wants it any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)


async def pieces(texts: tuple[str, ...], lines: bool, ends: bool) -> AsyncIterator[bytes]:
    """What is to be sent: the texts of --send, or standard input."""
    for text in texts:
        yield text.encode()
    if not texts:
        async for piece in Input(lines, ends):
            yield piece


class Output:
    """How received octets are shown: as they are, as JSON, or escaped on a terminal.

    `apart`: each piece is a message or reply of its own and ends its line.
    """

    def __init__(self, as_json: bool) -> None:
        self.apart = False
        self._as_json = as_json
        self._terminal = sys.stdout.isatty()
        self._open = False  # a line on the terminal that has not ended

    def put(self, data: bytes, stream: str = "", name: str = "") -> None:
        if self._as_json:
            json_line({"stream": stream, "name": name, **as_text(data)})
        else:
            if self.apart and not data.endswith(b"\n"):
                data += b"\n"
            if self._terminal:
                sys.stdout.write(harmless(data))
                self._open = not data.endswith(b"\n") if data else self._open
            else:
                sys.stdout.flush()
                sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def end(self) -> None:
        """End the last line on a terminal, so that what comes next does not stand behind it."""
        if self._open:
            self._open = False
            sys.stdout.write("\n")
            sys.stdout.flush()


def as_text(data: bytes) -> dict[str, object]:
    """Octets in JSON: text where they are UTF-8, else hex."""
    try:
        return {"bytes": len(data), "text": data.decode()}
    except UnicodeDecodeError:
        return {"bytes": len(data), "hex": data.hex()}


def harmless(data: bytes) -> str:
    """Text that no terminal is harmed by; lines stay lines."""
    text = data.decode("utf-8", "backslashreplace")
    return "\n".join(visible(line) for line in text.split("\n"))


@contextmanager
def recording(path: str | None, verbose: bool) -> Iterator[Recording | None]:
    """A recorder that writes to a new capture, shows frames, does both, or none."""
    if path is None:
        yield logged(None) if verbose else None
        return
    from polymux.capture.pcapng.writer import PcapngWriter
    from polymux.record.session_recorder import Recorder

    if os.path.exists(path):
        raise click.UsageError(f"--record {path}: is there already; name a new file")
    with PcapngWriter(path) as sink:
        yield logged(Recorder(sink)) if verbose else Recorder(sink)


def shape(session: Session) -> str:
    """What streams of this session are: duplex, messages, requests or items."""
    if isinstance(session, OmnistreamsSession):
        return "messages"
    if isinstance(session, StreamuxSession):
        return "requests"
    return "items" if isinstance(session, MinmuxSession) else "duplex"
