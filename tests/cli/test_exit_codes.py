"""Exit codes mean the same in every command: 0 fine, 1 findings, 2 usage, 3 input, 4 peer, 5 limit
or output, 130 interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import CLEAN, Ran, give_first_bytes
from tests.cli.threaded_server import COMMAND

from polymux.aio import SessionLimit
from polymux.cli import COMMANDS, exit_code_for

Run = Callable[..., Ran]
Capture = Callable[..., str]

CAPTURES = ("check", "frames", "ls", "index")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_none_is_2(command: str, run: Run) -> None:
    assert run(command, "--no-such-option").code == 2


@pytest.mark.parametrize("command", CAPTURES)
def test_captures_that_are_sound_are_0(command: str, run: Run, capture: Capture) -> None:
    assert run(command, capture(CLEAN)).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"], ["frames"], ["ls"], ["index"], ["recover"], ["follow", "--stream", "d1"],
        ["report"], ["analyze", "--out", "tables"],
    ],
)  # fmt: skip
def test_input_that_is_not_there_is_3_everywhere(
    arguments: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(arguments[0], "missing.pcapng", *arguments[1:])
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "missing.pcapng" in ran.err


@pytest.mark.parametrize(
    ("found", "code"), [(None, 0), ("findings", 1), ("violations", 1)]
)  # fmt: skip
def test_ls_fails_because_of_violations_only_if_asked(
    found: str | None, code: int, run: Run, capture: Capture
) -> None:
    option = ["--fail-on", found] if found else []
    assert run("ls", capture(), *option).code == code
    assert run("ls", capture(CLEAN, name="clean.pcapng"), *option).code == 0


def test_a_peer_that_never_answers_is_a_finding_and_no_violation(
    run: Run, capture: Capture
) -> None:
    path = capture([(0, b"\x08\x04good\x0a\x05hello\x0c\x00", 1), (0, b"\x18\x01x", 9000)])
    assert run("check", path).code == 0
    assert run("ls", path, "--fail-on", "violations").code == 0
    assert run("ls", path, "--fail-on", "findings").code == 1


def test_a_stream_that_was_given_up_is_listed_and_no_finding(run: Run, capture: Capture) -> None:
    path = capture([(0, b"\x08\x04good\x0a\x05hello", 1), (1, b"\x0d\x00", 2)])
    ran = run("ls", path, "--fail-on", "findings")
    assert ran.code == 0
    assert "acceptor reset d1" in ran.out


def test_findings_come_before_a_torn_end(run: Run, capture: Capture) -> None:
    path = Path(capture())
    path.write_bytes(path.read_bytes()[:-5])
    assert run("ls", str(path)).code == 3
    assert run("ls", str(path), "--fail-on", "violations").code == 1


@pytest.mark.parametrize("command", ["ls", "check", "frames", "decode", "rules"])
def test_output_that_cannot_be_written_is_one_line_and_5(command: str, capture: Capture) -> None:
    given = {"decode": "08 04 676f6f64 0a 05 68656c6c6f 0c 00", "rules": "mplex"}.get(
        command
    ) or capture()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, command, given], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.stderr.decode() == (
        "polymux: the output cannot be written: No space left on device\n"
    )
    assert done.returncode == 5


def test_files_that_cannot_be_written_are_5(run: Run, capture: Capture, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inside = str(tmp_path / "file" / "inside")
    assert run("follow", capture(), "--out", inside).code == 5
    assert run("analyze", capture(name="other.pcapng"), "--out", inside).code == 5


def test_a_place_to_listen_at_that_is_taken_is_2_everywhere(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        out = str(tmp_path / "out")
        mplex = ["--protocol", "mplex"]
        for arguments in (
            ["serve", url, *mplex],
            ["collect", "--listen", url, *mplex, "--out", out],
            ["record", url, "tcp://127.0.0.1:1", "-o", str(tmp_path / "talk.pcapng")],
        ):
            ran = run(*arguments)
            assert ran.code == 2, arguments
            assert "cannot listen there" in ran.err


def test_a_peer_that_is_not_there_is_4(run: Run) -> None:
    ran = run("connect", "tcp://127.0.0.1:1", "--protocol", "mplex", "--send", "x")
    assert ran.code == 4


def test_a_limit_that_ended_the_session_is_5() -> None:
    assert exit_code_for(SessionLimit("limit max_streams=4")) == 5


@pytest.mark.parametrize("command", ["ls", "check", "frames"])
def test_an_interrupt_is_one_line_and_130(command: str) -> None:
    code = "import sys; from polymux.cli import main; print('ready', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, command, "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    give_first_bytes(process, b"\x0a\x0d\x0d\x0a")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"polymux: interrupted\n")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_payload_in_files_is_its_owners_alone(run: Run, capture: Capture, tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        assert run("follow", capture(), "--out", str(tmp_path / "streams")).code == 0
    finally:
        os.umask(former)
    assert mode(tmp_path / "streams") == 0o700
    files = list((tmp_path / "streams").iterdir())
    assert len(files) == 3
    assert {mode(path) for path in files} == {0o600}
