"""`polymux collect`: accept sessions of any protocol and write them durably as captures."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import click

from polymux.aio import Unreachable
from polymux.cli.commands.record import parse_size, parse_sync
from polymux.cli.processes.member import Member, this_member
from polymux.cli.processes.option import check_divisible, per_host_limit, processes_option
from polymux.cli.processes.report import Report
from polymux.cli.processes.supervisor import Supervisor, Work, run_workers
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_LIMIT
from polymux.cli.support.frame_log import verbose_option, with_frame_log
from polymux.cli.support.metrics_option import (
    joined_meter,
    meter_endpoint,
    metrics_endpoint,
    metrics_option,
)
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import (
    audit_option,
    backlog_option,
    check_origins,
    open_audit_log,
    origin_option,
    per_host_option,
)
from polymux.cli.support.queued_output import queued_output
from polymux.cli.support.recording_sensor import recording_comment, recording_sensor_option
from polymux.cli.support.signals import first_of
from polymux.cli.support.state_option import recorder_state, top_option
from polymux.cli.support.tls_options import (
    LISTENING_TOKEN_HELP,
    allowed_clients,
    is_secure,
    listening_context,
    listening_tls_options,
    read_token,
    token_option,
)
from polymux.core.errors import CaptureError, UnwritableOutput
from polymux.core.limits import Timeouts
from polymux.metrics import Family, Meter
from polymux.metrics.families import COUNTER
from polymux.protocols.registry import parse_protocol
from polymux.record.audit_log import AuditLog
from polymux.record.collector import MIN_DISK_BYTES, Collector, CollectorLimits
from polymux.record.durable_log import NotDurable, SyncPolicy

PROGRESS_INTERVAL = 0.5  # seconds between updates of the progress line


def parse_ids(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    """Parse a list of stream ids, such as `1,3,5`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) < 1 << 64 for part in parts):
        raise click.BadParameter(f"{text!r}: write ids with commas between them: 1,3,5")
    return [int(part) for part in parts]


@click.command(
    epilog="Example: polymux collect --listen tcp://0.0.0.0:9000 --protocol mplex --out captures",
    no_args_is_help=True,
)
@click.option("--listen", "urls", multiple=True, required=True, help="Where to listen; repeatable.")
@click.option(
    "--protocol", "protocols", multiple=True, required=True, shell_complete=protocol_names,
    help="The protocol: one for each --listen, in the same order, or one for all.",
)  # fmt: skip
@click.option("--out", required=True, help="Directory for the captures.")
@click.option(
    "--sync", callback=parse_sync, default="always", show_default=True,
    help="When to sync to disk: always (as fast as the disk can), every so many seconds, or none.",
)  # fmt: skip
@click.option("--rotate-size", callback=parse_size, default="64M", show_default=True,
              help="Publish a file after this many bytes.")  # fmt: skip
@click.option("--rotate-time", type=click.FloatRange(0.1), default=10.0, show_default=True,
              help="Publish a file after this many seconds.")  # fmt: skip
@click.option("--clients", type=click.IntRange(1), default=1024, show_default=True,
              help="Most sessions at a time.")  # fmt: skip
@per_host_option
@click.option("--streams", type=click.IntRange(1), default=1024, show_default=True,
              help="Most open streams per session.")  # fmt: skip
@click.option("--buffer", callback=parse_size, default="256M", show_default=True,
              help="Most bytes in memory, for all sessions together.")  # fmt: skip
@click.option("--session-buffer", callback=parse_size, default="16M", show_default=True,
              help="Most bytes in memory for one session.")  # fmt: skip
@click.option("--max-disk", callback=parse_size, default="0",
              help="Most bytes of all files in --out, such as 10G; then senders wait until files "
              "were removed. Files are published at half of it, or earlier.")  # fmt: skip
@click.option("--pause", type=click.FloatRange(0.1), default=5.0, show_default=True,
              help="Seconds a session without flow control may wait for the disk.")  # fmt: skip
