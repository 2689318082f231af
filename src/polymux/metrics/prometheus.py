"""Prometheus exposition of a meter; needs prometheus-client (extra `metrics`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from polymux.core.errors import MissingExtra
from polymux.metrics.families import COUNTER, Family

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PREFIX = "polymux_"


def prometheus_library() -> Any:
    """Import prometheus-client. MissingExtra, with the command to install it, if it is missing."""
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise MissingExtra("metrics", "Prometheus text") from None
    return prometheus_client


class FamilySource(Protocol):
    """What has metrics: a `Meter`, or a `polymux.relay.Bridge`."""

    def collect(self) -> list[Family]:
        """Return all families with their current values."""


class MeterCollector:
    """Collector for a prometheus-client registry; reads the meter at every scrape."""

    def __init__(self, meter: FamilySource) -> None:
        self.meter = meter
        self._core = prometheus_library().core

    def collect(self) -> Iterator[Any]:
        for family in self.meter.collect():
            kind = (
                self._core.CounterMetricFamily
                if family.kind == COUNTER
                else self._core.GaugeMetricFamily
            )
            metric = kind(PREFIX + family.name, family.meaning, labels=list(family.labels))
            for sample in family.samples:
                metric.add_metric(list(sample.labels), sample.value)
            yield metric


def register(meter: FamilySource, registry: CollectorRegistry | None = None) -> None:
    """Add a meter to a registry.

    Args:
        meter: The meter to expose, or anything with a method `collect` like its own.
        registry: None for the default registry of prometheus-client.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    client = prometheus_library()
    (registry if registry is not None else client.REGISTRY).register(MeterCollector(meter))


def prometheus_text(meter: FamilySource) -> bytes:
    """Return the current state of a meter in the Prometheus text format.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    client = prometheus_library()
    registry = client.CollectorRegistry()
    register(meter, registry)
    text: bytes = client.generate_latest(registry)
    return text
