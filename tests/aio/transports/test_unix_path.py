"""Paths of Unix sockets: a live one is not taken, a dead one is, and only one's own is deleted."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from tests.aio.session_helpers import echo, exchange

import polymux
from polymux.live.listener import answers, bind_unix_socket


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
