"""`polymux chaos`: a proxy between two peers that injects faults by rules."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack

import click

from polymux.aio import Unreachable
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import connection_limits, connection_options
from polymux.cli.support.queued_output import queued_output
from polymux.cli.support.signals import stop_event
from polymux.cli.support.tls_options import (
    allowed_clients,
    listening_context,
    listening_tls_options,
    upstream_context,
    upstream_tls_options,
)
from polymux.relay.chaos import ChaosProxy
from polymux.relay.faults.relayed import check_rule
from polymux.relay.faults.rules import FAULTS, parse_rule


def fault_list() -> str:
    """The faults with their parameters, for the help text; `\\b` keeps the lines."""
    lines = []
    for kind in FAULTS.values():
        words = [kind.name if kind.name != "illegal" else "illegal:RULE"]
        for parameter in kind.parameters:
            text = f"{parameter.name}="
            words.append(text if parameter.default is None else f"[{text}]")
        lines.append(" ".join(words))
    return "\b\n" + "\n".join(lines)


@click.command(
    epilog="Example: polymux chaos tcp://127.0.0.1:9001 tcp://127.0.0.1:9000 --protocol mplex "
    "--rule 'name~upload* : delay 200ms' -o chaos.pcapng",
    no_args_is_help=True,
    help=f"""\
Listen at LISTEN, relay every session to UPSTREAM, and inject faults by rules.

A rule is SELECT : FAULT. SELECT is * for everything, or any of stream=d3, name~GLOB, opener=dialer,
nth=2, every=10, after=64k and after=2s. FAULT is one of these; the last seven concern whole
connections, with toxiproxy's names and units:

{fault_list()}

toward=upstream or toward=dialer limits a fault to one direction. illegal:RULE breaks a rule of the
protocol once (`polymux rules` lists them). Without rules the relay is transparent. With --control,
rules are listed, added and removed while it runs, by JSON lines. The command stops on SIGINT,
SIGTERM or SIGHUP.
""",
)
@click.argument("listen")
@click.argument("upstream")
@click.option(
    "--protocol", required=True, shell_complete=protocol_names,
    help="Protocol of both sides: NAME[:key=value,...].",
)  # fmt: skip
@click.option("--rule", "rules", multiple=True, metavar="RULE", help="SELECT : FAULT; repeatable.")
@click.option(
    "--control", metavar="URL", help="unix:// socket at which rules can be changed, mode 0600."
)
@click.option(
    "-o", "--out",
    help="Record both sides to this new capture (pcapng), with each fault as a comment.",
)  # fmt: skip
@connection_options
@listening_tls_options
@upstream_tls_options()
def chaos(
    listen: str,
    upstream: str,
    protocol: str,
    rules: tuple[str, ...],
    control: str | None,
    out: str | None,
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
) -> None:
    allowed = allowed_clients(allow, [listen], client_ca)
    own = listening_context([listen], cert, key, client_ca, crl)
    theirs = upstream_context(upstream, ca, server_name, client_cert, client_key, insecure)
    if out is not None and os.path.exists(out):
        raise click.UsageError(f"-o {out}: is there already; name a new file")
    for text in rules:  # before the capture is created
        check_rule(parse_rule(text), protocol)
    with ExitStack() as stack:
        sink = stack.enter_context(PcapngWriter(out)) if out is not None else None
        proxy = ChaosProxy(
            listen, upstream, protocol=protocol, rules=rules, control=control, sink=sink, tls=own,
            upstream_tls=theirs, server_hostname=server_name, allow=allowed,
            limits=connection_limits(backlog, clients, per_host),
        )  # fmt: skip
        stack.enter_context(queued_output())
        asyncio.run(run_proxy(proxy))
        print_result(proxy)


async def run_proxy(proxy: ChaosProxy) -> None:
    """Run the proxy until SIGINT, SIGTERM or SIGHUP."""
    stop = stop_event()
    try:
        await proxy.start()
    except Unreachable as problem:
        raise click.UsageError(str(problem)) from None
    try:
        count = plural(len(proxy.rules.rules), "rule")
        warn(f"listening at {proxy.url}, relaying to {proxy.upstream}, {count}")
        await stop.wait()
    finally:
        await proxy.close()


def print_result(proxy: ChaosProxy) -> None:
    """Print what was relayed, and how often each rule was injected."""
    stats = proxy.stats
    warn(
        f"{plural(proxy.connections, 'connection')}, {plural(stats.streams, 'stream')}, "
        f"{plural(stats.bytes_a, 'byte')} from dialers, {stats.bytes_b} from the upstream, "
        f"{stats.aborted} aborted, {proxy.refused} not relayed"
    )
    for number, rule in proxy.rules.rules.items():
        warn(f"rule {number}, injected {proxy.rules.injected[number]} times: {rule.text}")
