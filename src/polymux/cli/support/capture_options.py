"""The options that the capture commands share, and the request they add up to.

`capture_options` adds CAPTURES, --protocol, --port, --filter, --keys, --session, --sensor,
--sensor-from and --json to a command and passes all but the last on as one `CaptureRequest`;
`selection_options` adds the same without --json. `format_option` adds --format and combines it with
--json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps

import click

from polymux.analysis.options import DEFAULT_TABLES, AnalysisOptions, parse_ports
from polymux.analysis.tls.key_files import read_key_option
from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import SensorNaming
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import FORMATS, chosen_format

Callback = Callable[..., object]
JSON_HELP = "Print JSON lines (the default when output is piped)."
KEYS_HELP = (
    "TLS key logs (SSLKEYLOGFILE) that open encrypted sessions; secrets in the captures themselves "
    "are used anyway."
)
PROTOCOL_HELP = "NAME[:key=value,...], or auto to detect the protocol of each session."


def sensor_options(command: Callback) -> Callback:
    """Add --sensor and --sensor-from; the command receives `sensor` and `sensor_from`."""
    pattern: Callable[[Callback], Callback] = click.option(
        "--sensor-from", default="", metavar="PATTERN",
        help="Where each capture was taken, by its path: captures/{sensor}/**.",
    )  # fmt: skip
    name: Callable[[Callback], Callback] = click.option(
        "--sensor", default="", metavar="NAME", help="Where all captures were taken."
    )
    return name(pattern(command))


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Which sessions of which captures to read, and as which protocol."""

    files: tuple[str, ...]
    protocol: str = "auto"
    ports: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    session_prefix: str = ""
    key_files: tuple[str, ...] = ()
    sensor: str = ""
    sensor_from: str = ""

    def analysis_options(self, *tables: str, stream: str = "") -> AnalysisOptions:
        """Options for an analysis that produces `tables` (by default all but `content`).

        Raises:
            click.UsageError: --port, --sensor or --sensor-from is malformed.
        """
        try:
            ports = parse_ports(self.ports)
            sensors = SensorNaming(self.sensor, self.sensor_from)
        except ValueError as problem:
            raise click.UsageError(str(problem)) from None
        return AnalysisOptions(
            self.protocol,
            ports,
            frozenset(tables) or DEFAULT_TABLES,
            stream,
            read_keys(self.key_files),
            sensors,
        )


@lru_cache(maxsize=1)
def read_keys(names: tuple[str, ...]) -> KeyLog | None:
    """The key logs named by --keys; None without any.

    Raises:
        BadKeyLog: One of them cannot be used.
        MissingExtra: There are some, and what opens TLS is not installed.
    """
    return read_key_option(names) if names else None


def keys_option(command: Callback) -> Callback:
    """Add --keys; the command receives `key_files`."""
    add: Callable[[Callback], Callback] = click.option(
        "--keys", "key_files", multiple=True, metavar="FILE|DIR|GLOB", help=KEYS_HELP
    )
    return add(command)


def capture_options(command: Callback) -> Callback:
    """Add the shared options; the command receives `request: CaptureRequest` and `as_json`."""
    add: Callable[[Callback], Callback] = click.option(
        "--json", "as_json", is_flag=True, help=JSON_HELP
    )
    return selection_options(add(command))


def selection_options(command: Callback, metavar: str | None = None) -> Callback:
    """Add the options that select sessions; the command receives `request: CaptureRequest`.

    `metavar` names the inputs in the help text, for a command that takes more than captures.
    """

    @wraps(command)
    def run(
        *args: object,
        captures: tuple[str, ...],
        protocol: str,
        ports: tuple[str, ...],
        filters: tuple[str, ...],
        session: str,
        key_files: tuple[str, ...],
        sensor: str,
        sensor_from: str,
        **options: object,
    ) -> object:
        request = CaptureRequest(
            captures, protocol, ports, filters, session, key_files, sensor, sensor_from
        )
        return command(*args, request=request, **options)

    decorated: Callback = run
    for add in (
        sensor_options,
        click.option(
            "--session", default="", help="Only this session: its id, or the first characters."
        ),
        keys_option,
        click.option("--filter", "filters", multiple=True, help="Only these flows: host:port."),
        click.option(
            "--port", "ports", multiple=True,
            help="Only this port, and optionally its protocol: 9000=mplex.",
        ),
        click.option(
            "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
            help=PROTOCOL_HELP,
        ),
        click.argument("captures", nargs=-1, required=True, metavar=metavar),
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
