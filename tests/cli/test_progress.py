"""What takes long shows how much is done, how fast, and how long it still takes."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import CLEAN, Ran

from polymux.cli.support import progress
from polymux.cli.support.progress import ProgressBar, bytes_read_counter, print_line

Terminal = Callable[..., Ran]


def screen(out: io.StringIO) -> Console:
    return Console(file=out, force_terminal=True, width=120, no_color=True)


def test_nothing_is_shown_for_what_is_quick() -> None:
    out = io.StringIO()
    with ProgressBar("reading", 100, console=screen(out)) as waiting:
        waiting.advance(100)
    assert out.getvalue() == ""


def test_amount_rate_and_time_left_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.01)
    out = io.StringIO()
    with ProgressBar("reading", 10 << 20, console=screen(out)) as waiting:
        waiting.advance(1 << 20)
        while " left" not in out.getvalue():
            time.sleep(0.01)
    said = out.getvalue()
    assert "reading" in said
    assert "1 MiB of 10 MiB" in said
    assert "/s, " in said
    assert " left" in said


def test_a_total_that_is_not_known_has_no_time_left() -> None:
    waiting = ProgressBar("reading", unit="rows")
    waiting.advance(1_234_567)
    told = waiting.status_text()
    assert told.startswith("1,234,567 rows, ")
    assert "left" not in told


def test_more_than_was_expected_is_never_more_than_all() -> None:
    waiting = ProgressBar("reading", 10)
    waiting.advance(4096)
    assert waiting.status_text().startswith("4 KiB of 4 KiB")
    waiting.start_phase("writing", 100)
    assert waiting.status_text() == "0 bytes of 100 bytes"


def test_lines_are_printed_above_the_bar_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 0)
    out = io.StringIO()
    print_line("before")
    with ProgressBar("reading", console=screen(out)):
        while "reading" not in out.getvalue():
            time.sleep(0.01)
        for number in range(50):
            print_line(f"line {number} [bold]not markup[/bold]")
    print_line("after")
    assert capsys.readouterr().out == "before\nafter\n"
    for number in range(50):
        assert f"line {number} [bold]not markup[/bold]" in out.getvalue()


def test_what_was_read_is_counted_from_now_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    count = bytes_read_counter()
    (tmp_path / "file").read_bytes()
    assert count() in (0, pytest.approx(1 << 20, rel=0.05))  # 0 where the system does not say


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["ls"], "scanning"),
        (["check"], "scanning"),
        (["frames"], "scanning"),
        (["follow", "--stream", "d1"], "scanning"),
        (["index"], "indexing"),
    ],
)
def test_commands_that_read_captures_have_a_bar(
    command: list[str], text: str, impatient: Terminal, capture: Callable[..., str]
) -> None:
    ran = impatient(*command, capture(CLEAN))
    assert ran.code == 0
    assert text in ran.out
    assert " of " in ran.out


def test_recover_has_a_bar(
    impatient: Terminal, capture: Callable[..., str], tmp_path: Path
) -> None:
    ran = impatient("recover", capture(CLEAN), "--out", str(tmp_path / "whole.pcapng"))
    assert ran.code == 0
    assert "recovering" in ran.out


def test_report_has_a_bar(impatient: Terminal, tmp_path: Path) -> None:
    from polymux.analysis.output.parquet import write_empty_tables

    write_empty_tables(tmp_path / "tables")
    ran = impatient("report", str(tmp_path / "tables"), "-o", str(tmp_path / "r.html"))
    assert ran.code == 0
    assert "reading tables" in ran.out
