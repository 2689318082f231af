"""The sensor of what `record` and `collect` write: an option, and the comment it becomes."""

from __future__ import annotations

from collections.abc import Callable

import click

from polymux.capture.packets.flows import check_sensor, local_sensor
from polymux.capture.pcapng.comments import sensor_comment

Callback = Callable[..., object]


def recording_sensor_option(command: Callback) -> Callback:
    """Add --sensor to a command that records; the command receives `sensor`."""
    add: Callable[[Callback], Callback] = click.option(
        "--sensor", default="", metavar="NAME",
        help="Where this is recorded, noted in the capture; by default the name of this host.",
    )  # fmt: skip
    return add(command)


def recording_comment(sensor: str) -> str:
    """The comment of a recording made at a sensor; by default at this host.

    Raises:
        click.UsageError: --sensor is malformed.
    """
    try:
        check_sensor(sensor or local_sensor())
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    return sensor_comment(sensor or local_sensor())
