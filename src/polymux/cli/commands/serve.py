"""`polymux serve`: accept sessions and print, echo, discard or save every stream."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

import click

from polymux.aio import Server, Session, Unreachable
from polymux.aio.server import serve_within
from polymux.cli.processes.member import Member, this_member
from polymux.cli.processes.option import check_divisible, divided_limits, processes_option
from polymux.cli.processes.report import Report
from polymux.cli.processes.supervisor import Supervisor, Work, run_workers
from polymux.cli.support.exit_codes import EXIT_LIMIT
from polymux.cli.support.metrics_option import (
    joined_meter,
    meter_endpoint,
    metrics_endpoint,
    metrics_option,
)
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
from polymux.cli.support.signals import first_of
from polymux.cli.support.stream_files import StreamFolder
from polymux.cli.support.tls_options import (
    LISTENING_TOKEN_HELP,
    allowed_clients,
    listening_context,
    listening_tls_options,
    read_token,
    token_option,
)
from polymux.core.limits import Limits, Timeouts
from polymux.live.arguments import check_session_options
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.server import server_bounds
from polymux.metrics import Meter
from polymux.record.audit_log import AuditLog

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
@processes_option
@metrics_option
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
    processes: int,
    metrics: str | None,
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
    check_divisible(processes, {"--clients": clients, "--per-host": per_host, "--backlog": backlog})
    member = this_member(context)
    allowed = allowed_clients(allow, [url], client_ca)
    token = member.token if member.is_worker else read_token(token_file)
    own = listening_context([url], cert, key, client_ca, crl)
    secret_source = secrets_context(keep_secrets, record_to, url, own)
    files = StreamFolder(folder, member.is_worker) if folder is not None else None
    limits = connection_limits(backlog, clients, per_host)
    if processes > 1 and not member.is_worker:
        work = Work(context, processes, [url], backlog, Timeouts().close, own, allowed, token)
        observed = partial(workers_observed, metrics)
        context.exit(run_workers(work, observed, wait_for_workers))
    serving = Serving(
        member, url, protocol, divided_limits(limits, member.one_of, per_host), own, origins,
        allowed, token, ServeAction(action, as_json, files, stream_ids or (1,)), once, metrics,
    )  # fmt: skip
    with queued_output(lock=member.line_lock):
        output = queue_of(sys.stdout)
        with (
            open_audit_log(audit, member.one_of) as audit_log,
            open_recorder(
                record_to, verbose, secret_context=secret_source, one_of=member.one_of
            ) as recorder,
        ):
            asyncio.run(serving.run(recorder, audit_log))
    if output is not None and output.dropped_bytes:
        context.exit(EXIT_LIMIT)


@dataclass
class Serving:
    """What `polymux serve` does in one process; the attributes are its options."""

    member: Member
    url: str
    protocol: str
    limits: Limits
    tls: ssl.SSLContext | None
    origins: Sequence[str]
    allowed: Sequence[str] | None
    token: bytes | None
    action: ServeAction
    once: bool
    metrics: str | None
    stop: asyncio.Event = field(init=False)

    async def run(self, recorder: RecorderFactory | None, audit_log: AuditLog | None) -> None:
        """Serve until a signal, the end of --once, or a failure of the output, which is raised."""
        self.stop = self.member.stop_event()
        link = self.member.link
        counting = Meter() if self.metrics is not None else None
        collect = counting.collect if counting is not None else None
        async with meter_endpoint(self.member.unless_worker(self.metrics), collect):
            async with await self.listen(recorder, joined_meter(counting, audit_log)) as server:
                if link is None:
                    warn(f"listening at {server.url}")
                else:
                    link.ready(Report, collect)
                self.action.read_typed()
                closed = asyncio.create_task(server.wait_closed())  # stdio: has one session
                await first_of(closed, asyncio.create_task(self.stop.wait()))
        if self.action.failure is not None:
            raise self.action.failure

    async def listen(self, recorder: RecorderFactory | None, meter: SessionMeter | None) -> Server:
        """Accept sessions.

        Raises:
            click.UsageError: The URL cannot be listened on.
        """
        check_session_options(self.protocol, self.limits, None)
        try:
            return await serve_within(
                server_bounds(self.limits, self.protocol, meter),
                self.handle,
                self.url,
                self.protocol,
                limits=self.limits,
                timeouts=None,
                tls=self.tls,
                recorder=recorder,
                meter=meter,
                origins=self.origins,
                allow=self.allowed,
                token=self.token,
                inherited=self.member.inherited(),
            )
        except Unreachable as problem:
            raise click.UsageError(str(problem)) from None

    async def handle(self, session: Session) -> None:
        """Serve one session, and print what it was."""
        served = ServedSession(self.action, session)
        await served.run()
        counts = f"{plural(served.streams, 'stream')}, {plural(served.received_bytes, 'byte')}"
        reason = f"; {session.failure}" if session.failure is not None else ""
        warn(f"{session.peer}: {counts}{reason}")
        if self.once or self.action.failure is not None:
            self.stop.set()


def workers_observed(metrics: str | None, workers: Supervisor) -> AbstractAsyncContextManager[None]:
    return metrics_endpoint(metrics, workers.collect)


async def wait_for_workers(workers: Supervisor) -> None:
    """Print where the workers listen, and wait until they are to end."""
    warn(f"listening at {workers.urls[0]}")
    await workers.wait()


def check_action(url: str, action: str, folder: str | None, stream_ids: tuple[int, ...]) -> None:
    """Raise UsageError if what is to be done with streams cannot be done here."""
    for number in stream_ids:
        if number % 2 == 0:
            raise click.UsageError(f"--stream {number}: the dialer writes odd ids only")
    if url.startswith("stdio:") and action == "print" and folder is None:
        raise click.UsageError(
            "stdio: is the connection itself; use --action echo, discard or --save"
        )
