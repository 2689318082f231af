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


WHO = ("protocol", "side")


def counters() -> list[Family]:
    """Fresh counters, all at nothing."""
    return [
        Family("sessions_begun", COUNTER, "Connections that became sessions.", WHO),
        Family("sessions_failed", COUNTER, "Sessions that did not end in good order, by cause.",
               (*WHO, "cause")),
        Family("streams_opened", COUNTER, "Streams opened by either side.", WHO),
        Family("frames", COUNTER, "Frames, by direction.", (*WHO, "direction")),
        Family("bytes", COUNTER, "Bytes on the wire, by direction.", (*WHO, "direction")),
        Family("stalls", COUNTER, "Times that reading stopped for a slow reader.", WHO),
        Family("limit_hits", COUNTER, "Times a limit or deadline was hit, by its name.",
               ("protocol", "limit")),
        Family("violations", COUNTER, "Times a peer broke a rule, by the rule's name.",
               ("protocol", "rule")),
    ]  # fmt: skip


def gauges() -> list[Family]:
    """Fresh gauges, all at nothing."""
    return [
        Family("sessions", GAUGE, "Sessions that are open.", WHO),
        Family("streams", GAUGE, "Streams that are not over, or not read to their end.", WHO),
        Family("streams_blocked", GAUGE, "Streams with something to send and no credit.", WHO),
        Family("unread_bytes", GAUGE, "Bytes received that the application has not read yet.", WHO),
        Family("queued_bytes", GAUGE, "Bytes that wait to be sent.", WHO),
        Family("waiting_answers", GAUGE, "Answers that wait to be sent.", WHO),
    ]  # fmt: skip
