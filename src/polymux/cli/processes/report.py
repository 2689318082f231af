"""`Report`: what one process of a command has done so far, and the sum of several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Report:
    """Numbers by their names.

    Attributes:
        counts: What was counted since the start.
        levels: What there is now.
        worst: Of what there is now, the highest: it is not added up.
    """

    counts: dict[str, int] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)

    def at_end(self) -> Report:
        """What is left of a report when its process has ended."""
        return replace(self, levels=dict.fromkeys(self.levels, 0), worst={})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def joined_report(reports: Iterable[Report]) -> Report:
    """Return the sum of the reports of several processes."""
    total = Report()
    for report in reports:
        for name, count in report.counts.items():
            total.counts[name] = total.counts.get(name, 0) + count
        for name, level in report.levels.items():
            total.levels[name] = total.levels.get(name, 0) + level
        for name, value in report.worst.items():
            total.worst[name] = max(total.worst.get(name, 0.0), value)
    return total
