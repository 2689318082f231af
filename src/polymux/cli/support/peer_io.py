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
from polymux.aio.hooks import RecorderFactory
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.frame_log import verbose_option, with_frame_log
from polymux.cli.support.output import json_line
from polymux.text.sanitize import escape_hidden

Command = TypeVar("Command", bound=Callable[..., object])

READ_SIZE = 65536
MAX_LINE_BYTES = 1 << 20  # bytes; a longer line is cut
MAX_QUEUED_PIECES = 8  # pieces of standard input read before they are sent


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


class StdinReader:
    """Standard input piece by piece: chunks, or lines, with their ends if these are kept.

    It is read in a thread that nobody waits for: a terminal where nothing is typed keeps no
    command from ending.
    """

    def __init__(self, lines: bool = False, keep_line_ends: bool = False) -> None:
        self._lines = lines
        self._keep_line_ends = keep_line_ends
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._free_slots = threading.Semaphore(MAX_QUEUED_PIECES)
        threading.Thread(target=self._read, daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._queue.get()) is not None:
            self._free_slots.release()
            yield piece

    def _read(self) -> None:
        """Not through `sys.stdin`: a thread inside its lock would not let the interpreter end."""
        begun = b""  # of a line
        while True:
            try:
                data = os.read(sys.stdin.fileno(), READ_SIZE)
            except (OSError, ValueError, AttributeError):  # closed, or never there
                data = b""
            if self._lines:
                *whole, begun = (begun + data).split(b"\n")
                for line in whole:
                    self._put_when_free(
                        line + b"\n" if self._keep_line_ends else line.removesuffix(b"\r")
                    )
                if begun and (not data or len(begun) > MAX_LINE_BYTES):
                    self._put_when_free(begun)
                    begun = b""
            elif data:
                self._put_when_free(data)
            if not data:
                self._enqueue(None)
                return

    def _put_when_free(self, piece: bytes) -> None:
        self._free_slots.acquire()
        self._enqueue(piece)

    def _enqueue(self, piece: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is gone: nobody wants it any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)


async def input_pieces(
    texts: tuple[str, ...], lines: bool, keep_line_ends: bool
) -> AsyncIterator[bytes]:
    """What is to be sent: the texts of --send, or standard input."""
    for text in texts:
        yield text.encode()
    if not texts:
        async for piece in StdinReader(lines, keep_line_ends):
            yield piece


class ReceivedDataPrinter:
    """How received bytes are shown: as they are, as JSON, or escaped on a terminal.

    `apart`: each piece is a message or reply of its own and ends its line.
    """

    def __init__(self, as_json: bool) -> None:
        self.one_per_line = False
        self._as_json = as_json
        self._terminal = sys.stdout.isatty()
        self._line_open = False  # a line on the terminal that has not ended

    def write(self, data: bytes, stream: str = "", name: str = "") -> None:
        if self._as_json:
            json_line({"stream": stream, "name": name, **data_json(data)})
        else:
            if self.one_per_line and not data.endswith(b"\n"):
                data += b"\n"
            if self._terminal:
                sys.stdout.write(escape_terminal(data))
                self._line_open = not data.endswith(b"\n") if data else self._line_open
            else:
                sys.stdout.flush()
                sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def end_line(self) -> None:
        """End the last line on a terminal, so that what comes next does not stand behind it."""
        if self._line_open:
            self._line_open = False
            sys.stdout.write("\n")
            sys.stdout.flush()


def data_json(data: bytes) -> dict[str, object]:
    """Bytes in JSON: text where they are UTF-8, else hex."""
    try:
        return {"bytes": len(data), "text": data.decode()}
    except UnicodeDecodeError:
        return {"bytes": len(data), "hex": data.hex()}


def escape_terminal(data: bytes) -> str:
    """Text that no terminal is harmed by; lines stay lines."""
    text = data.decode("utf-8", "backslashreplace")
    return "\n".join(escape_hidden(line) for line in text.split("\n"))


@contextmanager
def open_recorder(path: str | None, verbose: bool) -> Iterator[RecorderFactory | None]:
    """A recorder that writes to a new capture, shows frames, does both, or none."""
    if path is None:
        yield with_frame_log(None) if verbose else None
        return
    from polymux.capture.pcapng.writer import PcapngWriter
    from polymux.record.session_recorder import Recorder

    if os.path.exists(path):
        raise click.UsageError(f"--record {path}: is there already; name a new file")
    with PcapngWriter(path) as sink:
        yield with_frame_log(Recorder(sink)) if verbose else Recorder(sink)


def stream_shape(session: Session) -> str:
    """What streams of this session are: duplex, messages, requests or items."""
    if isinstance(session, OmnistreamsSession):
        return "messages"
    if isinstance(session, StreamuxSession):
        return "requests"
    return "items" if isinstance(session, MinmuxSession) else "duplex"
