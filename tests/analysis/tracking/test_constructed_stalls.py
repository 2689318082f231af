"""Constructed stalls: cause, side, duration and totals are known and must be reported."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.constructed_stall_cases import all_cases
from tests.analysis.constructed_stalls import SIDES, Case
from tests.analysis.recorded_conversation import Found, analyse

from polymux.analysis.options import AnalysisOptions

RIGHT = 0.98  # share of the causes that must be right
NEAR = 0.10  # tolerance of durations, plus the millisecond that a frame takes


def near(found: float, truth: float) -> bool:
    return abs(found - truth) <= NEAR * truth + 1.0


def wrong_causes(case: Case, found: Found) -> str:
    """How the rows differ from the construction; "" if they do not."""
    rows = [
        (str(row["stream"]), str(row["sender"]), str(row["cause"]))
        for row in found.rows("stalls")
        if (case.idle or row["cause"] != "sender-idle") and row["stream"] not in case.hogs
    ]
    truth = [(stream, SIDES[side], cause) for stream, side, cause, _ in case.rows]
    return "" if sorted(rows) == sorted(truth) else f"{rows} and not {truth}"


def wrong_figures(case: Case, found: Found) -> str:
    """Which durations or totals are wrong; "" if none."""
    lasted = {(row["stream"], row["cause"]): row["duration_us"] for row in found.rows("stalls")}
    said = []
    for stream, _, cause, truth in case.rows:
        ms = lasted.get((stream, cause))
        if isinstance(ms, int) and not near(ms / 1000, truth):
            said.append(f"{cause} {ms / 1000} and not {truth}")
    streams = [row for row in found.rows("streams") if row["stream"] not in case.hogs]
    for column, sums in (("hol_blocked_us", case.behind), ("blocked_us", case.blocked)):
        for side, truth in enumerate(sums or ()):
            ms = sum(int(str(row[f"{column}_{SIDES[side]}"] or 0)) for row in streams) / 1000
            if not near(ms, truth):
                said.append(f"{column} of the {SIDES[side]} {ms} and not {truth}")
    return "; ".join(said)


def test_constructed_stalls_have_the_right_cause_and_figures(tmp_path: Path) -> None:
    cases = all_cases()
    assert len(cases) >= 139
    causes, figures = [], []
    for number, case in enumerate(cases):
        found = analyse(
            case.write(tmp_path / f"{number}.pcapng"), plan=AnalysisOptions(case.protocol)
        )
        broken = [row for row in found.rows("violations") if row["severity"] != "note"]
        assert not broken, f"{case.name}: {broken}"
        if wrong := wrong_causes(case, found):
            causes.append(f"{case.name}: {wrong}")
        elif wrong := wrong_figures(case, found):
            figures.append(f"{case.name}: {wrong}")
    right = 1 - len(causes) / len(cases)
    assert right >= RIGHT, f"{right:.1%} of {len(cases)} causes are right\n" + "\n".join(causes)
    assert not figures, "\n".join(figures)
