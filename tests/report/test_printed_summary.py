"""What an analysis prints: one line for each stream and what it met, in bounded memory."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from polymux.cli import summary
from polymux.cli.summary import summarise, summary_table

from .stage import Play, Stage


def printed(folder: Path) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=240, no_color=True).print(summary_table(str(folder)))
    return [" ".join(line.replace("│", " ").split()) for line in out.getvalue().splitlines()]


def trouble() -> Stage:
    stage = Stage()
    play = Play(stage, "s1", "nerdbank", version="3")
    play.stream("d1", "bulk\x1b[31m", ending="reset", reset_by="acceptor", error="enough")
    play.stream("d3", "quiet", ending="clean")
    for at, lasted in ((1_000, 90_000), (200_000, 300_000), (900_000, 60_000)):
        play.stall(at, lasted, "d1", "dialer", "no-credit", detail=f"no leave for {lasted} us")
    play.stall(5_000, 800_000, "d3", "dialer", "sender-idle")
    play.violation(10, "dialer", "nerdbank.window-exceeded", "d1", detail="20 octets too many")
    play.violation(20, "dialer", "nerdbank.unknown-code", None, "note")
    play.end(1_000_000)
    return stage


def test_occurrences_on_a_stream_are_one_line_and_the_worst_is_told(tmp_path: Path) -> None:
    lines = printed(trouble().write(tmp_path))
    found = [line for line in lines if line.startswith("nerdbank 10.0.0.7")]
    assert [line.split(" d1 ")[1] for line in found] == [
        r"bulk\u001b[31m error: nerdbank.window-exceeded 20 octets too many",
        r"bulk\u001b[31m stall: no-credit (dialer) 3 times, 450 ms in all; the longest: "
        "no leave for 300000 us",
        r"bulk\u001b[31m reset by the acceptor enough",
    ]
    assert not any("quiet" in line or "unknown-code" in line for line in lines)


def test_without_findings_that_is_what_is_said(tmp_path: Path) -> None:
    stage = Stage()
    Play(stage, "s1").end(1000)
    assert any("nothing wrong was found" in line for line in printed(stage.write(tmp_path)))


def test_what_does_not_fit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    for number in range(1, 161, 2):
        play.stream(f"d{number}", "x", ending="reset", reset_by="dialer")
    play.end(1000)
    tables = stage.write(tmp_path)
    assert any("and 40 more" in line for line in printed(tables))
    monkeypatch.setattr(summary, "KEPT", 50)
    found = summarise(str(tables))
    assert (len(found.found), found.more) == (50, 30)
