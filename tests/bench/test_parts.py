"""Each live part of the benchmark runs, with little work and without the packages of others."""

import importlib
import re

import pytest
from bench import footprint, growth, harness, session_costs
from bench.alternating_runs import required_time
from bench.fairness import jain, percentile
from bench.harness import Bound, Effort, Figure, NotMeasured, missed_targets
from bench.results import show
from bench.session_costs import SIDE_BY_SIDE

AT_MOST_NOISE = re.compile("memory|growth")  # of so little work
NO_FLOOR = ("requests", "growth")  # only peers, only exponents


@pytest.mark.parametrize(
    ("part", "least"),
    [("live", 15), ("pairs", 26), ("omnistreams", 8), ("streamux", 5), ("minmux", 6),
     ("pings", 48), ("fairness", 11), ("doors", 8), ("requests", 6), ("growth", 12)],
)  # fmt: skip
def test_a_live_part_measures_all_its_lines(
    part: str, least: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        harness, "EFFORT", Effort(rounds=1, seconds=0, work_share=0.01, third_party=False)
    )
    monkeypatch.setattr(footprint, "AMOUNTS", {"mplex": (2000, 200), "raw TCP": (0, 200)})
    monkeypatch.setattr(growth, "STREAMS", (1_000, 10_000))
    monkeypatch.setattr(growth, "SESSIONS", (100, 1_000))
    for name in ("SESSION_COUNTS", "FILE_COUNTS"):
        monkeypatch.setattr(session_costs, name, (SIDE_BY_SIDE, 2 * SIDE_BY_SIDE))
    monkeypatch.setattr(session_costs, "FRAME_COUNTS", (500, 1000))
    monkeypatch.setattr(session_costs, "SESSIONS_OF_FILES", 8 * SIDE_BY_SIDE)
    lines = importlib.import_module(f"bench.{part}").measure()
    measured = [line for line in lines if not isinstance(line, NotMeasured)]
    assert len(measured) >= least
    assert all(line.value > 0 for line in measured if not AT_MOST_NOISE.search(line.name))
    for line in lines:
        line.part = part
        assert line.as_json()["part"] == part
    show(lines)
    said = capsys.readouterr().out
    assert "targets are" in said
    assert part in NO_FLOOR or any(word in said for word in ("raw ", "bare", "asyncio"))


def test_rounds_that_are_quick_are_many() -> None:
    assert len(list(Effort(rounds=7, seconds=0).round_numbers())) == 7
    assert len(list(Effort(rounds=7, seconds=60).round_numbers())) == 28


def test_a_figure_is_better_when_it_is_less_unless_more_is_better() -> None:
    small = Figure("bytes", [1000.0, 900.0], "B", [Bound("demand", 2048)])
    large = Figure("bytes", [4096.0], "B", [Bound("demand", 2048)])
    unfair = Figure("index", [0.5], "Jain", [Bound("demand", 0.95)], higher_is_better=True)
    assert (small.value, small.best) == (950, 900)
    assert small.comparisons()[0].ratio == pytest.approx(2048 / small.value)
    assert [line for line, _ in missed_targets([small, large, unfair])] == [large, unfair]


def test_a_demand_is_a_floor_of_fixed_time() -> None:
    line = harness.Line(
        "opens", harness.Times(), 2000, "1/s", [required_time("20,000/s", 0.1)], "wall", 1
    )
    line.times.add(0.2, 0.2)
    (verdict,) = line.comparisons()
    assert verdict.ratio == pytest.approx(0.5)
    assert verdict.met is False


def test_fairness_is_one_for_equals_and_a_share_for_a_hog() -> None:
    assert jain([3.0, 3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_the_ninety_ninth_percentile_is_near_the_worst() -> None:
    assert percentile([float(i) for i in range(100)]) == 99
    assert percentile([1.0]) == 1
