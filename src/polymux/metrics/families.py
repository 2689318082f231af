"""Metric families as plain data, independent of any exposition format."""

from __future__ import annotations

from dataclasses import dataclass, field

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
