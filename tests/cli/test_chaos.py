"""`polymux chaos` and `polymux replay` as commands."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran
from tests.cli.threaded_server import COMMAND, echo, served
from tests.ports import free_ports

import polymux
from polymux.capture import PcapngWriter
from polymux.record import Recorder

Run = Callable[..., Ran]
LOCAL = "tcp://127.0.0.1:0"


def ask(url: str, data: bytes = b"hello", recorder: Recorder | None = None) -> bytes:
    """Send data on a stream, and return what comes back."""

    async def go() -> bytes:
        async with polymux.connect(url, protocol="mplex", recorder=recorder) as session:
            stream = await session.open("asked")
            await stream.send(data)
            await stream.end()
            return await stream.receive_all()

    return asyncio.run(go())


def test_chaos_relays_records_and_takes_rules_until_it_is_stopped(run: Run, tmp_path: Path) -> None:
    out, control = tmp_path / "out.pcapng", tmp_path / "control"
    with served(echo, "mplex") as url:
        process = subprocess.Popen(
            [*COMMAND, "chaos", LOCAL, url, "--protocol", "mplex", "-o", str(out), "--rule",
             "* : illegal:mplex.write-after-close", "--rule", "nth=9 : reset", "--control",
             f"unix://{control}"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        first = process.stderr.readline()
        found = re.match(r"listening at (\S+), relaying to \S+, 2 rules", first)
        assert found, first
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(control))
            client.sendall(b'{"do": "remove", "number": 1}\n')
            answer = json.loads(client.makefile().readline())
        assert [each["number"] for each in answer["rules"]] == [2]
        assert ask(found[1]) == b"hello"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = process.stderr.read()
    assert "1 connection, 1 stream, 5 bytes from dialers, 5 from the upstream" in said
    assert "rule 2, injected 0 times: nth=9 : reset" in said
    assert run("check", str(out)).code == 0
    assert len(run("ls", str(out), "--json").out.splitlines()) == 4  # two sessions, two streams


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--protocol", "mplex", "--rule", "delay"], "SELECT : FAULT"),
        (["--protocol", "mplex", "--rule", "* : illegal:mplex.nothing"], "no such rule"),
        (["--protocol", "nothing"], "nothing"),
        (["--protocol", "mplex", "--control", "tcp://127.0.0.1:1"], "unix:// URL only"),
        (["--protocol", "mplex", "-o", "/proc/nowhere/x"], "/proc/nowhere"),
        ([], "--protocol"),
    ],
)
def test_what_chaos_cannot_do_is_said_at_once(arguments: list[str], words: str, run: Run) -> None:
    ran = run("chaos", LOCAL, LOCAL, *arguments)
    assert ran.code != 0
    assert words in ran.err
    assert "Traceback" not in ran.err


def recorded(path: Path, url: str, sessions: int = 1) -> str:
    with PcapngWriter(str(path)) as sink:
        for number in range(sessions):
            ask(url, b"hello %d" % number, Recorder(sink))
    return str(path)


def test_a_replay_prints_the_comparison_of_each_run(run: Run, tmp_path: Path) -> None:
    with served(echo, "mplex") as url:
        capture = recorded(tmp_path / "talk.pcapng", url)
        ran = run("replay", capture, url, "--loop", "3", "--json")
        again = run("replay", capture, url, "--record", str(tmp_path / "again.pcapng"))
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["run"], row["equal"], row["bytes_sent"]) for row in rows] == [
        (1, True, 7),
        (2, True, 7),
        (3, True, 7),
    ]
    assert (ran.code, again.code) == (0, 0)
    assert "hello 0" in run("follow", str(tmp_path / "again.pcapng"), "--stream", "d1").out


def test_a_replay_that_differs_fails(run: Run, tmp_path: Path) -> None:
    async def refuse(session: polymux.Session) -> None:
        async for stream in session.incoming:
            stream.abort()

    with served(echo, "mplex") as url:
        capture = recorded(tmp_path / "talk.pcapng", url)
    with served(refuse, "mplex") as url:
        ran = run("replay", capture, url, "--pace", "causal", "--timeout", "1", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["differences"]


def test_the_session_of_several_has_to_be_named(run: Run, tmp_path: Path) -> None:
    with served(echo, "mplex") as url:
        capture = recorded(tmp_path / "talk.pcapng", url, sessions=2)
        ran = run("replay", capture, url)
        names = re.findall(r"[0-9a-f]{16}", ran.err)
        named = run("replay", capture, url, "--session", names[1], "--json")
    assert ran.code == 2
    assert "2 sessions; say which one with --session" in ran.err
    assert json.loads(named.out)["session_id"] == names[1]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--pace", "soon"], 2, "recorded, causal, max"),
        (["--session", "zz"], 2, "no session id starts with 'zz'"),
        (["--ca", "x.pem"], 2, "no effect without TLS"),
        (["--as", "acceptor", "--insecure"], 2, "--insecure"),
        (["--protocol", "nothing"], 2, "nothing"),
        ([], 4, "nothing listens there"),
    ],
)
def test_what_cannot_be_replayed_is_said_at_once(
    arguments: list[str], code: int, words: str, run: Run, tmp_path: Path
) -> None:
    with served(echo, "mplex") as url:
        capture = recorded(tmp_path / "talk.pcapng", url)
    ran = run("replay", capture, f"tcp://127.0.0.1:{free_ports(1)[0]}", *arguments)
    assert ran.code == code, ran.err
    assert words in ran.err
    assert "Traceback" not in ran.err
