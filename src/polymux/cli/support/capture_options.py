"""The options that the capture commands share, and the request they add up to.

`capture_options` adds CAPTURES, --protocol, --port, --filter, --session and --json to a command and
passes the first five on as one `CaptureRequest`. `format_option` adds --format and combines it with
--json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import click

from polymux.analysis.options import DEFAULT_TABLES, AnalysisOptions, parse_ports
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import FORMATS, chosen_format

Callback = Callable[..., object]
JSON_HELP = "Print JSON lines (the default when output is piped)."
PROTOCOL_HELP = "NAME[:key=value,...], or auto to detect the protocol of each session."


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Which sessions of which captures to read, and as which protocol."""

    files: tuple[str, ...]
    protocol: str = "auto"
    ports: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    session_prefix: str = ""

    def analysis_options(self, *tables: str, stream: str = "") -> AnalysisOptions:
        """Options for an analysis that produces `tables` (by default all but `content`).

        Raises:
            click.UsageError: --port is malformed.
        """
        try:
            ports = parse_ports(self.ports)
        except ValueError as problem:
            raise click.UsageError(str(problem)) from None
        return AnalysisOptions(self.protocol, ports, frozenset(tables) or DEFAULT_TABLES, stream)


def capture_options(command: Callback) -> Callback:
    """Add the shared options; the command receives `request: CaptureRequest` and `as_json`."""

    @wraps(command)
    def run(
        *args: object,
        captures: tuple[str, ...],
        protocol: str,
        ports: tuple[str, ...],
        filters: tuple[str, ...],
        session: str,
        **options: object,
    ) -> object:
        request = CaptureRequest(captures, protocol, ports, filters, session)
        return command(*args, request=request, **options)

    decorated: Callback = run
    for add in (
        click.option("--json", "as_json", is_flag=True, help=JSON_HELP),
        click.option(
            "--session", default="", help="Only this session: its id, or the first characters."
        ),
        click.option("--filter", "filters", multiple=True, help="Only these flows: host:port."),
        click.option(
            "--port", "ports", multiple=True,
            help="Only this port, and optionally its protocol: 9000=mplex.",
        ),
        click.option(
            "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
            help=PROTOCOL_HELP,
        ),
        click.argument("captures", nargs=-1, required=True),
    ):  # fmt: skip
        decorated = add(decorated)
    return decorated


def format_option(command: Callback) -> Callback:
    """Add --format; the command receives `output_format`, in which --json is included."""

    @wraps(command)
    def run(*args: object, as_json: bool, form: str | None, **options: object) -> object:
        return command(*args, output_format=chosen_format(as_json, form), **options)

    add = click.option(
        "--format", "form", type=click.Choice(FORMATS),
        help="Output format (default: table on a terminal, json when output is piped).",
    )  # fmt: skip
    return add(run)


FAIL_ON_CHOICES = ("findings", "violations")


def fail_on_option(command: Callback) -> Callback:
    """Add --fail-on, for commands that otherwise succeed whatever they find."""
    add: Callable[[Callback], Callback] = click.option(
        "--fail-on", type=click.Choice(FAIL_ON_CHOICES),
        help="Exit with code 1 if there are any findings (violations and stalls), or any "
        "violations (of severity warning or error).",
    )  # fmt: skip
    return add(command)
