"""What a meter gives: families of samples, as plain data, whoever writes them down."""

from __future__ import annotations

from dataclasses import dataclass, field

COUNTER = "counter"
GAUGE = "gauge"

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """One number and the values of its family's labels."""

    labels: Labels
    value: int


@dataclass
class Family:
    """Numbers of one meaning. A counter only grows as long as its meter lives."""

    name: str
    kind: str
    meaning: str
    labels: Labels
    values: dict[Labels, int] = field(default_factory=dict)

    def add(self, labels: Labels, value: int) -> None:
        self.values[labels] = self.values.get(labels, 0) + value

    @property
    def samples(self) -> list[Sample]:
        return [Sample(labels, value) for labels, value in sorted(self.values.items())]

    def copy(self) -> Family:
        return Family(self.name, self.kind, self.meaning, self.labels, dict(self.values))


SESSION_LABELS = ("protocol", "side")


def counters() -> list[Family]:
    """Fresh counters, all at nothing."""
    return [
        Family("sessions_begun", COUNTER, "Connections that became sessions.", SESSION_LABELS),
        Family(
            "sessions_failed",
            COUNTER,
            "Sessions that did not end in good order, by cause.",
            (*SESSION_LABELS, "cause"),
        ),
        Family("streams_opened", COUNTER, "Streams opened by either side.", SESSION_LABELS),
        Family("frames", COUNTER, "Frames, by direction.", (*SESSION_LABELS, "direction")),
        Family(
            "bytes", COUNTER, "Bytes on the wire, by direction.", (*SESSION_LABELS, "direction")
        ),
        Family("stalls", COUNTER, "Times that reading stopped for a slow reader.", SESSION_LABELS),
        Family(
            "limit_hits",
            COUNTER,
            "Times a limit or deadline was hit, by its name.",
            ("protocol", "limit"),
        ),
        Family(
            "violations",
            COUNTER,
            "Times a peer broke a rule, by the rule's name.",
            ("protocol", "rule"),
        ),
    ]


def gauges() -> list[Family]:
    """Fresh gauges, all at nothing."""
    return [
        Family("sessions", GAUGE, "Sessions that are open.", SESSION_LABELS),
        Family(
            "streams", GAUGE, "Streams that are not over, or not read to their end.", SESSION_LABELS
        ),
        Family(
            "streams_blocked",
            GAUGE,
            "Streams with something to send and no credit.",
            SESSION_LABELS,
        ),
        Family(
            "unread_bytes",
            GAUGE,
            "Bytes received that the application has not read yet.",
            SESSION_LABELS,
        ),
        Family("queued_bytes", GAUGE, "Bytes that wait to be sent.", SESSION_LABELS),
        Family("waiting_answers", GAUGE, "Answers that wait to be sent.", SESSION_LABELS),
    ]
