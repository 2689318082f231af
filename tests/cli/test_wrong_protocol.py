"""Every command that reads captures says first that a protocol was named wrongly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from polymux.testing.simulator import Simulation

Run = Callable[..., Ran]


@pytest.fixture
def spoken(capture: Callable[..., str]) -> str:
    """A capture of honest Streamux peers."""
    world = Simulation("streamux", 1)
    world.run(200)
    return capture([(side, data, n) for n, (side, data, _) in enumerate(world.record, 1)])


@pytest.mark.parametrize("command", ["ls", "check", "frames"])
def test_that_the_bytes_look_like_another_protocol_is_said_first(
    command: str, run: Run, terminal: Run, spoken: str
) -> None:
    for option in (["--protocol", "mplex"], ["--port", "9000=mplex"]):
        ran = run(command, spoken, *option)
        (said,) = ran.err.splitlines()
        assert "the bytes look like streamux (initiators" in said
        assert "but the option says mplex" in said
        assert '"certain"' not in ran.out
    shown = terminal(command, spoken, "--protocol", "mplex").out
    assert shown.startswith("session ")
    assert "the bytes look like streamux" in shown.splitlines()[0]
    assert run(command, spoken).err == run(command, spoken, "--protocol", "streamux").err == ""


def test_a_capture_on_a_pipe_is_doubted_alike(spoken: str) -> None:
    code = "from polymux.cli import main; main()"
    command = [sys.executable, "-c", code, "frames", "-", "--protocol", "mplex"]
    ran = subprocess.run(
        command, input=Path(spoken).read_bytes(), capture_output=True, timeout=60, check=False
    )
    (said,) = ran.stderr.decode().splitlines()
    assert "the bytes look like streamux" in said
    assert ran.stdout


def test_ls_keeps_it_in_the_note_of_the_session(run: Run, spoken: str) -> None:
    ran = run("ls", spoken, "--protocol", "mplex")
    assert '"note": "the bytes look like streamux' in ran.out
    text = run("ls", spoken, "--protocol", "mplex", "--format", "table").out
    assert text.index("the bytes look like streamux") < text.index("Streams, worst first")
    assert "may have broken" in text
    assert " broke " not in text


def test_of_many_such_sessions_some_are_told_and_the_rest_is_counted(
    run: Run, spoken: str, capture: Callable[..., str]
) -> None:
    world = Simulation("streamux", 2)
    world.run(60)
    lines = [(side, data, n) for n, (side, data, _) in enumerate(world.record, 1)]
    for port in range(9001, 9006):
        capture(lines, f"{port}.pcapng", port=port)
    ran = run("check", str(Path(spoken).parent), "--protocol", "mplex")
    told = ran.err.splitlines()
    assert len(told) == 4
    assert told[-1] == "so do 3 more; see the note of each session"


def test_follow_says_it_once_though_it_reads_twice(run: Run, spoken: str) -> None:
    ran = run("follow", spoken, "--protocol", "mplex", "--stream", "d9999")
    assert ran.err.count("the bytes look like") == 1
