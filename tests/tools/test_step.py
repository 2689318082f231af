"""The progress that is printed while a long, quiet command runs."""

import sys

import pytest
from tools import step

SLOW = "import time; print('Collecting pyspark', flush=True); time.sleep(1)"
FAILS = "print('what went wrong'); raise SystemExit(3)"


def test_a_quiet_command_is_reported_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert step.run("installing", [sys.executable, "-c", SLOW], interval=0.2) == 0
    first, *during, last = capsys.readouterr().out.splitlines()
    assert first == "installing ..."
    assert any(line.endswith(", Collecting pyspark") for line in during)
    assert last.startswith("installing: done after ")


def test_the_output_of_a_command_is_shown_if_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert step.run("building", [sys.executable, "-c", FAILS]) == 3
    said = capsys.readouterr().out.splitlines()
    assert "what went wrong" in said
    assert said[-1].startswith("building: failed with exit code 3 after ")
