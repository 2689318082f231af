"""Metric families as plain data, independent of any exposition format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

COUNTER = "counter"
GAUGE = "gauge"

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """One value with its label values, in the order of `Family.labels`."""

    labels: Labels
    value: int


@dataclass
class Family:
    """One metric with all its samples. Counters never decrease during the life of a meter.

    Attributes:
        name: Name without the `polymux_` prefix.
        kind: "counter" or "gauge".
        meaning: Help text.
        labels: Label names.
        values: Value by label values.
    """

    name: str
    kind: str
    meaning: str
    labels: Labels
    values: dict[Labels, int] = field(default_factory=dict)

    def add(self, labels: Labels, value: int) -> None:
        """Add `value` to the sample with these label values."""
        self.values[labels] = self.values.get(labels, 0) + value

    @property
    def samples(self) -> list[Sample]:
        """All samples, sorted by their label values."""
        return [Sample(labels, value) for labels, value in sorted(self.values.items())]

    def copy(self) -> Family:
        return Family(self.name, self.kind, self.meaning, self.labels, dict(self.values))

    def as_json(self) -> list[object]:
        """Values that JSON can express, for `from_json`."""
        values = [[*labels, value] for labels, value in self.values.items()]
        return [self.name, self.kind, self.meaning, self.labels, values]

    @staticmethod
    def from_json(made: list[Any]) -> Family:
        """The family of which `as_json` has made this."""
        name, kind, meaning, labels, values = made
        samples = {tuple(entry[:-1]): entry[-1] for entry in values}
        return Family(name, kind, meaning, tuple(labels), samples)


class JoinedFamilies:
    """The metrics of several processes that do the same work, as sums.

    No counter decreases: what an ended process has counted is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Family] = {}

    def keep(self, families: Iterable[Family]) -> None:
        """A process has ended; these are its last metrics. Only its counters are kept."""
        add_families(self._kept, (family for family in families if family.kind == COUNTER))

    def total(self, running: Iterable[Iterable[Family]]) -> list[Family]:
        """Return the sums over all processes, given the metrics of those that run."""
        totals = {name: family.copy() for name, family in self._kept.items()}
        for families in running:
            add_families(totals, families)
        return list(totals.values())


def add_families(totals: dict[str, Family], families: Iterable[Family]) -> None:
    """Add the samples of each family to that of the same name."""
    for family in families:
        if family.name not in totals:
            totals[family.name] = family.copy()
            continue
        for labels, value in family.values.items():
            totals[family.name].add(labels, value)


SESSION_LABELS = ("protocol", "side")


def counters() -> list[Family]:
    """Return the counter families without samples."""
    return [
        Family("sessions_begun", COUNTER, "Connections that became sessions.", SESSION_LABELS),
        Family(
            "sessions_failed",
            COUNTER,
            "Sessions that failed, by cause.",
            (*SESSION_LABELS, "cause"),
        ),
        Family("refused", COUNTER, "Peers that a server has refused.", ()),
        Family(
            "identified_sessions",
            COUNTER,
            "Sessions of peers with a verified certificate, by its names.",
            ("protocol", "peer"),
        ),
        Family("streams_opened", COUNTER, "Streams opened by either side.", SESSION_LABELS),
        Family("frames", COUNTER, "Frames, by direction.", (*SESSION_LABELS, "direction")),
        Family(
            "bytes", COUNTER, "Bytes on the wire, by direction.", (*SESSION_LABELS, "direction")
        ),
        Family("stalls", COUNTER, "Times that reading paused for a slow reader.", SESSION_LABELS),
        Family(
            "limit_hits",
            COUNTER,
            "Times a limit or timeout was exceeded, by its name.",
            ("protocol", "limit"),
        ),
        Family(
            "violations",
            COUNTER,
            "Violations by peers, by the name of the rule.",
            ("protocol", "rule"),
        ),
    ]


def gauges() -> list[Family]:
    """Return the gauge families without samples."""
    return [
        Family("sessions", GAUGE, "Sessions that are open.", SESSION_LABELS),
        Family(
            "streams", GAUGE, "Streams that are open, or closed with unread data.", SESSION_LABELS
        ),
        Family(
            "streams_blocked",
            GAUGE,
            "Streams with queued data and no send credit.",
            SESSION_LABELS,
        ),
        Family(
            "unread_bytes",
            GAUGE,
            "Bytes received that the application has not read yet.",
            SESSION_LABELS,
        ),
        Family("queued_bytes", GAUGE, "Bytes that wait to be sent.", SESSION_LABELS),
        Family("waiting_answers", GAUGE, "Replies that wait to be sent.", SESSION_LABELS),
    ]
