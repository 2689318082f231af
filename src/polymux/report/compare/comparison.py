"""What changed between two analyses: violations, stalls, resets, latencies and throughput.

Every measure of every group is compared. A change is reported if chance does not explain it and it
is at least `MIN_CHANGE`: the level of each test is divided by their number (Bonferroni), so that
two equal runs show no change in 98 of 100 comparisons, however many groups there are. Rules that
are broken only before or only after are always reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from polymux.report.compare.measurements import EventTotal, Group, Measurements
from polymux.report.compare.statistics import (
    Difference,
    can_compare_percentile,
    compare_counts,
    compare_percentile,
    compare_sums,
)

# Share of comparisons of equal runs that report a change; runs that differ by 2 percent as
# a whole, which the tests do not know, have twice as many.
FALSE_ALARMS: Final = 0.01
MIN_CHANGE: Final = 0.1  # smaller ones are within what one machine does from run to run
PERCENTILES: Final = {
    "latency": (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)),
    "lasted": (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)),
    "throughput": (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)),
}
UNITS: Final = {"latency": "us", "lasted": "us", "throughput": "bps"}
MEASURES: Final = (
    "violations", "stalled_us", "resets",
    *(f"{stem}_{name}_{UNITS[stem]}" for stem, found in PERCENTILES.items() for name, _ in found),
)  # fmt: skip
"""The measures; `violations:RULE` and `stalled_us:CAUSE` are measures too."""

_Test = Callable[[float], Difference]  # from the level of the test to its result


@dataclass(frozen=True, slots=True)
class Change:
    """One measure of one group, before and after. `reported`: see the module."""

    group: str
    measure: str
    difference: Difference
    reported: bool

    @property
    def worse(self) -> bool:
        """Whether it is a change for the worse: more of everything but throughput."""
        rises = self.difference.change > 0
        return not rises if self.measure.startswith("throughput") else rises


def compare(before: Measurements, after: Measurements) -> list[Change]:
    """Compare all measures of all groups; the reported changes for the worse come first."""
    tests = [
        (label, measure, test)
        for label in sorted({*before, *after})
        for measure, test in _tests(before.get(label, Group()), after.get(label, Group()))
    ]
    alpha = FALSE_ALARMS / max(1, len(tests))
    changes = [_change(label, measure, test(alpha)) for label, measure, test in tests]
    changes.sort(
        key=lambda change: (
            not change.reported, not change.worse, -abs(change.difference.change), change.measure,
            change.group,
        )
    )  # fmt: skip
    return changes


def _change(group: str, measure: str, difference: Difference) -> Change:
    is_new = not difference.before and bool(difference.after)
    is_gone = bool(difference.before) and not difference.after
    if measure.startswith("violations:") and (is_new or is_gone):
        return Change(group, measure, difference, True)
    large = abs(difference.change) >= MIN_CHANGE
    return Change(group, measure, difference, difference.significant and large)


def _tests(before: Group, after: Group) -> Iterator[tuple[str, _Test]]:
    """The measures of a group that can be compared, each with its test."""
    streams = max(1, before.streams), max(1, after.streams)
    for rule in sorted({*before.violations, *after.violations}):
        counts = before.violations.get(rule, 0), after.violations.get(rule, 0)
        yield f"violations:{rule}", _count_test(counts, streams)
    totals = sum(before.violations.values()), sum(after.violations.values())
    yield "violations", _count_test(totals, streams)
    for cause in sorted({*before.stalls, *after.stalls}):
        found = before.stalls.get(cause, EventTotal()), after.stalls.get(cause, EventTotal())
        yield f"stalled_us:{cause}", _sum_test(*found, streams)
    yield "stalled_us", _sum_test(_all_stalls(before), _all_stalls(after), streams)
    yield "resets", _count_test((before.aborted, after.aborted), streams)
    for stem, shares in PERCENTILES.items():
        first = getattr(before, stem).sorted_values()
        second = getattr(after, stem).sorted_values()
        for name, share in shares:
            if can_compare_percentile(min(len(first), len(second)), share):
                yield f"{stem}_{name}_{UNITS[stem]}", _percentile_test(first, second, share)


def _count_test(counts: tuple[int, int], streams: tuple[int, int]) -> _Test:
    return lambda alpha: compare_counts(counts[0], streams[0], counts[1], streams[1], alpha)


def _sum_test(before: EventTotal, after: EventTotal, streams: tuple[int, int]) -> _Test:
    first = before.count, before.total_us, before.squares
    second = after.count, after.total_us, after.squares
    return lambda alpha: compare_sums(first, streams[0], second, streams[1], alpha)


def _percentile_test(before: Sequence[int], after: Sequence[int], share: float) -> _Test:
    return lambda alpha: compare_percentile(before, after, share, alpha)


def _all_stalls(group: Group) -> EventTotal:
    found = group.stalls.values()
    return EventTotal(
        sum(total.count for total in found),
        sum(total.total_us for total in found),
        sum(total.squares for total in found),
    )


def change_text(share: float) -> str:
    """`+20 %`, `-3.5 %`, `new` where there was nothing before."""
    if math.isinf(share):
        return "new"
    percent = 100 * share
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.1f} %"
