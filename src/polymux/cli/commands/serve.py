"""`polymux serve`: accept sessions and print, echo, discard or save every stream."""

from __future__ import annotations

import asyncio
import sys

import click

from polymux.aio import Session, Unreachable
from polymux.aio import serve as listen
from polymux.cli.support.exit_codes import EXIT_LIMIT
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import (
    audit_option,
    check_origins,
    connection_limits,
    connection_options,
    live_options,
    open_audit_log,
    open_recorder,
    origin_option,
    secrets_context,
)
from polymux.cli.support.queued_output import queue_of, queued_output
from polymux.cli.support.serve_session import ServeAction, ServedSession
from polymux.cli.support.signals import stop_event
from polymux.cli.support.stream_files import StreamFolder
from polymux.cli.support.tls_options import (
    LISTENING_TOKEN_HELP,
    allowed_clients,
    listening_context,
    listening_tls_options,
    read_token,
    token_option,
)

ACTIONS = ("echo", "discard", "print")


@click.command(
    epilog="Example: polymux serve tcp://127.0.0.1:9000 --protocol mplex --action echo --once",
    no_args_is_help=True,
)
@live_options
@click.option(
    "--action", type=click.Choice(ACTIONS), default="print", show_default=True,
    help="What to do with received data: send it back, drop it, or print it.",
)  # fmt: skip
@click.option("--save", "folder", help="Write it to numbered files in this new directory instead.")
@click.option("--once", is_flag=True, help="Stop after the first session.")
@click.option(
    "--stream", "stream_ids", type=click.IntRange(0, 2**64 - 1), multiple=True,
    help="Minmux: an odd stream id to read, repeatable (default: 1). Echoed on the next id.",
)  # fmt: skip
@audit_option
@origin_option
@connection_options
@listening_tls_options
@token_option(LISTENING_TOKEN_HELP)
@click.pass_context
def serve(
    context: click.Context,
    url: str,
    protocol: str,
    record_to: str | None,
    keep_secrets: bool,
    as_json: bool,
    verbose: bool,
    action: str,
    folder: str | None,
    once: bool,
    stream_ids: tuple[int, ...],
    audit: str | None,
    origins: tuple[str, ...],
    backlog: int,
    clients: int,
    per_host: int | None,
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
    allow: tuple[str, ...],
    token_file: str | None,
) -> None:
    """Listen at URL and print, echo, discard or save every stream of every session.

    With port 0 a free port is chosen; the address is printed to standard error. A Streamux request
    is answered with its own content (echo) or with an empty reply. A terminal shows lines prefixed
    with the stream, and sends what is typed to the stream that /switch chooses, or as the reply to
    a Streamux request; a pipe receives JSON lines. Saved files are named stream-000001.bin and so
    on; manifest.jsonl describes them. What standard output does not take within two seconds is
    dropped and counted (exit code 5); sessions go on. The command stops on SIGINT, SIGTERM or
    SIGHUP.
    """
    check_action(url, action, folder, stream_ids)
    check_origins(origins, [url])
    allowed = allowed_clients(allow, [url], client_ca)
    token = read_token(token_file)
    own = listening_context([url], cert, key, client_ca, crl)
    secret_source = secrets_context(keep_secrets, record_to, url, own)
    files = StreamFolder(folder) if folder is not None else None
    serve_action = ServeAction(action, as_json, files, stream_ids or (1,))

    async def run() -> None:
        stop = stop_event()

        async def handle(session: Session) -> None:
            served = ServedSession(serve_action, session)
            await served.run()
            counts = f"{plural(served.streams, 'stream')}, {plural(served.received_bytes, 'byte')}"
            reason = f"; {session.failure}" if session.failure is not None else ""
            warn(f"{session.peer}: {counts}{reason}")
            if once or serve_action.failure is not None:
                stop.set()

        with (
            open_audit_log(audit) as audit_log,
            open_recorder(record_to, verbose, secret_context=secret_source) as recorder,
        ):
            try:
                server = await listen(
                    handle,
                    url,
                    protocol=protocol,
                    limits=connection_limits(backlog, clients, per_host),
                    tls=own,
                    recorder=recorder,
                    meter=audit_log,
                    origins=origins,
                    allow=allowed,
                    token=token,
                )
            except Unreachable as problem:
                raise click.UsageError(str(problem)) from None
            async with server:
                warn(f"listening at {server.url}")
                serve_action.read_typed()
                closed = asyncio.create_task(server.wait_closed())  # stdio: has one session
                await asyncio.wait(
                    [closed, asyncio.create_task(stop.wait())], return_when="FIRST_COMPLETED"
                )
        if serve_action.failure is not None:
            raise serve_action.failure

    with queued_output():
        output = queue_of(sys.stdout)
        asyncio.run(run())
    if output is not None and output.dropped_bytes:
        context.exit(EXIT_LIMIT)


def check_action(url: str, action: str, folder: str | None, stream_ids: tuple[int, ...]) -> None:
    """Raise UsageError if what is to be done with streams cannot be done here."""
    for number in stream_ids:
        if number % 2 == 0:
            raise click.UsageError(f"--stream {number}: the dialer writes odd ids only")
    if url.startswith("stdio:") and action == "print" and folder is None:
        raise click.UsageError(
            "stdio: is the connection itself; use --action echo, discard or --save"
        )