@click.option("--minmux-streams", callback=parse_ids, default="",
              help="Minmux ids that get credit before the peer sends anything: 1,3,5.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds for open streams to finish when stopped.")  # fmt: skip
@audit_option
@origin_option
@backlog_option
@processes_option
@listening_tls_options
@token_option(LISTENING_TOKEN_HELP)
@recording_sensor_option
@top_option
@metrics_option
@verbose_option
@click.pass_context
def collect(
    context: click.Context,
    urls: tuple[str, ...],
    protocols: tuple[str, ...],
    out: str,
    sync: SyncPolicy,
    rotate_size: int,
    rotate_time: float,
    clients: int,
    per_host: int | None,
    streams: int,
    buffer: int,
    session_buffer: int,
    max_disk: int,
    pause: float,
    minmux_streams: list[int],
    grace: float,
    audit: str | None,
    origins: tuple[str, ...],
    backlog: int,
    processes: int,
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
    allow: tuple[str, ...],
    token_file: str | None,
    sensor: str,
    top_url: str | None,
    metrics: str | None,
    verbose: bool,
) -> None:
    """Accept sessions and write what they send to the directory --out, as captures.

    Data is acknowledged to its sender only when it is durable. The command stops on SIGINT,
    SIGTERM or SIGHUP. Files left by a collector that was killed are published when the next one
    starts with the same --out. Exit code 5 if the disk failed.
    """
    protocols = one_for_each(protocols, urls)
    check_origins(origins, urls)
    caps = {"--clients": clients, "--per-host": per_host, "--backlog": backlog, "--buffer": buffer}
    check_divisible(processes, caps)
    check_disk(max_disk, processes)
    member = this_member(context)
    senders = allowed_clients(allow, urls, client_ca)
    token = member.token if member.is_worker else read_token(token_file)
    context_tls = listening_context(urls, cert, key, client_ca, crl)
    if processes > 1 and not member.is_worker:
        seconds = grace + max(1.0, grace) + Timeouts().close
        work = Work(context, processes, urls, backlog, seconds, context_tls, senders, token)
        observed = partial(workers_observed, top_url, metrics, out)
        within = partial(wait_for_workers, protocols, out)
        context.exit(run_workers(work, observed, within, print_summary))
    own = member.one_of
    limits = CollectorLimits(
        clients=own.share(clients),
        per_host=per_host_limit(own.share(clients), per_host, own),
        half_open=own.share(CollectorLimits().half_open),
        streams=streams,
        buffer_bytes=own.share(buffer),
        session_buffer_bytes=session_buffer,
        listen_backlog=backlog,
        max_disk=max_disk,
    )
    make = partial(
        Collector, out, sync=sync, rotate_bytes=rotate_size, rotate_seconds=rotate_time,
        limits=limits, timeouts=Timeouts(slow_reader=pause), minmux_streams=minmux_streams,
        comment=recording_comment(sensor), wrap_recorder=with_frame_log if verbose else None,
        one_of=own, disk_count=member.disk_count,
    )  # fmt: skip
    collecting = Collecting(
        member, urls, protocols, context_tls, origins, senders, token, grace, top_url, metrics
    )
    with queued_output(lock=member.line_lock), open_audit_log(audit, own) as audit_log:
        code = asyncio.run(collecting.run(make, audit_log))
    context.exit(code)


def check_disk(max_disk: int, processes: int) -> None:
    """Raise UsageError if --max-disk is too small for so many processes."""
    least = MIN_DISK_BYTES * processes
    if max_disk and max_disk < least:
        raise click.UsageError(
            f"--max-disk {max_disk}: with --processes {processes}, at least {least} bytes are "
            "needed to make progress: raise it"
        )


