"""What an analysis prints: one line for each stream and what it met, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.report.table_builder import Play, Stage

from polymux.cli.support import findings_table as summary
from polymux.cli.support.findings_table import print_findings, summarize_findings


@pytest.fixture
def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], list[str]]:
    """The lines that are printed about these tables into a pipe, each space but one left out."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def lines(folder: Path) -> list[str]:
        print_findings(str(folder))
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return lines


def trouble() -> Stage:
    stage = Stage()
    play = Play(stage, "s1", "nerdbank", version="3")
    play.stream("d1", "bulk\x1b[31m", ending="reset", reset_by="acceptor", error="enough")
    play.stream("d3", "quiet", ending="clean")
    for at, lasted in ((1_000, 90_000), (200_000, 300_000), (900_000, 60_000)):
        play.stall(
            at, lasted, "d1", "dialer", "no-credit", detail=f"no send credit for {lasted} us"
        )
    play.stall(5_000, 800_000, "d3", "dialer", "sender-idle")
    play.violation(10, "dialer", "nerdbank.window-exceeded", "d1", detail="20 bytes too many")
    play.violation(20, "dialer", "nerdbank.unknown-code", None, "note")
    play.end(1_000_000)
    return stage


Printed = Callable[[Path], list[str]]


def test_occurrences_on_a_stream_are_one_line_and_the_worst_is_told(
    tmp_path: Path, printed: Printed
) -> None:
    lines = printed(trouble().write(tmp_path))
    found = [line for line in lines if line.startswith("s1 nerdbank 10.0.0.7:50112 > ")]
    assert [line.split(" d1 ", 1)[1] for line in found] == [
        r"bulk\u001b[31m dialer broke nerdbank.window-exceeded on d1: 20 bytes too many",
        r"bulk\u001b[31m acceptor granted no credit on d1: dialer was blocked for 300 ms "
        r"(no-credit); 3 times, "
        "450 ms in total no send credit for 300000 us",
        r"bulk\u001b[31m acceptor reset d1: enough",
    ]
    assert not any("quiet" in line or "unknown-code" in line for line in lines)


def test_a_peer_that_did_not_answer_is_a_finding(tmp_path: Path, printed: Printed) -> None:
    stage = Stage()
    play = Play(stage, "s1", "streamux")
    play.stream("d1", "asked", ending="half-closed", ended_dialer="ended")
    play.stall(0, 12_000_000, "d1", "acceptor", "no-reply", detail="dialer had ended its half")
    play.end(12_000_000)
    lines = printed(stage.write(tmp_path))
    assert any("acceptor did not answer dialer on d1 for 12 s (no-reply)" in x for x in lines)
    assert not any("nothing" in line for line in lines)


def test_the_culprit_of_a_wait_is_told_by_name(tmp_path: Path, printed: Printed) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    play.stream("d1", "backup", ending="clean")
    play.stream("d3", "chat", ending="clean")
    play.stall(0, 700_000, "d3", "dialer", "head-of-line", culprit="d1")
    play.end(1_000_000)
    (line,) = [line for line in printed(stage.write(tmp_path)) if "chat" in line]
    assert "dialer's d3 was head-of-line blocked by d1 (backup) for 700 ms (head-of-line)" in line


def test_without_findings_that_is_what_is_said(tmp_path: Path, printed: Printed) -> None:
    stage = Stage()
    Play(stage, "s1").end(1000)
    assert printed(stage.write(tmp_path)) == ["nothing wrong was found"]


@pytest.mark.parametrize("ending", ["open", "half-closed"])
def test_an_unfinished_stream_is_not_called_nothing_wrong(
    ending: str, tmp_path: Path, printed: Printed
) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    play.stream("d1", "x", ending=ending)
    play.end(1000)
    assert printed(stage.write(tmp_path)) == [
        "no rule was broken and no stream stalled; 1 stream not seen to end"
    ]


def test_a_protocol_that_does_not_fit_its_bytes_is_said_first(
    tmp_path: Path, printed: Printed
) -> None:
    stage = Stage()
    note = "the bytes look like nerdbank:version=3 (46 of 46 fit), but the option says mplex"
    play = Play(stage, "s1", note=note)
    play.violation(10, "dialer", "mplex.bad-flag", None, certainty="possible")
    play.end(1000)
    _, _, first, second = printed(stage.write(tmp_path))
    assert note in first
    assert "dialer may have broken mplex.bad-flag" in second


def test_what_does_not_fit_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    for number in range(1, 161, 2):
        play.stream(f"d{number}", "x", ending="reset", reset_by="dialer")
    play.end(1000)
    tables = stage.write(tmp_path)
    assert "and 40 more" in printed(tables)
    monkeypatch.setattr(summary, "MAX_FINDINGS", 50)
    found = summarize_findings(str(tables))
    assert (len(found.findings), found.not_listed) == (50, 30)
