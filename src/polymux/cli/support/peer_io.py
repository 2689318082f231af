"""What `connect` and `serve` share: options, standard input, printing of data, recording."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import click

from polymux.aio import MinmuxSession, OmnistreamsSession, Session, StreamuxSession
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.frame_log import verbose_option, with_frame_log
from polymux.cli.support.output import json_line, plural, warn
from polymux.core.limits import Limits
from polymux.live.hooks import RecorderFactory
from polymux.live.one_of import ALONE, OneOf
from polymux.live.transports.origin_policy import OriginPolicy
from polymux.live.urls import parse_url
from polymux.record.audit_log import MAX_BURST_EVENTS, MAX_EVENTS_PER_SECOND, AuditLog
from polymux.text.sanitize import escape_hidden

if TYPE_CHECKING:
    from polymux.capture.pcapng.rotation import RotatingWriter

Command = TypeVar("Command", bound=Callable[..., object])

READ_SIZE = 65536  # bytes
MAX_LINE_BYTES = 1 << 20  # bytes; a longer line is split
MAX_QUEUED_PIECES = 8  # pieces of standard input that are read ahead
FOREGROUND_POLL_SECONDS = 0.2  # between two attempts to read a terminal in the background


backlog_option = click.option(
    "--backlog",
    type=click.IntRange(1),
    default=Limits().listen_backlog,
    show_default=True,
    help="Connections that the kernel holds until they are accepted.",
)


audit_option = click.option(
    "--audit",
    help="Append connections, refusals, broken rules and limits to this file, as JSON lines.",
)


@contextmanager
def open_audit_log(path: str | None, one_of: OneOf = ALONE) -> Iterator[AuditLog | None]:
    """Yield the log of --audit; None without it. Warn at the end if events are missing.

    Args:
        path: The file.
        one_of: Of several processes that write there, each writes its part of the events at most.
    """
    if path is None:
        yield None
        return
    with AuditLog(
        path,
        rate=MAX_EVENTS_PER_SECOND / one_of.count,
        burst=MAX_BURST_EVENTS / one_of.count,
        process=os.getpid() if one_of.count > 1 else None,
    ) as audit:
        yield audit
        if audit.suppressed:
            warn(f"--audit {path}: {plural(audit.suppressed, 'event')} not written")


origin_option = click.option(
    "--origin",
    "origins",
    multiple=True,
    help="Web pages that may connect over ws:// and wss://, such as https://example.com, besides "
    "those of the same host and port; repeatable. null: pages without one; *: all.",
)


def check_origins(origins: tuple[str, ...], urls: Iterable[str]) -> None:
    """Refuse --origin if no URL is a WebSocket, or if it is malformed.

    Raises:
        click.UsageError: The option has no effect or is malformed.
    """
    if not origins:
        return
    sockets = [url for url in urls if url.startswith(("ws:", "wss:"))]
    if not sockets:
        raise click.UsageError(
            "--origin has no effect: web pages connect over ws:// and wss:// only"
        )
    try:
        OriginPolicy(parse_url(sockets[0]), origins)
    except ValueError as problem:
        raise click.UsageError(f"--origin: {problem}") from None


per_host_option = click.option(
    "--per-host",
    type=click.IntRange(0),
    default=None,
    help="Most sessions from one address; 0 for no limit (default: three quarters of --clients).",
)


def connection_options(command: Command) -> Command:
    """Add --backlog, --clients and --per-host."""
    clients = click.option(
        "--clients",
        type=click.IntRange(1),
        default=Limits().max_sessions,
        show_default=True,
        help="Most sessions at a time.",
    )
    return backlog_option(clients(per_host_option(command)))


def connection_limits(backlog: int, clients: int, per_host: int | None) -> Limits:
    """Return the limits of a server that `connection_options` describe."""
    return Limits(
        listen_backlog=backlog,
        max_sessions=clients,
        max_sessions_per_address=-(-3 * clients // 4) if per_host is None else per_host,
    )


def live_options(command: Command) -> Command:
    """Add URL, --protocol, --record, --keep-secrets, --json and -v."""
    for add in (
        verbose_option,
        click.option("--json", "as_json", is_flag=True, help="Print received data as JSON lines."),
        click.option(
            "--keep-secrets",
            is_flag=True,
            help="Write the TLS secrets of the session to the capture of --record, so that other "
            "captures of it can be opened.",
        ),
        click.option(
            "--record", "record_to", help="Also record the session to this new capture (pcapng)."
        ),
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
    """Reads standard input as chunks or as lines, with or without their line ends.

    A daemon thread reads, and is never joined: the command can end while the thread still waits for
    input from a terminal.
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
        """Read until the end of input.

        Reads the descriptor, not `sys.stdin`: its lock, held by this thread, would keep the
        interpreter from exiting.
        """
        partial_line = b""
        while True:
            data = self._read_piece()
            if self._lines:
                *complete_lines, partial_line = (partial_line + data).split(b"\n")
                for line in complete_lines:
                    self._put_when_free(
                        line + b"\n" if self._keep_line_ends else line.removesuffix(b"\r")
                    )
                if partial_line and (not data or len(partial_line) > MAX_LINE_BYTES):
                    self._put_when_free(partial_line)
                    partial_line = b""
            elif data:
                self._put_when_free(data)
            if not data:
                self._enqueue(None)
                return

    def _read_piece(self) -> bytes:
        """Read once; nothing at the end. Where SIGTTIN is ignored, wait for the foreground."""
        failed_in_foreground = False  # once, it may have come there just after it failed
        while True:
            try:
                return os.read(sys.stdin.fileno(), READ_SIZE)
            except (OSError, ValueError, AttributeError) as problem:  # closed, or there is none
                if getattr(problem, "errno", 0) != errno.EIO or failed_in_foreground:
                    return b""
            failed_in_foreground = not _in_background()
            time.sleep(FOREGROUND_POLL_SECONDS)

    def _put_when_free(self, piece: bytes) -> None:
        self._free_slots.acquire()
        self._enqueue(piece)

    def _enqueue(self, piece: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the command is ending
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)


