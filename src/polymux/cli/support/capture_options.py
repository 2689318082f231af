"""Options that several commands share, and what they say together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import click

from polymux.analysis.options import DEFAULT_TABLES, AnalysisOptions, parse_ports
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import FORMATS

Command = TypeVar("Command", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What the caller wants read, and how."""

    files: tuple[str, ...]
    protocol: str = "auto"
    ports: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    session_prefix: str = ""

    def analysis_options(self, *tables: str, stream: str = "") -> AnalysisOptions:
        """The plan that makes these tables; a usage error if the options make no sense."""
        try:
            ports = parse_ports(self.ports)
        except ValueError as problem:
            raise click.UsageError(str(problem)) from None
        return AnalysisOptions(self.protocol, ports, frozenset(tables) or DEFAULT_TABLES, stream)


def capture_options(command: Command) -> Command:
    """CAPTURES, --protocol, --port, --filter and --json."""
    for add in (
        click.option(
            "--json", "as_json", is_flag=True, help="JSON lines; without it when piped, too."
        ),
        click.option("--filter", "filters", multiple=True, help="Only these flows: host:port."),
        click.option(
            "--port",
            "ports",
            multiple=True,
            help="Only this port, and what runs there: 9000=mplex.",
        ),
        click.option(
            "--protocol",
            default="auto",
            show_default=True,
            shell_complete=protocol_names,
            help="NAME[:key=value,...] or auto.",
        ),
        click.argument("captures", nargs=-1, required=True),
    ):
        command = add(command)
    return command


def format_option(command: Command) -> Command:
    """--format, for commands that list rows; passed on as `form`."""
    add: Callable[[Command], Command] = click.option(
        "--format", "form", type=click.Choice(FORMATS),
        help="How rows are written. Without it: text on a terminal, JSON lines into a pipe.",
    )  # fmt: skip
    return add(command)


FAIL_ON_CHOICES = ("findings", "violations")


def fail_on_option(command: Command) -> Command:
    """--fail-on, for commands that list what is wrong and else do not fail because of it."""
    add: Callable[[Command], Command] = click.option(
        "--fail-on", type=click.Choice(FAIL_ON_CHOICES),
        help="Exit code 1 if there is any: findings (violations and stalls) or violations "
        "(of severity warning or error).",
    )  # fmt: skip
    return add(command)


def session_option(command: Command) -> Command:
    """--session, for commands about one conversation."""
    add: Callable[[Command], Command] = click.option(
        "--session", default="", help="Only this session: its id, or the beginning of it."
    )
    return add(command)
