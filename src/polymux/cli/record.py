"""`polymux record`: a recording proxy."""

from __future__ import annotations

import asyncio
import signal
import ssl
from contextlib import suppress
from typing import Literal

import click

from ..capture.rotation import RotatingWriter
from ..protocols.registry import parse
from ..record.tap import Tap


@click.command(
    epilog="Example: polymux record tcp://127.0.0.1:9001 tcp://127.0.0.1:9000 -o talk.pcapng "
    "--protocol mplex",
    no_args_is_help=True,
)
@click.argument("listen")
@click.argument("upstream")
@click.option("-o", "--out", required=True, help="The capture to write (pcapng).")
@click.option("--protocol", default="", help="Noted in the capture, so that nobody has to guess.")
@click.option("--rotate-size", default=0, help="Octets after which another file is begun.")
@click.option("--rotate-time", default=0.0, help="Seconds after which another file is begun.")
@click.option(
    "--sync", default="1", show_default=True, help="none, each, or seconds between syncs."
)
@click.option("--on-full", type=click.Choice(["gap", "block"]), default="gap", show_default=True)
@click.option("--cert", help="Certificate chain (PEM) to listen with on tls:// and wss://.")
@click.option("--key", help="Its private key (PEM).")
@click.option("--ca", help="Authorities (PEM) to verify the upstream with.")
@click.option("--insecure", is_flag=True, help="Do not verify the upstream; noted in the capture.")
@click.pass_context
def record(
    context: click.Context,
    listen: str,
    upstream: str,
    out: str,
    protocol: str,
    rotate_size: int,
    rotate_time: float,
    sync: str,
    on_full: Literal["gap", "block"],
    cert: str | None,
    key: str | None,
    ca: str | None,
    insecure: bool,
) -> None:
    """Stand between two peers: listen at LISTEN, forward to UPSTREAM, write down what passes."""
    if protocol:
        parse(protocol)
    if sync not in ("none", "each"):
        try:
            float(sync)
        except ValueError:
            raise click.UsageError(f"--sync is none, each or seconds, not {sync!r}") from None
    policy: float | Literal["none", "each"] = (
        "none" if sync == "none" else "each" if sync == "each" else float(sync)
    )
    writer = RotatingWriter(
        out, octets=rotate_size, seconds=rotate_time, sync=policy, on_full=on_full
    )
    if insecure:
        click.echo("warning: the upstream's certificate is not verified", err=True)
    tap = Tap(
        listen, upstream, writer, protocol=protocol, tls=own_tls(cert, key),
        upstream_tls=upstream_tls(ca, insecure),
        note="polymux: the upstream's certificate was not verified" if insecure else "",
    )  # fmt: skip
    try:
        asyncio.run(run(tap))
    finally:
        files = writer.close()
    counts = tap.counts
    click.echo(
        f"{counts.connections} connections, {counts.octets_dialer} octets from dialers, "
        f"{counts.octets_acceptor} from the upstream, {counts.refused} not forwarded; "
        f"written: {', '.join(files)}",
        err=True,
    )
    missed = writer.missed
    if missed.packets:
        click.echo(
            f"{missed.packets} packets ({missed.octets} octets) were not written: {missed.error}",
            err=True,
        )
        context.exit(5)


async def run(tap: Tap) -> None:
    """Until interrupted or terminated."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    async with tap:
        click.echo(f"listening at {tap.url}, forwarding to {tap.upstream}", err=True)
        await stop.wait()


def own_tls(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as problem:
        raise click.UsageError(f"--cert {cert}: {problem}") from None
    return context


def upstream_tls(ca: str | None, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as problem:
        raise click.UsageError(f"--ca {ca}: {problem}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
