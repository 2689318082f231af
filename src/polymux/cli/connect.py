"""`polymux connect`: one stream to a peer, standard input to it and it to standard output."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import click

from ..aio import MinmuxSession, OmnistreamsSession, Session, Stream, StreamuxSession, Unreachable
from ..aio import connect as dial
from ..record import tls
from .live import live_options, pieces, recording, shape, to_stdout
from .printing import warn

# What the library calls its arguments, and what they are called here.
WORDS = {
    "give a context that trusts its issuer with tls=...": "name who signed it with --ca",
    "timeout=...": "--timeout",
}


@click.command(
    epilog="Example: echo hello | polymux connect tcp://127.0.0.1:9000 --protocol mplex",
    no_args_is_help=True,
)
@live_options
@click.option("--name", default="", help="The stream's name, or metadata (omnistreams).")
@click.option("--send", "texts", multiple=True, help="Send this text instead of standard input.")
@click.option("--lines", is_flag=True, help="Each line is a message or request of its own.")
@click.option("--accept", is_flag=True, help="Take the first stream the peer opens instead.")
@click.option(
    "--stream", "number", type=click.IntRange(0, 2**64 - 1), default=1, show_default=True,
    help="Minmux: the stream's id. Odd: written here; even: read.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds to connect in, and for each reply (Streamux).",
)  # fmt: skip
@click.option(
    "--wait", type=click.FloatRange(0), default=0.0, show_default=True,
    help="Seconds to try again while nobody listens yet.",
)  # fmt: skip
@click.option("--ca", help="Authorities (PEM) to verify the peer with.")
@click.option("--server-name", help="The name in the peer's certificate, if not its host.")
@click.option("--cert", help="Certificate chain (PEM) to show to the peer.")
@click.option("--key", help="Its private key (PEM), mode 0600.")
@click.option("--insecure", is_flag=True, help="Do not verify the peer's certificate.")
def connect(
    url: str,
    protocol: str,
    record_to: str | None,
    as_json: bool,
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
) -> None:
    """Open a session to URL and a stream in it; what is typed goes there, what comes is shown.

    mplex and Nerdbank streams go both ways: the end of the input ends our half, and the command
    ends with the peer's. An omnistreams or Minmux stream goes one way. Streamux: the input is a
    request (with --lines each line is one) and the reply is shown. URL: tcp://, tls://, ws://,
    wss://, unix://, or exec:COMMAND for a child that speaks on its standard input and output.

    Exit code 4: the peer could not be reached, went away or gave the stream up.
    """
    if url.startswith("stdio:"):
        raise click.UsageError("stdio: is what this command shows you; use exec:COMMAND")
    context = tls.connecting(ca, insecure=insecure, cert=cert, key=key)
    if insecure:
        warn("warning: the peer's certificate is not verified")
    talk = Talk(name, texts, lines, accept, number, timeout, as_json)

    async def run() -> None:
        with recording(record_to) as recorder:
            async with dial(
                url, protocol=protocol, tls=context, server_hostname=server_name,
                timeout=timeout, wait=wait, recorder=recorder,
            ) as session:  # fmt: skip
                await talk.run(session)

    try:
        asyncio.run(run())
    except Unreachable as problem:
        text = str(problem)
        for argument, option in WORDS.items():
            text = text.replace(argument, option)
        raise Unreachable(text) from None


class Talk:
    """What is said in the one stream of the command."""

    def __init__(
        self,
        name: str,
        texts: tuple[str, ...],
        lines: bool,
        accept: bool,
        number: int,
        timeout: float,
        as_json: bool,
    ) -> None:
        self.name = name
        self.texts = texts
        self.lines = lines
        self.accept = accept
        self.number = number
        self.timeout = timeout
        self.as_json = as_json

    async def run(self, session: Session) -> None:
        """Until the stream is over, as far as it concerns us."""
        kind = shape(session)
        if self.name and kind in ("requests", "items"):
            raise click.UsageError(
                f"--name: streams have no names in {session.endpoint.protocol.name}"
            )
        if self.accept and kind in ("requests", "items"):
            raise click.UsageError("--accept: use `polymux serve`, or an even --stream in Minmux")
        if isinstance(session, StreamuxSession):
            await self.ask(session)
        elif isinstance(session, MinmuxSession):
            await self.items(session)
        elif isinstance(session, OmnistreamsSession):
            await self.messages(session)
        else:
            stream = await (session.accept() if self.accept else session.open(self.name))
            await self.converse(stream)

    async def converse(self, stream: Stream) -> None:
        """Both ways at once, until both halves are over."""
        sending = asyncio.create_task(self.send(stream))
        try:
            await self.show(stream)
            await sending
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([sending])

    async def send(self, stream: Stream) -> None:
        async for piece in pieces(self.texts, self.lines):
            await stream.send(piece)
        await stream.end()

    async def show(self, stream: Stream) -> None:
        put = to_stdout(self.as_json, stream.record.label(), stream.name)
        async for piece in stream:
            put(piece)

    async def messages(self, session: OmnistreamsSession) -> None:
        if self.accept:
            await self.show(await session.accept())
            return
        await self.send(await session.open(self.name))

    async def items(self, session: MinmuxSession) -> None:
        if self.number % 2 == 0:
            await self.show(session.receiver(self.number))
            return
        sender = session.sender(self.number)
        await self.send(sender)
        await sender.wait_over()

    async def ask(self, session: StreamuxSession) -> None:
        """One request after another; each reply is shown before the next is asked."""
        put = to_stdout(self.as_json)
        source = pieces(self.texts, self.lines)
        try:
            if self.texts or self.lines:
                async for question in source:
                    put(await session.request(question, timeout=self.timeout))
            else:
                put(await session.request(source, timeout=self.timeout))
        except TimeoutError:
            raise Unreachable(
                f"no reply within {self.timeout:g} s; allow more with --timeout"
            ) from None
