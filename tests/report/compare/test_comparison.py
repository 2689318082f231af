"""Comparison of analyses: equal runs show nothing, and regressions are found."""

from __future__ import annotations

from random import Random

import pytest

from polymux.report.compare.comparison import MEASURES, Change, compare
from polymux.report.compare.conditions import BadCondition, Condition
from polymux.report.compare.measurements import EventTotal, Group, Measurements
from polymux.report.compare.output import html_page, junit_xml
from polymux.report.compare.statistics import binomial_test, compare_percentile

STREAMS = 600
RUN_NOISE = 0.02  # a whole run is this much slower or faster than another
PLANTED = ("latency", "lasted", "throughput", "stalls")


def simulated_run(seed: int, worse: str = "", by: float = 0.0) -> Measurements:
    """A run with noise in every stream and of the whole, and one measure worse by a share."""
    rng = Random(seed)
    group = Group(streams=STREAMS)
    pace = 1 + rng.uniform(-RUN_NOISE, RUN_NOISE)
    scale = {name: pace * (1 + by if name == worse else 1) for name in PLANTED}
    stalls = group.stalls["no-credit"] = EventTotal()
    for key in range(STREAMS):
        group.latency.add(key, int(3_000 * scale["latency"] * rng.lognormvariate(0, 0.4)))
        group.lasted.add(key, int(90_000 * scale["lasted"] * rng.lognormvariate(0, 0.4)))
        rate = 8e6 / scale["throughput"] * rng.lognormvariate(0, 0.3)
        group.throughput.add(key, int(rate))
        group.aborted += rng.random() < 0.03
        if rng.random() < 0.9:
            stalls.add(int(200_000 * scale["stalls"] * rng.lognormvariate(0, 0.4)))
    return {"all": group}


def reported(changes: list[Change]) -> list[Change]:
    return [change for change in changes if change.reported]


def test_equal_runs_raise_at_most_5_false_alarms_in_100() -> None:
    alarms = sum(
        bool(reported(compare(simulated_run(2 * n), simulated_run(2 * n + 1)))) for n in range(100)
    )
    assert alarms <= 5


def test_planted_regressions_of_20_percent_and_more_are_found() -> None:
    sizes = [0.05 + 0.45 * n / 19 for n in range(20)]
    found = {}
    for n, size in enumerate(sizes):
        worse = PLANTED[n % len(PLANTED)]
        changes = compare(simulated_run(1000 + n), simulated_run(2000 + n, worse, size))
        stem = "stalled" if worse == "stalls" else worse
        found[size] = any(
            change.worse and change.measure.startswith(stem) for change in reported(changes)
        )
    large = [found[size] for size in sizes if size >= 0.2]
    assert len(large) == 13
    assert sum(large) >= 0.95 * len(large)


def test_a_run_does_not_differ_from_itself() -> None:
    run = simulated_run(7)
    run["all"].violations["mplex.bad-flag"] = 3
    assert reported(compare(run, run)) == []
    assert all(change.difference.change == 0 for change in compare(run, run))


def test_violations_that_are_new_or_gone_are_always_reported() -> None:
    before, after = simulated_run(1), simulated_run(1)
    before["all"].violations = {"mplex.gone": 1, "mplex.stays": 1}
    after["all"].violations = {"mplex.new": 1, "mplex.stays": 2}
    changes = reported(compare(before, after))
    assert [(change.measure, change.worse) for change in changes] == [
        ("violations:mplex.new", True), ("violations:mplex.gone", False),
    ]  # fmt: skip


def test_a_group_that_is_only_in_one_run_has_no_changes_but_violations() -> None:
    after = simulated_run(1)
    after["new name"] = Group(streams=40, aborted=40, violations={"mplex.bad-flag": 1})
    (change,) = reported(compare(simulated_run(1), after))
    assert (change.group, change.measure) == ("new name", "violations:mplex.bad-flag")


def test_the_interval_of_a_percentile_holds_the_true_change() -> None:
    rng = Random(5)
    inside = 0
    for _ in range(100):
        before = sorted(int(1e6 * rng.lognormvariate(0, 0.5)) for _ in range(300))
        after = sorted(int(1.3e6 * rng.lognormvariate(0, 0.5)) for _ in range(300))
        found = compare_percentile(before, after, 0.5, 0.05)
        inside += found.low <= 0.3 <= found.high
    assert 85 <= inside <= 100


@pytest.mark.parametrize(
    ("successes", "trials", "share", "probability"),
    [(0, 10, 0.5, 2 / 1024), (5, 10, 0.5, 1.0), (3, 3, 0.5, 0.25), (0, 0, 0.5, 1.0)],
)
def test_the_binomial_test_is_exact(
    successes: int, trials: int, share: float, probability: float
) -> None:
    assert binomial_test(successes, trials, share) == pytest.approx(probability)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("latency_p50_us > +20%", True),
        ("latency_p50_us > +40%", False),
        ("latency_p50_us<-5%", False),
        ("lasted_p50_us > +0%", False),
        ("throughput_p50_bps < -10%", False),
        ("stalled_us > +10%", False),
        ("stalled_us:no-credit > 1000", True),
        ("violations > 0", True),
        ("violations > +0", True),
        ("violations:mplex.new > +0%", True),
        ("violations > 7", False),
        ("resets > +100", False),
    ],
)
def test_a_condition_holds_for_changes_that_are_more_than_chance(text: str, holds: bool) -> None:
    after = simulated_run(2, "latency", 0.3)
    after["all"].violations["mplex.new"] = 2
    changes = compare(simulated_run(1), after)
    assert bool(Condition.parse(text).violating(changes)) is holds


@pytest.mark.parametrize(
    "text", ["", "latency", "latency_us > +1%", "resets = 3", "resets > 10%", "resets:x > 1"]
)
def test_a_condition_that_cannot_be_meant_says_how_to_write_it(text: str) -> None:
    with pytest.raises(BadCondition, match=r"write|there are"):
        Condition.parse(text)


def test_names_from_the_wire_are_data_in_pages_and_junit_files() -> None:
    name = "<script>alert(1)</script>\x1b]0;x\x07"
    after = {name: Group(streams=40, aborted=40)}
    changes = compare({name: Group(streams=40)}, after)
    page = html_page("<b>before</b>", "after", changes)
    assert "<script>" not in page
    assert "<b>before" not in page
    junit = junit_xml([Condition.parse("resets > +1")], changes).decode()
    assert 'failures="1"' in junit
    assert "\x1b" not in junit
    assert "<script>" not in junit
    assert len(MEASURES) == len(set(MEASURES))