@dataclass
class Collecting:
    """What `polymux collect` does in one process; the attributes are its options."""

    member: Member
    urls: Sequence[str]
    protocols: Sequence[str]
    tls: ssl.SSLContext | None
    origins: Sequence[str]
    senders: Sequence[str] | None
    token: bytes | None
    grace: float
    top_url: str | None
    metrics: str | None

    async def run(self, make: Callable[..., Collector], audit_log: AuditLog | None) -> int:
        """Collect until a signal, or until the disk fails. Return the exit code.

        Args:
            make: Returns a collector with the given `meter`.
            audit_log: Of --audit.
        """
        stop = self.member.stop_event()  # before "listening" is printed: a signal may follow
        counting = Meter() if self.metrics is not None else None
        collector = make(meter=joined_meter(counting, audit_log))
        try:
            await collector.start()
        except CaptureError as problem:
            raise UnwritableOutput(str(problem)) from None
        try:
            await self.listen(collector)
            return await self.run_until_stopped(collector, counting, stop)
        except BaseException as problem:
            await collector.close(0)
            if isinstance(problem, Unreachable):
                raise click.UsageError(str(problem)) from None
            raise

    async def listen(self, collector: Collector) -> None:
        """Accept sessions at all URLs."""
        for position, (url, protocol) in enumerate(zip(self.urls, self.protocols, strict=True)):
            await collector.listen(
                url,
                protocol,
                tls=self.tls if is_secure(url) else None,
                origins=self.origins if url.startswith("ws") else (),
                allow=self.senders,
                token=self.token,
                inherited=self.member.inherited(position),
            )

    async def run_until_stopped(
        self, collector: Collector, counting: Meter | None, stop: asyncio.Event
    ) -> int:
        """Run until `stop` is set or the disk fails, then close and report the exit code."""
        for name in collector.recovered.published:
            warn(f"published what an earlier collector left: {name}")
        for problem in collector.recovered.problems:
            warn(f"polymux: not recovered: {problem}")
        read = partial(collector_report, collector)
        collect = partial(collected_families, collector, counting) if counting else None
        failed = asyncio.create_task(collector.wait_failed())
        link, own = self.member.link, self.member.unless_worker
        async with (
            recorder_state(own(self.top_url), collector.out, lambda: collector_counters(read())),
            meter_endpoint(own(self.metrics), collect),
        ):
            if link is None:
                announce(collector.urls, self.protocols, collector.out)
            else:
                link.ready(read, collect)
            async with progress_shown(read if link is None else None):
                await first_of(asyncio.create_task(stop.wait()), failed)
            problems = await close_collector(collector, self.grace, failed)
        if link is None:
            print_summary(read())
        for text in problems:
            warn(f"polymux: {text}")
        return EXIT_LIMIT if problems else 0


@contextlib.asynccontextmanager
async def workers_observed(
    top_url: str | None, metrics: str | None, out: str, workers: Supervisor
) -> AsyncIterator[None]:
    """Serve the state and the metrics of workers within the block."""
    async with (
        recorder_state(top_url, out, lambda: collector_counters(workers.report)),
        metrics_endpoint(metrics, workers.collect),
    ):
        yield


async def wait_for_workers(protocols: Sequence[str], out: str, workers: Supervisor) -> None:
    """Print where the workers listen, and wait until they are to end."""
    announce(workers.urls, protocols, out)
    async with progress_shown(lambda: workers.report):
        await workers.wait()


def announce(urls: Sequence[str], protocols: Sequence[str], out: str) -> None:
    for url, protocol in zip(urls, protocols, strict=True):
        warn(f"listening at {url} for {protocol}, writing to {out}")


