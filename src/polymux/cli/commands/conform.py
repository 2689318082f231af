"""`polymux conform`: examine a peer by the conformance cases of its protocol."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import click

from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_FINDINGS
from polymux.cli.support.output import (
    TableColumn,
    console,
    is_interactive,
    json_line,
    plural,
    print_table,
    warn,
)
from polymux.cli.support.progress import ProgressBar
from polymux.cli.support.signals import stop_event
from polymux.cli.support.tls_options import check_effect, is_secure
from polymux.conform.catalogue import NoSuchRequirement, select
from polymux.conform.report.html import check_html, write_html
from polymux.conform.report.junit import check_junit, write_junit
from polymux.conform.report.records import case_record, catalogue_records, summary_record
from polymux.conform.results import Results
from polymux.conform.runner import ROLES, PeerTester
from polymux.core.conformance import Verdict
from polymux.protocols import registry
from polymux.record import tls_contexts


@click.command(
    epilog="Example: polymux conform tcp://127.0.0.1:9000 --protocol mplex --level 1 --junit "
    "conform.xml. Exit code 1: a case FAILED or is WEDGED; 4: the peer could not be reached.",
    no_args_is_help=True,
)
@click.argument("url", required=False)
@click.argument("names", nargs=-1, metavar="[RULE]...")
@click.option(
    "--protocol", shell_complete=protocol_names, help="NAME[:key=value,...], such as mplex."
)
@click.option(
    "--role", type=click.Choice(ROLES), default="dialer", show_default=True,
    help="The tester's role. An acceptor listens at URL and examines what connects, with one "
    "connection for each case.",
)  # fmt: skip
@click.option(
    "--level", type=click.IntRange(0, 2), default=0, show_default=True,
    help="What the peer does for the test. 0: nothing; 1: it echoes every stream; 2: it obeys the "
    "commands of `polymux testee`.",
)  # fmt: skip
@click.option(
    "--exec", "command", default="",
    help="With --role acceptor: start this command for each case; {url} in it is where to connect.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 if a case is NON-STRICT, too.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=2.0, show_default=True,
    help="Seconds to wait for each reaction of the peer, or progress towards it, and for its "
    "connection; a command of --exec has 30 s to connect.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=1, show_default=True,
    help="Cases to run at a time, for a peer that serves several connections (dialer only).",
)  # fmt: skip
@click.option("--junit", help="Write the results to this file as JUnit XML.")
@click.option(
    "--html",
    help="Write pages into this folder: a matrix of all runs into it, and a page for each case.",
)
@click.option("--captures", help="Write a capture (pcapng) of each case into this folder.")
@click.option("--name", default="", help="The peer's name in reports, instead of URL.")
@click.option("--ca", help="Authorities (PEM) that verify the peer's certificate.")
@click.option("--insecure", is_flag=True, help="Do not verify the peer's certificate.")
@click.option(
    "--cert", help="Certificate chain (PEM) to listen with, for tls:// and wss:// (acceptor)."
)
@click.option("--key", help="Private key of --cert (PEM), mode 0600.")
@click.option("--list", "listing", is_flag=True, help="List the requirements and cases, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@click.pass_context
def conform(
    context: click.Context,
    url: str | None,
    names: tuple[str, ...],
    protocol: str | None,
    role: str,
    level: int,
    command: str,
    strict: bool,
    timeout: float,
    jobs: int,
    junit: str | None,
    html: str | None,
    captures: str | None,
    name: str,
    ca: str | None,
    insecure: bool,
    cert: str | None,
    key: str | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Examine the peer at URL: how it treats valid and invalid frames, case by case.

    RULE is a requirement (MPLEX-HDR-2), a group of them (MPLEX-HDR), a case (MPLEX-HDR-2/flag-7) or
    a rule (mplex.bad-flag); without any, all cases that --level allows are run. Verdicts are OK,
    INFORMATIONAL (several readings are right), UNIMPLEMENTED, NON-STRICT (allowed, but unwise),
    FAILED, and WEDGED: neither an error nor progress. How the peer closed each connection is judged
    apart: clean, abrupt, late, none.
    """
    if listing:
        list_catalogue(protocol, (url, *names) if url else names, as_json)
        return
    if url is None or protocol is None:
        raise click.UsageError("URL and --protocol are needed, except with --list")
    if command and role != "acceptor":
        raise click.UsageError("--exec starts a client: it needs --role acceptor")
    tester = PeerTester(
        url, protocol, names, role=role, level=level, timeout=timeout, command=command,
        captures=Path(captures) if captures else None, jobs=jobs, peer=name,
        tls=tls_context(url, role, ca, insecure, cert, key),
    )  # fmt: skip
    check_levels(tester, names)
    if junit:
        check_junit(Path(junit))
    if html:
        check_html(Path(html))
    results = run_tester(tester)
    print_results(results, as_json)
    if junit:
        write_junit(Path(junit), results, strict)
    if html:
        page = write_html(Path(html), results)
        warn(f"pages: {page}")
    context.exit(EXIT_FINDINGS if results.failures(strict) else 0)


