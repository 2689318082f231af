"""`polymux collect`: accept sessions of any protocol and write them durably as captures."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from polymux.aio import BadUrl, Unreachable
from polymux.cli.commands.record import parse_size, parse_sync
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_LIMIT
from polymux.cli.support.frame_log import verbose_option, with_frame_log
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
from polymux.cli.support.signals import stop_event
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
from polymux.protocols.registry import parse_protocol
from polymux.record.collector import Collector, CollectorLimits
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
              "were removed.")  # fmt: skip
@click.option("--pause", type=click.FloatRange(0.1), default=5.0, show_default=True,
              help="Seconds a session without flow control may wait for the disk.")  # fmt: skip
@click.option("--minmux-streams", callback=parse_ids, default="",
              help="Minmux ids that get credit before the peer sends anything: 1,3,5.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds for open streams to finish when stopped.")  # fmt: skip
@audit_option
@origin_option
@backlog_option
@listening_tls_options
@token_option(LISTENING_TOKEN_HELP)
@recording_sensor_option
@top_option
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
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
    allow: tuple[str, ...],
    token_file: str | None,
    sensor: str,
    top_url: str | None,
    verbose: bool,
) -> None:
    """Accept sessions and write what they send to the directory --out, as captures.

    Data is acknowledged to its sender only when it is durable. The command stops on SIGINT,
    SIGTERM or SIGHUP. Files left by a collector that was killed are published when the next one
    starts with the same --out. Exit code 5 if the disk failed.
    """
    protocols = one_for_each(protocols, urls)
    check_origins(origins, urls)
    senders, token = allowed_clients(allow, urls, client_ca), read_token(token_file)
    context_tls = listening_context(urls, cert, key, client_ca, crl)

    async def run() -> int:
        stop = stop_event()  # before "listening" is printed: a signal may follow at once
        collector = Collector(
            out,
            sync=sync,
            rotate_bytes=rotate_size,
            rotate_seconds=rotate_time,
            limits=CollectorLimits(
                clients=clients,
                per_host=per_host,
                streams=streams,
                buffer_bytes=buffer,
                session_buffer_bytes=session_buffer,
                listen_backlog=backlog,
                max_disk=max_disk,
            ),
            timeouts=Timeouts(slow_reader=pause),
            minmux_streams=minmux_streams,
            meter=audit_log,
            comment=recording_comment(sensor),
            wrap_recorder=with_frame_log if verbose else None,
        )
        try:
            await collector.start()
        except CaptureError as problem:
            raise UnwritableOutput(str(problem)) from None
        try:
            for url, protocol in zip(urls, protocols, strict=True):
                own = context_tls if is_secure(url) else None
                pages = origins if url.startswith("ws") else ()
                await collector.listen(
                    url, protocol, tls=own, origins=pages, allow=senders, token=token
                )
        except BaseException as problem:
            await collector.close(0)
            if isinstance(problem, Unreachable):
                raise click.UsageError(str(problem)) from None
            raise
        return await run_watched(collector, top_url, protocols, grace, stop)

    with queued_output(), open_audit_log(audit) as audit_log:
        code = asyncio.run(run())
    context.exit(code)


def one_for_each(protocols: tuple[str, ...], urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return the protocol of each URL; raise UsageError if it is not known which that is."""
    if len(protocols) not in (1, len(urls)):
        raise click.UsageError("give one --protocol for all, or one for each --listen")
    for text in protocols:
        parse_protocol(text)
    return protocols * len(urls) if len(protocols) == 1 else protocols


def collector_counters(collector: Collector) -> dict[str, int]:
    """What `polymux top` shows of the collector itself."""
    counts, log = collector.stats, collector.durable_log
    return {
        "sessions": counts.sessions,
        "open": counts.open,
        "rejected": counts.rejected,
        "written_bytes": log.bytes_written,
        "not_durable_bytes": log.bytes_written - log.bytes_durable,
    }


async def run_watched(
    collector: Collector,
    top_url: str | None,
    protocols: tuple[str, ...],
    grace: float,
    stop: asyncio.Event,
) -> int:
    """`run_until_stopped`, while `polymux top` can watch it at `top_url`."""
    try:
        async with recorder_state(top_url, collector.out, lambda: collector_counters(collector)):
            return await run_until_stopped(collector, protocols, grace, stop)
    except BadUrl:
        await collector.close(0)
        raise


async def run_until_stopped(
    collector: Collector, protocols: tuple[str, ...], grace: float, stop: asyncio.Event
) -> int:
    """Run until `stop` is set or the disk fails, then close and report. Return the exit code."""
    for name in collector.recovered.published:
        warn(f"published what an earlier collector left: {name}")
    for problem in collector.recovered.problems:
        warn(f"polymux: not recovered: {problem}")
    for url, protocol in zip(collector.urls, protocols, strict=True):
        warn(f"listening at {url} for {protocol}, writing to {collector.out}")
    waiting = [asyncio.create_task(stop.wait()), asyncio.create_task(collector.wait_failed())]
    showing = asyncio.create_task(show_progress(collector)) if sys.stderr.isatty() else None
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in (*waiting, *([showing] if showing else [])):
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    problems = [str(result) for result in results if isinstance(result, NotDurable)]
    try:
        await collector.close(grace)
    except CaptureError as problem:
        problems.append(str(problem))
    problems += [text for text in collector.durable_log.writer.failures if text not in problems]
    if collector.failure and collector.failure not in problems:
        problems.append(collector.failure)
    counts = collector.stats
    synced, size = collector.durable_log.bytes_durable, collector.durable_log.bytes_written
    durable = f"{size} bytes" if synced == size else f"{synced} of {size} bytes"
    warn(
        f"{plural(counts.sessions, 'session')}, {plural(counts.streams, 'stream')}, "
        f"{counts.rejected} rejected, {durable} durable in "
        f"{plural(len(collector.published), 'file')}"
    )
    for text in problems:
        warn(f"polymux: {text}")
    return EXIT_LIMIT if problems else 0


async def show_progress(collector: Collector) -> None:
    """Keep one line on the terminal up to date: volume, rate, bytes not yet durable, and lag."""
    bytes_before, time_before = 0, time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL)
        log, counts, now = collector.durable_log, collector.stats, time.monotonic()
        rate = (log.bytes_written - bytes_before) / max(1e-6, now - time_before) / 1e6
        bytes_before, time_before = log.bytes_written, now
        sys.stderr.write(
            f"\r\x1b[K{plural(counts.open, 'session')}, {plural(counts.open_streams, 'stream')}, "
            f"{log.bytes_written / 1e6:.1f} MB, {rate:.1f} MB/s, "
            f"{(log.bytes_written - log.bytes_durable) / 1e6:.1f} MB not durable yet, "
            f"lag {log.lag * 1000:.0f} ms\r"
        )
        sys.stderr.flush()
