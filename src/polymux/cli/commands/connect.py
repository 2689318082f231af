"""`polymux connect`: open one stream, send standard input, print what is received."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import click

from polymux.aio import (
    MinmuxSession,
    OmnistreamsSession,
    Session,
    Stream,
    StreamuxSession,
    Unreachable,
)
from polymux.aio import connect as dial
from polymux.cli.support.peer_io import (
    ReceivedDataPrinter,
    input_pieces,
    live_options,
    open_recorder,
    secrets_context,
    stream_shape,
)
from polymux.cli.support.queued_output import queued_output, wait_for_room
from polymux.cli.support.tls_options import (
    dialing_context,
    dialing_tls_options,
    read_token,
    token_option,
    unverified_note,
    with_options,
)
from polymux.cli.support.waiting import WaitReporter
from polymux.core.errors import SessionClosed


@click.command(
    epilog="Example: echo hello | polymux connect tcp://127.0.0.1:9000 --protocol mplex",
    no_args_is_help=True,
)
@live_options
@click.option("--name", default="", help="The stream's name, or its metadata (omnistreams).")
@click.option("--send", "texts", multiple=True, help="Send this text instead of standard input.")
@click.option(
    "--lines", is_flag=True,
    help="Send each line as soon as it is read: as a message or request of its own, or, with its "
    "line end, on a byte stream. Received messages are printed one per line.",
)  # fmt: skip
@click.option(
    "--accept",
    is_flag=True,
    help="Accept the first stream that the peer opens instead of opening one.",
)
@click.option(
    "--stream", "number", type=click.IntRange(0, 2**64 - 1), default=1, show_default=True,
    help="Minmux: the id of the stream; odd ids are written, even ids are read.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds to connect, and to wait for each reply (Streamux). If given explicitly, also "
    "seconds to wait for the peer's first bytes after everything has been sent.",
)  # fmt: skip
@click.option(
    "--wait", type=click.FloatRange(0), default=0.0, show_default=True,
    help="Seconds to retry while the peer is not listening yet.",
)  # fmt: skip
@dialing_tls_options
@token_option("File with the token that the server asks for, mode 0600.")
@click.pass_context
def connect(
    context: click.Context,
    url: str,
    protocol: str,
    record_to: str | None,
    keep_secrets: bool,
    as_json: bool,
    verbose: bool,
    name: str,
    texts: tuple[str, ...],
    lines: bool,
    accept: bool,
    number: int,
    timeout: float,
    wait: float,
    ca: str | None,
    server_name: str | None,
    cert: str | None,
    key: str | None,
    insecure: bool,
    token_file: str | None,
) -> None:
    """Connect to URL, open one stream, send standard input and print what is received.

    URL is tcp://, tls://, ws://, wss://, unix://, or exec:COMMAND for a child process that uses its
    standard input and output as the connection. mplex and Nerdbank streams are bidirectional: the
    end of the input ends the sending half, and the command ends when the peer ends the other.
    Omnistreams and Minmux streams are unidirectional. With Streamux the input is one request (with
    --lines, each line is one), and each reply is printed.

    On a terminal, without --name, --send, --lines, --accept, --stream and --json, it is a prompt
    for several streams: /open, /list, /switch, /end and /reset them; other lines are sent. /help
    says more.

    What the command waits for is printed to standard error: at once on a terminal, otherwise after
    a second. Exit code 4: the peer could not be reached, disconnected, aborted the stream or sent
    nothing in time.
    """
    if url.startswith("stdio:"):
        raise click.UsageError(
            "stdio: this command uses its own input and output; use exec:COMMAND"
        )
    token = read_token(token_file)
    trusted = dialing_context(url, ca, server_name, cert, key, insecure)
    secret_source = secrets_context(keep_secrets, record_to, url, trusted)
    explicit = context.get_parameter_source("timeout") is not click.core.ParameterSource.DEFAULT
    client = StreamClient(name, texts, lines, accept, number, timeout, as_json)

    @asynccontextmanager
    async def connected() -> AsyncIterator[Session]:
        note = unverified_note(insecure)
        with open_recorder(record_to, verbose, note, secret_source) as recorder:
            async with dial(
                url, protocol=protocol, tls=trusted, server_hostname=server_name,
                timeout=timeout, wait=wait, recorder=recorder, token=token,
            ) as session:  # fmt: skip
                yield session

    async def run() -> None:
        async with connected() as session:
            reporter = WaitReporter(session, url, protocol, timeout if explicit else None)
            try:
                await reporter.run(client.run(session, reporter))
            finally:
                client.output.end_line()

    log = logging.getLogger("polymux.aio")
    level = log.level
    log.setLevel(logging.ERROR)  # an error of the one session ends this command anyway
    try:
        if is_interactive(context):
            from polymux.cli.support.stream_prompt import StreamPrompt

            StreamPrompt(connected).run()
            return
        with queued_output(lossless=True):
            asyncio.run(run())
    except Unreachable as problem:
        raise Unreachable(with_options(str(problem))) from None
    except SessionClosed as problem:
        raise type(problem)(with_options(str(problem))) from None
    finally:
        log.setLevel(level)


def is_interactive(context: click.Context) -> bool:
    """Whether a prompt is shown: both ends are a terminal, and no option says what to send."""
    given = any(
        context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        for name in ("name", "texts", "lines", "accept", "number", "as_json")
    )
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    return terminal and not given


class StreamClient:
    """Sends the input on one stream and prints what is received, for every kind of session."""

    def __init__(
        self,
        name: str,
        texts: tuple[str, ...],
        lines: bool,
        accept: bool,
        stream_id: int,
        timeout: float,
        as_json: bool,
    ) -> None:
        self.name = name
        self.texts = texts
        self.lines = lines
        self.accept = accept
        self.stream_id = stream_id
        self.timeout = timeout
        self.output = ReceivedDataPrinter(as_json)
        self.wait_reporter: WaitReporter | None = None

    async def run(self, session: Session, wait_reporter: WaitReporter) -> None:
        """Run until the stream has ended.

        Raises:
            click.UsageError: An option does not apply to the session's protocol.
        """
        self.wait_reporter = wait_reporter
        kind = stream_shape(session)
        self.output.one_per_line = kind in ("messages", "requests") and (
            self.lines or len(self.texts) > 1
        )
        if self.name and kind in ("requests", "items"):
            raise click.UsageError(
                f"--name: streams have no names in {session.endpoint.protocol.name}"
            )
        if self.accept and kind in ("requests", "items"):
            raise click.UsageError("--accept: use `polymux serve`, or an even --stream in Minmux")
        if isinstance(session, StreamuxSession):
            await self.run_requests(session)
        elif isinstance(session, MinmuxSession):
            await self.run_items(session)
        elif isinstance(session, OmnistreamsSession):
            await self.run_messages(session)
        else:
            await self.run_duplex(session)

    async def run_duplex(self, session: Session) -> None:
        """Send and receive concurrently until both halves have ended."""
        if self.accept:
            self.waiting_for("the peer to open a stream")
            stream = await session.accept()
        else:
            self.waiting_for("the peer to accept the stream")
            stream = await session.open(self.name)
        sending = asyncio.create_task(self.send(stream, keep_line_ends=True))
        try:
            await self.print_received(stream)
            await sending
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([sending])

    def waiting_for(self, what: str) -> None:
        """Report that the command now waits for `what`."""
        if self.wait_reporter is not None:
            self.wait_reporter.waiting_for(what)

    async def send(self, stream: Stream, keep_line_ends: bool = False) -> None:
        """Send the whole input and end the stream."""
        source = input_pieces(self.texts, self.lines, keep_line_ends)
        if self.wait_reporter is not None and not self.texts:
            self.wait_reporter.reading_input()
        async for piece in source:
            await stream.send(piece)
        await stream.end()
        self.waiting_for("the peer to answer, or to end the stream")

    async def print_received(self, stream: Stream) -> None:
        label, name = stream.state.label(), stream.name
        async for piece in stream:
            self.output.write(piece, label, name)
            await wait_for_room()

    async def run_messages(self, session: OmnistreamsSession) -> None:
        if self.accept:
            self.waiting_for("the peer to open a stream")
            await self.print_received(await session.accept())
            return
        await self.send(await session.open(self.name))

    async def run_items(self, session: MinmuxSession) -> None:
        if self.stream_id % 2 == 0:
            self.waiting_for(f"the peer to send on stream {self.stream_id}")
            await self.print_received(session.receiver(self.stream_id))
            return
        sender = session.sender(self.stream_id)
        await self.send(sender)
        await sender.wait_over()

    async def run_requests(self, session: StreamuxSession) -> None:
        """Send requests one at a time; print each reply before the next request.

        Raises:
            Unreachable: No reply within the timeout.
        """
        source = input_pieces(self.texts, self.lines, False)
        if self.wait_reporter is not None and not self.texts:
            self.wait_reporter.reading_input()
        try:
            if self.texts or self.lines:
                async for question in source:
                    self.waiting_for("the reply")
                    self.output.write(await session.request(question, timeout=self.timeout))
                    await wait_for_room()
            else:
                self.output.write(await session.request(source, timeout=self.timeout))
        except TimeoutError:
            raise Unreachable(
                f"no reply within {self.timeout:g} s; allow more with --timeout"
            ) from None
