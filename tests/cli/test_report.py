"""`polymux report` on captures: the page of their tables, without Spark and without traces."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import BROKEN, CLEAN, Ran

from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_tables import write_tables

Run = Callable[..., Ran]
Capture = Callable[..., str]


@pytest.mark.parametrize("payload", ["none", "head:8"])
def test_the_page_of_captures_is_that_of_their_tables(
    payload: str, run: Run, capture: Capture, tmp_path: Path
) -> None:
    files = (capture(BROKEN), capture(CLEAN, name="clean.pcapng", port=9001))
    tables = tmp_path / "tables"
    write_tables(
        CaptureRequest(files), tables, "sessions", "streams", "frames", "violations", "stalls",
        "requests", "timeline", "content",
    )  # fmt: skip
    pages = []
    for arguments in (files, (str(tables),)):
        out = tmp_path / "page.html"
        ran = run("report", *arguments, "-o", str(out), "--payload", payload)
        assert (ran.code, ran.err) == (0, "")
        assert "2 sessions, 1 error" in ran.out
        pages.append(out.read_bytes())
    assert pages[0] == pages[1]


def test_the_tables_of_a_report_on_captures_are_removed(
    run: Run, capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert run("report", capture(), "-o", str(tmp_path / "r.html")).code == 0
    assert not any(scratch.iterdir())


def test_a_process_that_makes_tables_uses_the_allocator_that_returns_memory(
    capture: Capture, tmp_path: Path
) -> None:
    code = """
import sys
from pathlib import Path
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_tables import write_tables
write_tables(CaptureRequest((sys.argv[1],)), Path(sys.argv[2]))
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
    environment = {name: value for name, value in os.environ.items() if "ARROW" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code, capture(), str(tmp_path / "tables")],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "system\n", done.stderr


def test_a_report_selects_sessions_as_other_commands_do(
    run: Run, capture: Capture, tmp_path: Path
) -> None:
    files = (capture(BROKEN), capture(CLEAN, name="clean.pcapng", port=9001))
    ran = run("report", *files, "--port", "9001=mplex", "-o", str(tmp_path / "r.html"))
    assert "1 session, 0 errors" in ran.out


def test_a_damaged_capture_is_reported_as_far_as_it_can_be_read(
    run: Run, capture: Capture, tmp_path: Path
) -> None:
    path = Path(capture())
    path.write_bytes(path.read_bytes()[:-40])
    ran = run("report", str(path), "-o", str(tmp_path / "r.html"))
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "talk.pcapng" in ran.err
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_tables_are_not_mixed_with_captures_or_their_options(
    run: Run, capture: Capture, tmp_path: Path
) -> None:
    tables, path = str(tmp_path / "tables"), capture()
    write_tables(CaptureRequest((path,)), Path(tables))
    for arguments, said in (
        ([tables, path], "one directory of tables"),
        ([tables, "--port", "9000"], "are for captures"),
    ):
        ran = run("report", *arguments, "-o", str(tmp_path / "r.html"))
        assert ran.code == 2
        assert said in ran.err
