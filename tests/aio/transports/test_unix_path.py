"""Paths of Unix sockets: a live one is not taken, a dead one is, and only one's own is deleted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.aio.session_helpers import echo, exchange

import polymux
from polymux.live.listener import answers, bind_unix_socket

RACES = 1000 if os.environ.get("POLYMUX_SOAK") else 20
RACERS = 4

# Takes the path that it is told, if it can, and keeps it until it is told more.
RACER = """
import sys
from polymux.live.listener import bind_unix_socket

for line in sys.stdin:
    path = line[:-1]
    try:
        held = bind_unix_socket(path, 10)
    except OSError:
        held = None
    print("taken" if held else "refused", flush=True)
    sys.stdin.readline()
    if held:
        held.close()
    print("closed", flush=True)
"""


async def test_a_second_server_does_not_take_the_path_of_a_live_one(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    async with polymux.serve(echo, url, protocol="mplex"):
        with pytest.raises(polymux.Unreachable, match="in use"):
            await polymux.serve(echo, url, protocol="mplex")
        async with polymux.connect(url, protocol="mplex") as session:
            assert await exchange(session, "x", b"first") == b"first"
    assert not (tmp_path / "s").exists()


async def test_the_path_of_a_dead_server_is_taken(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
    url = f"unix://{tmp_path}/s"
    async with polymux.serve(echo, url, protocol="mplex"):
        async with polymux.connect(url, protocol="mplex") as session:
            assert await exchange(session, "x", b"again") == b"again"


async def test_stopping_a_server_leaves_the_socket_of_another_in_place(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    first = await polymux.serve(echo, url, protocol="mplex")
    (tmp_path / "s").unlink()  # as an administrator may do
    async with polymux.serve(echo, url, protocol="mplex"):
        await first.close()
        async with polymux.connect(url, protocol="mplex") as session:
            assert await exchange(session, "x", b"second") == b"second"


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(polymux.Unreachable):
        await polymux.serve(echo, f"unix://{tmp_path}/s", protocol="mplex")
    assert (tmp_path / "s").read_text() == "precious"


def test_of_two_servers_that_find_a_dead_one_at_once_one_takes_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    unlink = os.unlink
    with ThreadPoolExecutor(1) as other:
        second: list[Future[socket.socket]] = []

        def unlink_late(name: str) -> None:
            """The first has found it dead; the second starts, and has time to replace it."""
            if not second:
                second.append(other.submit(bind_unix_socket, path, 10))
                wait(second, 0.3)
            unlink(name)

        monkeypatch.setattr(os, "unlink", unlink_late)
        with bind_unix_socket(path, 10) as first:
            with pytest.raises(OSError, match="a server answers there"):
                second[0].result(60)
            assert answers(path)
            assert first.getsockname() == path
    assert not answers(path)


def test_of_many_processes_that_find_a_dead_server_at_once_one_takes_its_path(
    tmp_path: Path,
) -> None:
    """Every socket that is closed leaves its path behind, as a server that was killed does."""
    path = f"{tmp_path}/s"
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RACER],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                )
            )
            for _ in range(RACERS)
        ]  # fmt: skip
        for race in range(RACES):
            said = tell_all(racers, path)
            assert sorted(said) == ["refused"] * (RACERS - 1) + ["taken"], f"race {race}"
            assert answers(path)
            assert tell_all(racers, "") == ["closed"] * RACERS
            assert os.path.exists(path)
            assert not answers(path)
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.close()
    assert [name for name in os.listdir(tmp_path) if name != "s"] == []
    print(f"R33 {RACERS} processes: {RACES} races, one server in each")


def tell_all(racers: list[subprocess.Popen[str]], line: str) -> list[str]:
    """Say something to all processes at once; return what each of them answers."""
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(f"{line}\n")
    answered = []
    for racer in racers:
        assert racer.stdout is not None
        answered.append(racer.stdout.readline().strip())
    return answered
