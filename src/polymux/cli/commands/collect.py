"""`polymux collect`: take in sessions of any protocol and land them as captures, durably."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from polymux.aio import Unreachable
from polymux.cli.commands.record import size, syncs
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.frame_log import logged, verbose_option
from polymux.cli.support.output import counted, warn
from polymux.cli.support.signals import when_told
from polymux.core.errors import CaptureError, UnwritableOutput
from polymux.core.limits import Policy
from polymux.protocols.registry import parse
from polymux.record import tls_contexts as tls
from polymux.record.collector import Bounds, Collector
from polymux.record.durable_log import NotDurable, Sync

NOT_RECORDED = 5
SHOWN_EVERY = 0.5  # seconds between two lines of progress on a terminal


def numbers(context: click.Context, option: click.Parameter, text: str) -> list[int]:
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
    "--sync", callback=syncs, default="always", show_default=True,
    help="When what came is durable: each (as soon as the disk can), seconds between syncs, none.",
)  # fmt: skip
@click.option("--rotate-size", callback=size, default="64M", show_default=True,
              help="Publish a file after so many octets.")  # fmt: skip
@click.option("--rotate-time", type=click.FloatRange(0.1), default=10.0, show_default=True,
              help="Or after so many seconds.")  # fmt: skip
@click.option("--clients", type=click.IntRange(1), default=1024, show_default=True,
              help="Sessions at once.")  # fmt: skip
@click.option("--per-host", type=click.IntRange(0), default=0,
              help="Sessions from one address; 0 for no such limit.")  # fmt: skip
@click.option("--streams", type=click.IntRange(1), default=1024, show_default=True,
              help="Open streams of one session.")  # fmt: skip
@click.option("--buffer", callback=size, default="256M", show_default=True,
              help="Octets in memory, all sessions together.")  # fmt: skip
@click.option("--session-buffer", callback=size, default="16M", show_default=True,
              help="And those of one session.")  # fmt: skip
@click.option("--pause", type=click.FloatRange(0.1), default=5.0, show_default=True,
              help="How long a session without credit may have to wait for the disk.")  # fmt: skip
@click.option("--minmux-streams", callback=numbers, default="",
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
    sync: Sync,
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
        parse(text)
    context_tls = tls.listening(cert, key, client_ca) if cert is not None else None

    async def run() -> int:
        stop = when_told()  # whoever reads that it listens may end it at once
        collector = Collector(
            out,
            sync=sync,
            rotate_octets=rotate_size,
            rotate_seconds=rotate_time,
            bounds=Bounds(clients, per_host, streams, buffer, session_buffer),
            policy=Policy(pause=pause),
            minmux_streams=minmux_streams,
            around=logged if verbose else None,
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
        return await attend(collector, spoken, grace, stop)

    context.exit(asyncio.run(run()))


async def attend(
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
    showing = asyncio.create_task(show(collector)) if sys.stderr.isatty() else None
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in (*waiting, *([showing] if showing else [])):
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    problems = [str(result) for result in results if isinstance(result, NotDurable)]
    try:
        await collector.close(grace)
    except CaptureError as problem:
        problems.append(str(problem))
    problems += [text for text in collector.journal.writer.failures if text not in problems]
    if collector.failure and collector.failure not in problems:
        problems.append(collector.failure)
    counts = collector.counts
    safe, octets = collector.journal.safe, collector.journal.octets
    durable = f"{octets} bytes" if safe == octets else f"{safe} of {octets} bytes"
    warn(
        f"{counted(counts.sessions, 'session')}, {counted(counts.streams, 'stream')}, "
        f"{counts.turned_away} turned away, {durable} durable in "
        f"{counted(len(collector.published), 'file')}"
    )
    for text in problems:
        warn(f"polymux: {text}")
    return NOT_RECORDED if problems else 0


async def show(collector: Collector) -> None:
    """One line on the terminal, again and again: how much has come, and what is not safe yet."""
    before, then = 0, time.monotonic()
    while True:
        await asyncio.sleep(SHOWN_EVERY)
        journal, counts, now = collector.journal, collector.counts, time.monotonic()
        rate = (journal.octets - before) / max(1e-6, now - then) / 1e6
        before, then = journal.octets, now
        sys.stderr.write(
            f"\r\x1b[K{counted(counts.open, 'session')}, {counted(counts.open_streams, 'stream')}, "
            f"{journal.octets / 1e6:.1f} MB, {rate:.1f} MB/s, "
            f"{(journal.octets - journal.safe) / 1e6:.1f} MB not safe yet, "
            f"lag {journal.lag * 1000:.0f} ms\r"
        )
        sys.stderr.flush()
