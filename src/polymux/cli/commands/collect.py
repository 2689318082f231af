"""`polymux collect`: take in sessions of any protocol and land them as captures, durably."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from polymux.aio import Unreachable
from polymux.cli.commands.record import parse_size, parse_sync
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.frame_log import verbose_option, with_frame_log
from polymux.cli.support.output import plural, warn
from polymux.cli.support.signals import stop_event
from polymux.core.errors import CaptureError, UnwritableOutput
from polymux.core.limits import Timeouts
from polymux.protocols.registry import parse_protocol
from polymux.record import tls_contexts as tls
from polymux.record.collector import Collector, CollectorLimits
from polymux.record.durable_log import NotDurable, SyncPolicy

EXIT_NOT_RECORDED = 5
PROGRESS_INTERVAL = 0.5  # seconds between two lines of progress on a terminal


def parse_ids(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    """`1,3,5` as numbers."""
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
    help="What is spoken there: one for each --listen, in the same order, or one for all.",
)  # fmt: skip
@click.option("--out", required=True, help="Directory for the captures.")
@click.option(
    "--sync", callback=parse_sync, default="always", show_default=True,
    help="When what came is durable: each (as soon as the disk can), seconds between syncs, none.",
)  # fmt: skip
@click.option("--rotate-size", callback=parse_size, default="64M", show_default=True,
              help="Publish a file after so many bytes.")  # fmt: skip
@click.option("--rotate-time", type=click.FloatRange(0.1), default=10.0, show_default=True,
              help="Or after so many seconds.")  # fmt: skip
@click.option("--clients", type=click.IntRange(1), default=1024, show_default=True,
              help="Sessions at once.")  # fmt: skip
@click.option("--per-host", type=click.IntRange(0), default=0,
              help="Sessions from one address; 0 for no such limit.")  # fmt: skip
@click.option("--streams", type=click.IntRange(1), default=1024, show_default=True,
              help="Open streams of one session.")  # fmt: skip
@click.option("--buffer", callback=parse_size, default="256M", show_default=True,
              help="Bytes in memory, all sessions together.")  # fmt: skip
@click.option("--session-buffer", callback=parse_size, default="16M", show_default=True,
              help="And those of one session.")  # fmt: skip
@click.option("--pause", type=click.FloatRange(0.1), default=5.0, show_default=True,
              help="How long a session without credit may have to wait for the disk.")  # fmt: skip
@click.option("--minmux-streams", callback=parse_ids, default="",
              help="Minmux ids that get credit before the peer says anything: 1,3,5.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds for streams to finish when stopped.")  # fmt: skip
@click.option("--cert", help="Certificate chain (PEM) to listen with on tls:// and wss://.")
@click.option("--key", help="Its private key (PEM), mode 0600.")
@click.option("--client-ca", help="Authorities (PEM) that must have signed the senders.")
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
    per_host: int,
    streams: int,
    buffer: int,
    session_buffer: int,
    pause: float,
    minmux_streams: list[int],
    grace: float,
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    verbose: bool,
) -> None:
    """Listen, take in what is sent, and write it to OUT as captures, published one by one.

    Senders are told that something was processed only when it is durable. Stops on SIGINT or
    SIGTERM. What a killed collector left is published when the next one starts on the same OUT.
    Exit code 5 if the disk failed.
    """
    if len(protocols) not in (1, len(urls)):
        raise click.UsageError("give one --protocol for all, or one for each --listen")
    spoken = protocols * len(urls) if len(protocols) == 1 else protocols
    for text in spoken:
        parse_protocol(text)
    context_tls = tls.server_context(cert, key, client_ca) if cert is not None else None

    async def run() -> int:
        stop = stop_event()  # whoever reads that it listens may end it at once
        collector = Collector(
            out,
            sync=sync,
            rotate_bytes=rotate_size,
            rotate_seconds=rotate_time,
            limits=CollectorLimits(clients, per_host, streams, buffer, session_buffer),
            timeouts=Timeouts(slow_reader=pause),
            minmux_streams=minmux_streams,
            wrap_recorder=with_frame_log if verbose else None,
        )
        try:
            await collector.start()
        except CaptureError as problem:
            raise UnwritableOutput(str(problem)) from None
        try:
            for url, protocol in zip(urls, spoken, strict=True):
                await collector.listen(url, protocol, tls=context_tls)
        except BaseException as problem:
            await collector.close(0)
            if isinstance(problem, Unreachable):
                raise click.UsageError(str(problem)) from None
            raise
        return await run_until_stopped(collector, spoken, grace, stop)

    context.exit(asyncio.run(run()))


async def run_until_stopped(
    collector: Collector, protocols: tuple[str, ...], grace: float, stop: asyncio.Event
) -> int:
    """Until told to stop, or the disk fails; returns the exit code."""
    for name in collector.recovered.published:
        warn(f"published what an earlier collector left: {name}")
    for problem in collector.recovered.problems:
        warn(f"polymux: left alone: {problem}")
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
    safe, size = collector.durable_log.bytes_durable, collector.durable_log.bytes_written
    durable = f"{size} bytes" if safe == size else f"{safe} of {size} bytes"
    warn(
        f"{plural(counts.sessions, 'session')}, {plural(counts.streams, 'stream')}, "
        f"{counts.rejected} turned away, {durable} durable in "
        f"{plural(len(collector.published), 'file')}"
    )
    for text in problems:
        warn(f"polymux: {text}")
    return EXIT_NOT_RECORDED if problems else 0


async def show_progress(collector: Collector) -> None:
    """One line on the terminal, again and again: how much has come, and what is not safe yet."""
    before, then = 0, time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL)
        journal, counts, now = collector.durable_log, collector.stats, time.monotonic()
        rate = (journal.bytes_written - before) / max(1e-6, now - then) / 1e6
        before, then = journal.bytes_written, now
        sys.stderr.write(
            f"\r\x1b[K{plural(counts.open, 'session')}, {plural(counts.open_streams, 'stream')}, "
            f"{journal.bytes_written / 1e6:.1f} MB, {rate:.1f} MB/s, "
            f"{(journal.bytes_written - journal.bytes_durable) / 1e6:.1f} MB not safe yet, "
            f"lag {journal.lag * 1000:.0f} ms\r"
        )
        sys.stderr.flush()
