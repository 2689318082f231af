"""polymux against itself: no protocol fails in either role, and captures are judged the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran, run  # noqa: F401  (a fixture)
from tests.conform.peers import examine_testee

from polymux.core.conformance import Verdict
from polymux.testing import conform

PROTOCOLS = (
    "mplex", "nerdbank", "nerdbank:version=2", "nerdbank:version=1", "omnistreams",
    "omnistreams:numbering=legacy", "streamux", "minmux", "yamux",
)  # fmt: skip


@pytest.mark.parametrize("role", ["dialer", "acceptor"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_polymux_conforms_and_check_judges_each_capture_the_same(
    protocol: str,
    role: str,
    tmp_path: Path,
    run: Callable[..., Ran],  # noqa: F811
) -> None:
    results = asyncio.run(examine_testee(protocol, role, captures=tmp_path))
    assert results.cooperation == 2
    assert results.note == ""
    assert conform.failure_text(results) == ""
    assert len(results.cases) >= 20
    for result in results.cases:
        broken = {rule for sender, rule in result.violations if sender == "tester"}
        assert set(result.case.breaks) <= broken, result
        if role == "dialer":  # what is judged does not depend on the role
            assert judged_by_check(run, result, role) == set(result.violations), result.case.id


def judged_by_check(
    run: Callable[..., Ran],  # noqa: F811
    result: conform.CaseResult,
    role: str,
) -> set[tuple[str, str]]:
    """(sender, rule) of what `polymux check` finds in the capture of a case."""
    ran = run("check", result.capture, "--json", "--severity", "note")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    return {
        ("tester" if row["sender"] == role else "peer", row["rule"])
        for row in rows
        if "rule" in row
    }


@pytest.mark.parametrize("protocol", ["nerdbank", "omnistreams", "streamux", "yamux"])
def test_without_cooperation_a_live_peer_is_told_from_a_wedged_one(protocol: str) -> None:
    results = asyncio.run(examine_testee(protocol, level=0))
    assert conform.failure_text(results) == ""
    assert len(results.cases) >= 10


@pytest.mark.parametrize("protocol", ["mplex", "minmux"])
def test_where_nothing_is_answered_silence_is_no_failure(protocol: str) -> None:
    results = asyncio.run(examine_testee(protocol, level=0, timeout=0.3, jobs=8))
    assert conform.failure_text(results) == ""
    assert len(results.cases) >= 10


def test_cases_can_run_side_by_side() -> None:
    results = asyncio.run(examine_testee("mplex", jobs=8))
    assert conform.failure_text(results) == ""
    assert results.verdict("MPLEX-HDR-2") is Verdict.OK


def test_a_run_of_chosen_cases_has_only_those() -> None:
    results = asyncio.run(examine_testee("mplex", names=["MPLEX-HDR-2/flag-7"]))
    assert [result.case.id for result in results.cases] == ["MPLEX-HDR-2/flag-7"]
    with pytest.raises(KeyError):
        results.verdict("MPLEX-HDR-1")