def _in_background() -> bool:
    """Whether standard input is a terminal with another process group in the foreground."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no terminal, or it is gone
        return False


async def input_pieces(
    texts: tuple[str, ...], lines: bool, keep_line_ends: bool
) -> AsyncIterator[bytes]:
    """Yield what to send: the texts of --send if there are any, else standard input."""
    for text in texts:
        yield text.encode()
    if not texts:
        async for piece in StdinReader(lines, keep_line_ends):
            yield piece


class ReceivedDataPrinter:
    """Prints received bytes: unchanged in a pipe, escaped on a terminal, or as JSON lines.

    With `one_per_line` every piece is a message or reply and is printed on a line of its own.
    """

    def __init__(self, as_json: bool) -> None:
        self.one_per_line = False
        self._as_json = as_json
        self._terminal = sys.stdout.isatty()
        self._line_open = False  # the last line on the terminal has not ended

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
        """End an unfinished last line on a terminal, so that the next output starts a new one."""
        if self._line_open:
            self._line_open = False
            sys.stdout.write("\n")
            sys.stdout.flush()


def data_json(data: bytes) -> dict[str, object]:
    """Represent bytes in JSON: as text if they are UTF-8, else in hex."""
    try:
        return {"bytes": len(data), "text": data.decode()}
    except UnicodeDecodeError:
        return {"bytes": len(data), "hex": data.hex()}


def escape_terminal(data: bytes) -> str:
    """Decode bytes for a terminal, with control characters escaped except line ends."""
    text = data.decode("utf-8", "backslashreplace")
    return "\n".join(escape_hidden(line) for line in text.split("\n"))


@contextmanager
def open_recorder(
    path: str | None,
    verbose: bool,
    note: str = "",
    secret_context: ssl.SSLContext | None = None,
    one_of: OneOf = ALONE,
) -> Iterator[RecorderFactory | None]:
    """Yield a recorder that writes to a new capture, logs frames, or both; None for neither.

    Args:
        path: The capture; None for none.
        verbose: Log frames.
        note: Written into the capture.
        secret_context: The secrets of this TLS context are kept in the capture.
        one_of: Each of several processes writes a capture of its own, with its number in the name.

    Raises:
        click.UsageError: The capture exists already.
    """
    if path is None:
        yield with_frame_log(None) if verbose else None
        return
    from polymux.capture.pcapng.rotation import RotatingWriter
    from polymux.capture.pcapng.writer import PcapngWriter
    from polymux.record.process_files import path_of_process
    from polymux.record.secret_log import SecretLog
    from polymux.record.session_recorder import Recorder

    sink: PcapngWriter | RotatingWriter
    with ExitStack() as stack:
        secrets = None
        if secret_context is not None:
            secrets = SecretLog(secret_context)
            stack.callback(secrets.close)
        if one_of.count > 1:
            publish_partial_captures(path)
            sink = RotatingWriter(path_of_process(path, one_of), numbered=True)
            stack.callback(close_part, sink, one_of)
        elif os.path.exists(path):
            raise click.UsageError(f"--record {path}: is there already; name a new file")
        else:
            sink = stack.enter_context(PcapngWriter(path))
        recorder = Recorder(sink, note, secrets, one_of=one_of)
        yield with_frame_log(recorder) if verbose else recorder


def publish_partial_captures(path: str) -> None:
    """Publish the last files of an earlier recorder that was killed before it could do so."""
    from polymux.record.crash_recovery import recover_partial_captures

    recovered = recover_partial_captures(path)
    for name in recovered.published:
        warn(f"{name}: left behind by a recorder that was killed, published now")
    for problem in recovered.problems:
        warn(f"warning: {problem}")


def close_part(writer: RotatingWriter, one_of: OneOf) -> None:
    """Close the writer of one of several processes. Only the first leaves a file without packets.

    Raises:
        CaptureError: The last file cannot be published.
    """
    if one_of.index and not writer.packets and not writer.loss.packets:
        writer.discard()
    else:
        writer.close()


def secrets_context(
    keep: bool, record_to: str | None, url: str, context: ssl.SSLContext | None
) -> ssl.SSLContext | None:
    """The context whose secrets --keep-secrets keeps; None without it.

    Raises:
        click.UsageError: There is no recording, or no TLS.
    """
    if not keep:
        return None
    if record_to is None:
        raise click.UsageError("--keep-secrets: name the capture they are kept in with --record")
    if not url.startswith(("tls:", "wss:")):
        raise click.UsageError(f"--keep-secrets: {url} is not inside TLS")
    return context


def stream_shape(session: Session) -> str:
    """Return the kind of the session's streams: duplex, messages, requests or items."""
    if isinstance(session, OmnistreamsSession):
        return "messages"
    if isinstance(session, StreamuxSession):
        return "requests"
    return "items" if isinstance(session, MinmuxSession) else "duplex"
