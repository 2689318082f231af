"""--metrics: the metrics of a command for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import click

from polymux.cli.support.output import warn
from polymux.live.errors import describe_os_error
from polymux.live.hooks import LimitMeter, SessionMeter
from polymux.live.session.session import Session
from polymux.live.urls import BadUrl, parse_url
from polymux.metrics import Family, register
from polymux.metrics.prometheus import prometheus_library

Collect = Callable[[], Coroutine[Any, Any, list[Family]]]

ANSWER_SECONDS = 5.0  # for the event loop to collect the metrics


def metrics_option(command: Callable[..., object]) -> Callable[..., object]:
    """Add --metrics; the command receives `metrics`."""
    add: Callable[[Callable[..., object]], Callable[..., object]] = click.option(
        "--metrics", metavar="HOST:PORT",
        help="Serve metrics for Prometheus at http://HOST:PORT/metrics (extra `metrics`).",
    )  # fmt: skip
    return add(command)


class LoopSource:
    """Metrics that are collected in an event loop, for a thread that wants them.

    Args:
        collect: Returns them; called in the running event loop.
    """

    def __init__(self, collect: Collect) -> None:
        self._collect = collect
        self._loop = asyncio.get_running_loop()

    def collect(self) -> list[Family]:
        """Return all families. Call it in another thread."""
        return asyncio.run_coroutine_threadsafe(self._collect(), self._loop).result(ANSWER_SECONDS)


@contextlib.asynccontextmanager
async def metrics_endpoint(address: str | None, collect: Collect) -> AsyncIterator[None]:
    """Serve metrics over HTTP within the block; without an address, do nothing.

    Args:
        address: HOST:PORT; port 0 takes a free one.
        collect: Returns the metrics; called in the running event loop.

    Raises:
        click.UsageError: The address is malformed or cannot be listened on.
        MissingExtra: prometheus-client is not installed.
    """
    if address is None:
        yield
        return
    client = prometheus_library()
    loop = asyncio.get_running_loop()
    try:
        where = parse_url(f"tcp://{address}")
    except BadUrl as problem:
        raise click.UsageError(f"--metrics {address}: write HOST:PORT: {problem}") from None
    registry = client.CollectorRegistry()
    register(LoopSource(collect), registry)
    try:
        server, _ = client.start_http_server(where.port, where.host, registry)
    except (OSError, OverflowError) as problem:
        reason = describe_os_error(problem) if isinstance(problem, OSError) else str(problem)
        raise click.UsageError(f"--metrics {address}: cannot listen there: {reason}") from None
    host = f"[{where.host}]" if ":" in where.host else where.host
    warn(f"metrics at http://{host}:{server.server_port}/metrics")
    try:
        yield
    finally:
        await loop.run_in_executor(None, server.shutdown)
        server.server_close()


@contextlib.asynccontextmanager
async def meter_endpoint(
    address: str | None, collect: Callable[[], list[Family]] | None
) -> AsyncIterator[None]:
    """`metrics_endpoint`, for metrics of this process; without them, do nothing."""

    async def collected() -> list[Family]:
        return collect() if collect is not None else []

    async with metrics_endpoint(address if collect is not None else None, collected):
        yield


class Meters:
    """Notifies several meters of everything."""

    def __init__(self, meters: Sequence[SessionMeter]) -> None:
        self._meters = meters

    def begun(self, session: Session) -> None:
        """A session has begun."""
        for meter in self._meters:
            meter.begun(session)

    def ended(self, session: Session) -> None:
        """A session has ended."""
        for meter in self._meters:
            meter.ended(session)

    def refused(self, peer: str, reason: str) -> None:
        """A server has refused a peer."""
        for meter in self._meters:
            meter.refused(peer, reason)

    def limit_hit(self, protocol: str, limit: str) -> None:
        """A limit on the connections of a server was hit."""
        for meter in self._meters:
            if isinstance(meter, LimitMeter):
                meter.limit_hit(protocol, limit)


def joined_meter(*meters: SessionMeter | None) -> SessionMeter | None:
    """Return what notifies all of these meters that are not None; None if all are."""
    given = [meter for meter in meters if meter is not None]
    return Meters(given) if len(given) > 1 else next(iter(given), None)
