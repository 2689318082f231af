"""`polymux record`: a recording proxy between two peers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import click

from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.cli.processes.member import Member, this_member
from polymux.cli.processes.option import check_divisible, divided_limits, processes_option
from polymux.cli.processes.report import Report
from polymux.cli.processes.supervisor import Supervisor, Work, run_workers
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_LIMIT
from polymux.cli.support.frame_log import FrameLog, verbose_option
from polymux.cli.support.metrics_option import meter_endpoint, metrics_endpoint, metrics_option
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import (
    audit_option,
    close_part,
    connection_limits,
    connection_options,
    open_audit_log,
    publish_partial_captures,
)
from polymux.cli.support.queued_output import queued_output
from polymux.cli.support.recording_sensor import recording_comment, recording_sensor_option
from polymux.cli.support.redaction_options import (
    make_redaction,
    names_option,
    payload_option,
    redaction_comment,
)
from polymux.cli.support.state_option import recorder_state, top_option
from polymux.cli.support.tls_options import (
    allowed_clients,
    listening_context,
    listening_tls_options,
    upstream_context,
    upstream_tls_options,
)
from polymux.core.errors import CaptureError
from polymux.core.redaction import FULL, Redaction
from polymux.live.urls import parse_url
from polymux.metrics import Family
from polymux.metrics.families import COUNTER, GAUGE, Labels
from polymux.protocols.registry import parse_protocol
from polymux.record.process_files import path_of_process
from polymux.record.proxy import CLOSE_TIMEOUT_SECONDS, RecordingProxy
from polymux.record.secret_log import SecretLog
from polymux.text.units import parse_bytes

NOT_VERIFIED_NOTE = "polymux: the upstream's certificate was not verified"
SyncOption = float | Literal["none", "always"]


def parse_size(context: click.Context, param: click.Parameter, value: str) -> int:
    """Parse a number of bytes, with or without a unit: 65536, 64M, 2G."""
    size = parse_bytes(value)
    if size is None:
        raise click.BadParameter(f"{value!r} is no size; write bytes, or 64M, or 2G")
    return size


def parse_sync(context: click.Context, param: click.Parameter, value: str) -> SyncOption:
    """Parse --sync: `none`, `always`, or the seconds between syncs."""
    if value == "none":
        return "none"
    if value == "always":
        return "always"
    with suppress(ValueError):
        if 0 <= float(value) < math.inf:
            return float(value)
    raise click.BadParameter(f"{value!r} is neither none, nor always, nor seconds between syncs")


@click.command(
    epilog="Example: polymux record tcp://127.0.0.1:9001 tcp://127.0.0.1:9000 -o talk.pcapng "
    "--protocol mplex",
    no_args_is_help=True,
)
@click.argument("listen")
@click.argument("upstream")
@click.option("-o", "--out", required=True, help="The capture to write (pcapng).")
@click.option(
    "--protocol", default="", shell_complete=protocol_names,
    help="The protocol, noted in the capture so that readers need not detect it.",
)  # fmt: skip
@click.option(
    "--rotate-size",
    callback=parse_size,
    default="0",
    help="Start a new file after this many bytes, such as 64M.",
)
@click.option(
    "--rotate-time",
    type=click.FloatRange(0),
    default=0.0,
    help="Start a new file after this many seconds.",
)
@click.option("--index", is_flag=True, help="Write FILE.idx beside each published file.")
@click.option(
    "--sync", callback=parse_sync, default="1", show_default=True,
    help="When to sync to disk: always, every so many seconds, or none.",
)  # fmt: skip
@click.option(
    "--on-full", type=click.Choice(["gap", "block"]), default="gap", show_default=True,
    help="When the disk is full: forward traffic unrecorded (gap), or stop forwarding (block).",
)  # fmt: skip
@audit_option
@connection_options
@processes_option
@listening_tls_options
@upstream_tls_options("Do not verify the upstream's certificate; noted in the capture.")
@click.option(
    "--keep-secrets",
    is_flag=True,
    help="Write the secrets of TLS that ends here to the capture, so that other captures of the "
    "same connections can be opened.",
)
@payload_option("full")
@names_option
@recording_sensor_option
@top_option
@metrics_option
@verbose_option
@click.pass_context
def record(
    context: click.Context,
    listen: str,
    upstream: str,
    out: str,
    protocol: str,
    rotate_size: int,
    rotate_time: float,
    index: bool,
    sync: SyncOption,
    on_full: Literal["gap", "block"],
    audit: str | None,
    backlog: int,
    clients: int,
    per_host: int | None,
    processes: int,
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
    allow: tuple[str, ...],
    ca: str | None,
    server_name: str | None,
    client_cert: str | None,
    client_key: str | None,
    insecure: bool,
    keep_secrets: bool,
    payload: tuple[str, int],
    names: str | None,
    sensor: str,
    top_url: str | None,
    metrics: str | None,
    verbose: bool,
) -> None:
    """Listen at LISTEN, forward every connection to UPSTREAM, and record what passes.

    The command stops on SIGINT, SIGTERM or SIGHUP. What was recorded before the disk was full, or
    before the recorder was killed, is kept. Exit code 5 if anything is missing.
    """
    if protocol:
        parse_protocol(protocol)
    elif verbose:
        raise click.UsageError("-v: name the protocol with --protocol, to decode what passes")
    check_divisible(processes, {"--clients": clients, "--per-host": per_host, "--backlog": backlog})
    member = this_member(context)
    redaction = requested_redaction(payload, names, protocol, keep_secrets)
    allowed = allowed_clients(allow, [listen], client_ca)
    own = listening_context([listen], cert, key, client_ca, crl)
    theirs = upstream_context(
        upstream, ca, server_name, client_cert, client_key, insecure, quiet=member.is_worker
    )
    limits = connection_limits(backlog, clients, per_host)
    if processes > 1 and not member.is_worker:
        work = Work(context, processes, [listen], backlog, CLOSE_TIMEOUT_SECONDS, own, allowed)
        observed = partial(workers_observed, top_url, metrics, out)
        within = partial(wait_for_workers, upstream)
        context.exit(run_workers(work, observed, within, partial(summarize_workers, out)))
    note = NOT_VERIFIED_NOTE if insecure else ""
    secrets = open_secret_log((listen, upstream), own, theirs) if keep_secrets else None
    make_proxy = partial(
        RecordingProxy, listen, upstream, protocol=protocol, tls=own, upstream_tls=theirs,
        server_hostname=server_name, on_full=on_full, note=note,
        limits=divided_limits(limits, member.one_of, per_host),
        observer=(lambda dialer: FrameLog(protocol, dialer).feed) if verbose else None,
        allow=allowed, secrets=secrets, redaction=redaction,
        inherited=member.inherited(), one_of=member.one_of,
    )  # fmt: skip
    make_writer = partial(
        open_writer, path_of_process(out, member.one_of), rotate_size, rotate_time, sync, index,
        section_comment(sensor, note, redaction), member.is_worker,
    )  # fmt: skip
    with queued_output(lock=member.line_lock), open_audit_log(audit, member.one_of) as audit_log:
        if rotate_size or rotate_time or member.is_worker:
            publish_partial_captures(out)
        recording = Recording(member, out, top_url, metrics)
        try:
            lost = recording.run(make_writer(), partial(make_proxy, audit=audit_log))
        finally:
            if secrets is not None:
                secrets.close()
    if lost:
        context.exit(EXIT_LIMIT)


@dataclass
class Recording:
    """What `polymux record` does in one process; the attributes are its options."""

    member: Member
    out: str
    top_url: str | None
    metrics: str | None

    def run(
        self, writer: RotatingWriter, make_proxy: Callable[[RotatingWriter], RecordingProxy]
    ) -> bool:
        """Record until a signal, and print what was recorded. Return True if anything was lost."""
        try:
            proxy = make_proxy(writer)
            asyncio.run(self.run_proxy(proxy, writer))
        except BaseException:
            close_or_discard(writer)
            raise
        with suppress(CaptureError):  # also in `writer.failures`, which `print_problems` prints
            close_part(writer, self.member.one_of)
        if not self.member.is_worker:
            warn(summary_text(proxy_report(proxy, writer), ", ".join(writer.published)))
        return print_problems(proxy, writer)

    async def run_proxy(self, proxy: RecordingProxy, writer: RotatingWriter) -> None:
        """Run the proxy until SIGINT, SIGTERM or SIGHUP."""
        stop = self.member.stop_event()
        read = partial(proxy_report, proxy, writer)

        def collect() -> list[Family]:
            return proxy_families(read(), proxy.gate.counters.hits)

        link, own = self.member.link, self.member.unless_worker
        async with (
            recorder_state(own(self.top_url), self.out, lambda: proxy_counters(read())),
            meter_endpoint(own(self.metrics), collect),
            proxy,
        ):
            if link is None:
                warn(f"listening at {proxy.url}, forwarding to {proxy.upstream}")
            else:
                link.ready(read, collect if self.metrics is not None else None)
            await stop.wait()


def requested_redaction(
    payload: tuple[str, int], names: str | None, protocol: str, keep_secrets: bool
) -> Redaction | None:
    """What is recorded of the content; None for all of it.

    Raises:
        click.UsageError: It cannot be left out of this recording.
    """
    if names is None and payload[0] == FULL:
        names = "keep"
    redaction = make_redaction(payload, names)
    if redaction is None:
        return None
    if not protocol:
        raise click.UsageError("--payload: name the protocol with --protocol, to find the content")
    if "preamble" in parse_protocol(protocol).options:
        raise click.UsageError(
            "--payload: not behind a preamble; record everything, then use `polymux redact`"
        )
    if keep_secrets:
        raise click.UsageError("--keep-secrets: not with --payload or --names, which hide content")
    return redaction


def section_comment(sensor: str, note: str, redaction: Redaction | None) -> str:
    """The comment of the recording as a whole; without content, it does not name the host.

    Raises:
        click.UsageError: --sensor has no effect, or is malformed.
    """
    if redaction is not None and sensor:
        raise click.UsageError("--sensor: not with --payload or --names, which name no host")
    comment = recording_comment(sensor)
    lines = [note, comment if redaction is None else redaction_comment(redaction)]
    return "\n".join(line for line in lines if line)


def open_secret_log(
    urls: tuple[str, str], own: ssl.SSLContext | None, theirs: ssl.SSLContext
) -> SecretLog:
    """Collect the secrets of TLS that ends here.

    Raises:
        click.UsageError: None does.
    """
    if not any(url.startswith(("tls:", "wss:")) for url in urls):
        raise click.UsageError("--keep-secrets: neither LISTEN nor UPSTREAM is inside TLS")
    return SecretLog(theirs, own) if own is not None else SecretLog(theirs)


def open_writer(
    out: str,
    rotate_bytes: int,
    rotate_seconds: float,
    sync: SyncOption,
    index: bool,
    comment: str,
    numbered: bool,
) -> RotatingWriter:
    """Open the first file.

    Raises:
        click.UsageError: The file exists already.
        SystemExit: The disk failed; the code is `EXIT_LIMIT`.
    """
    try:
        return RotatingWriter(
            out,
            max_bytes=rotate_bytes,
            max_seconds=rotate_seconds,
            sync=sync,
            index=index,
            comment=comment,
            numbered=numbered,
            background=True,
        )
    except CaptureError as problem:
        if os.path.exists(out) or os.path.exists(f"{out}.part"):
            raise click.UsageError(str(problem)) from None
        warn(f"polymux: {problem}")
        sys.exit(EXIT_LIMIT)


def close_or_discard(writer: RotatingWriter) -> None:
    """After a failure: keep the file if it has packets, otherwise remove it."""
    with suppress(CaptureError):
        if writer.packets:
            writer.close()
        else:
            writer.discard()


def proxy_report(proxy: RecordingProxy, writer: RotatingWriter) -> Report:
    """What a proxy has done so far."""
    stats = proxy.stats
    return Report(
        {
            "connections": stats.connections,
            "not_forwarded": stats.refused,
            "dialer_bytes": stats.bytes_dialer,
            "upstream_bytes": stats.bytes_acceptor,
            "files": len(writer.published),
        },
        {"open": stats.open, "waiting_for_disk_space": int(proxy.disk_full)},
    )


def proxy_counters(report: Report) -> dict[str, int]:
    """What `polymux top` shows of the proxy itself."""
    names = ("connections", "open", "not_forwarded", "dialer_bytes", "upstream_bytes")
    values = {**report.counts, **report.levels}
    counters = {name: values.get(name, 0) for name in names}
    if values.get("waiting_for_disk_space"):
        counters["waiting_for_disk_space"] = values["waiting_for_disk_space"]
    return counters


def proxy_families(report: Report, limits: Mapping[str, int]) -> list[Family]:
    """The metrics of a proxy. `limits`: how often each limit on its connections was hit."""
    counts = report.counts
    sides: dict[Labels, int] = {
        ("dialer",): counts["dialer_bytes"],
        ("acceptor",): counts["upstream_bytes"],
    }
    hits: dict[Labels, int] = {("proxy", name): count for name, count in limits.items()}
    return [
        Family("connections", COUNTER, "Connections accepted.", (), {(): counts["connections"]}),
        Family(
            "not_forwarded",
            COUNTER,
            "Connections that were not forwarded.",
            (),
            {(): counts["not_forwarded"]},
        ),
        Family(
            "forwarded_bytes",
            COUNTER,
            "Bytes recorded and forwarded, by the side that sent them.",
            ("side",),
            sides,
        ),
        Family(
            "limit_hits",
            COUNTER,
            "Times a limit or timeout was exceeded, by its name.",
            ("protocol", "limit"),
            hits,
        ),
        Family(
            "connections_open", GAUGE, "Connections that are open.", (), {(): report.levels["open"]}
        ),
    ]


def summary_text(report: Report, files: str) -> str:
    """What was recorded, in one line. `files`: the names of the captures."""
    counts = report.counts
    return (
        f"{plural(counts.get('connections', 0), 'connection')}, "
        f"{plural(counts.get('dialer_bytes', 0), 'byte')} from dialers, "
        f"{counts.get('upstream_bytes', 0)} from the upstream, "
        f"{counts.get('not_forwarded', 0)} not forwarded; written: {files or 'nothing'}"
    )


def summarize_workers(out: str, report: Report) -> None:
    """Print what all workers have recorded."""
    stem, extension = os.path.splitext(out)
    count = report.counts.get("files", 0)
    files = f"{plural(count, 'file')}, {stem}-p*{extension}" if count else ""
    warn(summary_text(report, files))


def print_problems(proxy: RecordingProxy, writer: RotatingWriter) -> bool:
    """Print what was lost. Return True if anything was."""
    stats, loss = proxy.stats, writer.loss
    lines = list(writer.failures)
    if loss.packets:
        lines.append(f"{loss.packets} packets ({loss.bytes} bytes) were not written: {loss.error}")
    elif loss.error and not lines:
        lines.append(f"the recording failed in part: {loss.error}")
    if stats.dropped_bytes:
        lines.append(
            f"stopped while the disk was full: {stats.dropped_bytes} bytes of packets were neither "
            "recorded nor forwarded"
        )
    for line in lines:
        warn(f"polymux: {line}")
    return bool(lines)


@contextlib.asynccontextmanager
async def workers_observed(
    top_url: str | None, metrics: str | None, out: str, workers: Supervisor
) -> AsyncIterator[None]:
    """Serve the state and the metrics of workers within the block."""
    async with (
        recorder_state(top_url, out, lambda: proxy_counters(workers.report)),
        metrics_endpoint(metrics, workers.collect),
    ):
        yield


async def wait_for_workers(upstream: str, workers: Supervisor) -> None:
    """Print where the workers listen, and wait until they are to end."""
    warn(f"listening at {workers.urls[0]}, forwarding to {parse_url(upstream)}")
    await workers.wait()