def check_levels(tester: PeerTester, names: tuple[str, ...]) -> None:
    """Refuse names by which nothing would be run, though the peer may seem examined."""
    lacking: dict[str, int] = {}
    for name in names:
        chosen = select(tester.protocol, [name])
        levels = [case.level for _, cases in chosen for case in cases]
        if not levels:
            reasons = [found.without_case for found, _ in chosen if found.without_case]
            reason = f": {reasons[0]}" if reasons else f" of {tester.protocol}"
            raise click.UsageError(f"{name}: there is no case{reason}")
        if min(levels) > tester.results.level:
            lacking[name] = min(levels)
    if lacking:
        raise click.UsageError(f"these need --level {max(lacking.values())}: {', '.join(lacking)}")


def tls_context(
    url: str, role: str, ca: str | None, insecure: bool, cert: str | None, key: str | None
) -> ssl.SSLContext | None:
    """The context for the role; None for a URL without TLS."""
    check_effect([url], {"--ca": ca, "--insecure": insecure, "--cert": cert, "--key": key})
    if not is_secure(url):
        return None
    if role == "acceptor":
        if cert is None:
            raise click.UsageError(f"{url}: needs a certificate to listen with: --cert and --key")
        return tls_contexts.server_context(cert, key)
    return tls_contexts.client_context(ca, insecure=insecure, cert=cert, key=key)


def run_tester(tester: PeerTester) -> Results:
    """Run the cases with a progress bar."""
    log = logging.getLogger("polymux.aio")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with ProgressBar("examining", len(tester.planned), unit="cases") as bar:
            tester.on_result = lambda result: bar.advance(1)
            return asyncio.run(run_until_stopped(tester))
    finally:
        log.setLevel(level)


async def run_until_stopped(tester: PeerTester) -> Results:
    """Run the cases; a signal ends the run, and the processes that it has started."""
    stop = asyncio.create_task(stop_event().wait())
    tester.on_listening = lambda where: warn(f"listening at {where}")
    work = asyncio.create_task(tester.run())
    try:
        await asyncio.wait((work, stop), return_when="FIRST_COMPLETED")
        if work.done():
            return work.result()
        raise click.Abort
    finally:
        stop.cancel()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def print_results(results: Results, as_json: bool) -> None:
    if not is_interactive(as_json):
        for result in results.cases:
            json_line(case_record(result))
        json_line({"summary": summary_record(results)})
        return
    shown = [result for result in results.cases if result.verdict is not Verdict.OK]
    if shown:
        print_table(
            "",
            (
                TableColumn("case"),
                TableColumn("verdict"),
                TableColumn("what was seen", min_width=30),
                TableColumn("closing", 2),
            ),
            [(r.case.id, r.verdict.value, r.detail, r.closing) for r in shown],
        )
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in results.counts().items())
    out = console()
    if results.note:
        out.print(results.note)
    out.print(
        f"{plural(len(results.cases), 'case')} in {results.seconds:.1f} s: {counts or 'none'}"
    )


def list_catalogue(protocol: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Print requirements with their cases, or why they have none."""
    protocols = [protocol] if protocol else registry.protocol_names()
    wanted = named_requirements(protocols, names) if names else None
    records = [
        {"protocol": text, **record}
        for text in protocols
        for record in catalogue_records(text)
        if wanted is None or (text, record["requirement"]) in wanted
    ]
    if not is_interactive(as_json):
        for record in records:
            json_line(record)
        return
    print_table(
        "",
        (
            TableColumn("requirement"),
            TableColumn("protocol", 2),
            TableColumn("kind", 2),
            TableColumn("what it says", min_width=30),
            TableColumn("cases, or why there is none", min_width=24),
        ),
        [
            (
                record["requirement"],
                record["protocol"],
                record["obligation"],
                record["sentence"],
                listing_text(record),
            )
            for record in records
        ],
    )


def named_requirements(protocols: list[str], names: tuple[str, ...]) -> set[tuple[str, object]]:
    """(protocol, requirement) of everything that is named; each name is one of some protocol.

    Raises:
        NoSuchRequirement: no protocol has one of these names.
    """
    found: set[tuple[str, object]] = set()
    for name in names:
        own: set[tuple[str, object]] = set()
        problem = None
        for text in protocols:
            try:
                own |= {(text, requirement.id) for requirement, _ in select(text, [name])}
            except NoSuchRequirement as unknown:
                problem = unknown
        if not own and problem is not None:
            if len(protocols) == 1:
                raise problem
            raise NoSuchRequirement(
                f"no protocol has a requirement, case or rule {name!r}; "
                "polymux conform --list shows them"
            )
        found |= own
    return found


def listing_text(record: dict[str, object]) -> str:
    """The cases of a requirement with their levels, or why it has none."""
    if record["without_case"]:
        return str(record["without_case"])
    cases = record["cases"]
    assert isinstance(cases, list)  # by catalogue_records
    return ", ".join(f"{case['case'].partition('/')[2]} ({case['level']})" for case in cases)
