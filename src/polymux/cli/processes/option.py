"""--processes, and how its processes divide the limits of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import click

from polymux.core.limits import Limits
from polymux.live.one_of import OneOf

MAX_PROCESSES = 64


def processes_option(command: Callable[..., object]) -> Callable[..., object]:
    """Add --processes; the command receives `processes`."""
    add: Callable[[Callable[..., object]], Callable[..., object]] = click.option(
        "--processes", type=click.IntRange(1, MAX_PROCESSES), default=1, show_default=True,
        help="Processes that accept at the same address, and divide the limits among them.",
    )  # fmt: skip
    return add(command)


def check_divisible(processes: int, limits: Mapping[str, int | None]) -> None:
    """Refuse limits, by their options, of which not every process gets one. None, 0: no limit.

    Raises:
        click.UsageError: There is one.
    """
    for option, value in limits.items():
        if value and value < processes:
            raise click.UsageError(
                f"--processes {processes}: {option} {value} cannot be divided among them: raise "
                "it, or start fewer processes"
            )


def divided_limits(limits: Limits, one_of: OneOf, per_host: int | None) -> Limits:
    """Return one process's part of the limits of a server.

    Args:
        limits: Of all processes together.
        one_of: Which process.
        per_host: The value of --per-host; None: three quarters of --clients, also in each process.
    """
    sessions = one_of.share(limits.max_sessions)
    return replace(
        limits,
        max_sessions=sessions,
        max_sessions_per_address=per_host_limit(sessions, per_host, one_of),
        max_half_open=one_of.share(limits.max_half_open),
        server_buffer_bytes=one_of.share(limits.server_buffer_bytes),
    )


def per_host_limit(sessions: int, per_host: int | None, one_of: OneOf) -> int:
    """Return how many of a process's sessions may be of one address; 0: all."""
    return -(-3 * sessions // 4) if per_host is None else one_of.share(per_host)
