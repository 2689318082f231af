"""`polymux record`: a recording proxy between two peers."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import sys
from contextlib import suppress
from typing import Literal

import click

from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_LIMIT
from polymux.cli.support.frame_log import FrameLog, verbose_option
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import (
    audit_option,
    connection_limits,
    connection_options,
    open_audit_log,
)
from polymux.cli.support.queued_output import queued_output
from polymux.cli.support.recording_sensor import recording_comment, recording_sensor_option
from polymux.cli.support.redaction_options import (
    make_redaction,
    names_option,
    payload_option,
    redaction_comment,
)
from polymux.cli.support.signals import stop_event
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
from polymux.protocols.registry import parse_protocol
from polymux.record.crash_recovery import recover_partial_captures
from polymux.record.proxy import RecordingProxy
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
    redaction = requested_redaction(payload, names, protocol, keep_secrets)
    allowed = allowed_clients(allow, [listen], client_ca)
    own = listening_context([listen], cert, key, client_ca, crl)
    theirs = upstream_context(upstream, ca, server_name, client_cert, client_key, insecure)
    note = NOT_VERIFIED_NOTE if insecure else ""
    secrets = open_secret_log((listen, upstream), own, theirs) if keep_secrets else None
    comment = section_comment(sensor, note, redaction)
    with queued_output(), open_audit_log(audit) as audit_log:
        if rotate_size or rotate_time:
            publish_partial_captures(out)
        writer = open_writer(out, rotate_size, rotate_time, sync, index, comment)
        try:
            proxy = RecordingProxy(
                listen, upstream, writer, protocol=protocol, tls=own, upstream_tls=theirs,
                server_hostname=server_name, on_full=on_full, note=note,
                limits=connection_limits(backlog, clients, per_host),
                observer=(lambda dialer: FrameLog(protocol, dialer).feed) if verbose else None,
                allow=allowed, audit=audit_log, secrets=secrets, redaction=redaction,
            )  # fmt: skip
            asyncio.run(run_proxy(proxy, top_url, out))
        except BaseException:
            close_or_discard(writer)
            raise
        finally:
            if secrets is not None:
                secrets.close()
        with suppress(CaptureError):  # also in `writer.failures`, which `print_result` prints
            writer.close()
        lost = print_result(proxy, writer)
    if lost:
        context.exit(EXIT_LIMIT)


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
    out: str, rotate_bytes: int, rotate_seconds: float, sync: SyncOption, index: bool, comment: str
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
            background=True,
        )
    except CaptureError as problem:
        if os.path.exists(out) or os.path.exists(f"{out}.part"):
            raise click.UsageError(str(problem)) from None
        warn(f"polymux: {problem}")
        sys.exit(EXIT_LIMIT)


def publish_partial_captures(out: str) -> None:
    """Publish the last files of an earlier recorder that was killed before it could do so."""
    recovered = recover_partial_captures(out)
    for name in recovered.published:
        warn(f"{name}: left behind by a recorder that was killed, published now")
    for problem in recovered.problems:
        warn(f"warning: {problem}")


def close_or_discard(writer: RotatingWriter) -> None:
    """After a failure: keep the file if it has packets, otherwise remove it."""
    with suppress(CaptureError):
        if writer.packets:
            writer.close()
        else:
            writer.discard()


def print_result(proxy: RecordingProxy, writer: RotatingWriter) -> bool:
    """Print what was recorded and what was lost. Return True if anything was lost."""
    stats, loss = proxy.stats, writer.loss
    files = ", ".join(writer.published) or "nothing"
    warn(
        f"{plural(stats.connections, 'connection')}, "
        f"{plural(stats.bytes_dialer, 'byte')} from dialers, "
        f"{stats.bytes_acceptor} from the upstream, {stats.refused} not forwarded; "
        f"written: {files}"
    )
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


async def run_proxy(proxy: RecordingProxy, top_url: str | None, out: str) -> None:
    """Run the proxy until SIGINT, SIGTERM or SIGHUP; `polymux top` can watch it at `top_url`."""
    stop = stop_event()

    def counters() -> dict[str, int]:
        stats = proxy.stats
        made = {
            "connections": stats.connections,
            "open": stats.open,
            "not_forwarded": stats.refused,
            "dialer_bytes": stats.bytes_dialer,
            "upstream_bytes": stats.bytes_acceptor,
        }
        if proxy.disk_full:
            made["waiting_for_disk_space"] = 1
        return made

    async with recorder_state(top_url, out, counters), proxy:
        warn(f"listening at {proxy.url}, forwarding to {proxy.upstream}")
        await stop.wait()