def one_for_each(protocols: tuple[str, ...], urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return the protocol of each URL; raise UsageError if it is not known which that is."""
    if len(protocols) not in (1, len(urls)):
        raise click.UsageError("give one --protocol for all, or one for each --listen")
    for text in protocols:
        parse_protocol(text)
    return protocols * len(urls) if len(protocols) == 1 else protocols


async def close_collector(
    collector: Collector, grace: float, failed: asyncio.Task[None]
) -> list[str]:
    """Close a collector. Return what went wrong, also before: `failed` is its `wait_failed`."""
    problems = []
    if failed.done() and not failed.cancelled() and isinstance(failed.exception(), NotDurable):
        problems.append(str(failed.exception()))
    try:
        await collector.close(grace)
    except CaptureError as problem:
        problems.append(str(problem))
    problems += [text for text in collector.durable_log.writer.failures if text not in problems]
    if collector.failure and collector.failure not in problems:
        problems.append(collector.failure)
    return problems


def collector_report(collector: Collector) -> Report:
    """What a collector has done so far."""
    counts, log = collector.stats, collector.durable_log
    return Report(
        {
            "sessions": counts.sessions,
            "streams": counts.streams,
            "rejected": counts.rejected,
            "written_bytes": log.bytes_written,
            "durable_bytes": log.bytes_durable,
            "files": len(log.writer.published),
        },
        {"open": counts.open, "open_streams": counts.open_streams},
        {"lag": log.lag},
    )


def collector_counters(report: Report) -> dict[str, int]:
    """What `polymux top` shows of the collector itself."""
    counts = report.counts
    return {
        "sessions": counts.get("sessions", 0),
        "open": report.levels.get("open", 0),
        "rejected": counts.get("rejected", 0),
        "written_bytes": counts.get("written_bytes", 0),
        "not_durable_bytes": counts.get("written_bytes", 0) - counts.get("durable_bytes", 0),
    }


def collected_families(collector: Collector, meter: Meter) -> list[Family]:
    """The metrics of the sessions of a collector, and of what it has written."""
    counts = collector_report(collector).counts
    meanings = {
        "written_bytes": "Bytes of the packets written to captures.",
        "durable_bytes": "Bytes of these packets that are durable.",
    }
    own = [
        Family(name, COUNTER, meaning, (), {(): counts[name]}) for name, meaning in meanings.items()
    ]
    return [*meter.collect(), *own]


def print_summary(report: Report) -> None:
    """Print what was collected, in one line."""
    counts = report.counts
    size, synced = counts.get("written_bytes", 0), counts.get("durable_bytes", 0)
    durable = f"{size} bytes" if synced == size else f"{synced} of {size} bytes"
    warn(
        f"{plural(counts.get('sessions', 0), 'session')}, "
        f"{plural(counts.get('streams', 0), 'stream')}, "
        f"{counts.get('rejected', 0)} rejected, {durable} durable in "
        f"{plural(counts.get('files', 0), 'file')}"
    )


@contextlib.asynccontextmanager
async def progress_shown(read: Callable[[], Report] | None) -> AsyncIterator[None]:
    """Show the progress on a terminal within the block; elsewhere, and for None, do nothing."""
    showing = None
    if read is not None and sys.stderr.isatty():
        showing = asyncio.create_task(show_progress(read))
    try:
        yield
    finally:
        if showing is not None:
            showing.cancel()


async def show_progress(read: Callable[[], Report]) -> None:
    """Keep one line on the terminal up to date: volume, rate, bytes not yet durable, and lag."""
    bytes_before, time_before = 0, time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL)
        report, now = read(), time.monotonic()
        written = report.counts.get("written_bytes", 0)
        waiting = written - report.counts.get("durable_bytes", 0)
        rate = (written - bytes_before) / max(1e-6, now - time_before) / 1e6
        bytes_before, time_before = written, now
        sys.stderr.write(
            f"\r\x1b[K{plural(report.levels.get('open', 0), 'session')}, "
            f"{plural(report.levels.get('open_streams', 0), 'stream')}, "
            f"{written / 1e6:.1f} MB, {rate:.1f} MB/s, {waiting / 1e6:.1f} MB not durable yet, "
            f"lag {report.worst.get('lag', 0.0) * 1000:.0f} ms\r"
        )
        sys.stderr.flush()
