"""`polymux diff`: captures and tables compared, conditions as exit codes, files for CI."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import BROKEN, CLEAN, HOSTILE, Ran

from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_tables import write_tables

Run = Callable[..., Ran]
Capture = Callable[..., str]


def test_a_capture_does_not_differ_from_itself_or_its_tables(
    run: Run, terminal: Run, capture: Capture, tmp_path: Path
) -> None:
    path, tables = capture(BROKEN), tmp_path / "tables"
    write_tables(CaptureRequest((path,)), tables)
    for after in (path, str(tables)):
        for by in ([], ["--by", "name"], ["--by", "protocol"], ["--by", "port"]):
            ran = run("diff", path, after, *by, "--fail-if", "violations > +0")
            assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert "no difference" in terminal("diff", path, path).out


def test_a_new_violation_fails_the_gate_and_is_in_every_output(
    run: Run, terminal: Run, capture: Capture, tmp_path: Path
) -> None:
    before, after = capture(CLEAN, name="before.pcapng"), capture(BROKEN)
    junit, page = tmp_path / "diff.xml", tmp_path / "diff.html"
    ran = run(
        "diff", before, after, "--by", "name", "--fail-if", "violations > +0",
        "--fail-if", "latency_p50_us > +10%", "--junit", str(junit), "-o", str(page),
    )  # fmt: skip
    assert ran.code == 1
    assert ran.err == "fails: violations > +0\n"
    (line,) = [json.loads(line) for line in ran.out.splitlines()]
    assert line["measure"] == "violations:mplex.write-after-close"
    assert (line["before"], line["after"], line["worse"]) == (0, 1, True)
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert "mplex.write-after-close" in page.read_text()
    assert "\x1b" not in page.read_text() + junit.read_text() + ran.out
    shown = terminal("diff", before, after, "--all").out
    assert "violations:mplex.write-after-close" in shown
    assert run("diff", before, after).code == 0


def test_what_cannot_be_compared_is_one_line(run: Run, capture: Capture, tmp_path: Path) -> None:
    path = capture()
    for arguments, code, said in (
        ([path, path, "--fail-if", "speed > 1"], 2, "no measure 'speed'"),
        ([path, str(tmp_path / "missing.pcapng")], 3, "missing.pcapng"),
        ([path, path, "-o", str(tmp_path / "no" / "diff.html")], 5, "cannot be written"),
    ):
        ran = run("diff", *arguments)
        assert (ran.code, ran.err.count("\n")) == (code, 1)
        assert said in ran.err


def test_findings_are_counted_under_the_name_of_their_stream(run: Run, capture: Capture) -> None:
    before, after = capture(CLEAN, name="before.pcapng"), capture(BROKEN)
    for by, group in (("name", HOSTILE.decode()), ("port", "9000"), ("protocol", "mplex")):
        (found,) = map(json.loads, run("diff", before, after, "--by", by).out.splitlines())
        assert found["group"] == group
