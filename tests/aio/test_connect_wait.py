"""`connect(wait=...)` tries again while nothing listens yet."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest
from tests.ports import free_port

import polymux
from polymux import Unreachable


async def idle(session: polymux.Session) -> None:
    await session.wait_closed()


@pytest.mark.parametrize("scheme", ["tcp", "unix", "ws"])
async def test_connect_waits_for_a_server_that_starts_later(scheme: str, tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s" if scheme == "unix" else f"{scheme}://127.0.0.1:{free_port()}"
    connecting = asyncio.create_task(polymux.connect(url, protocol="omnistreams", wait=20))
    await asyncio.sleep(0.25)
    assert not connecting.done()
    async with polymux.serve(idle, url, protocol="omnistreams"):
        async with await connecting as session:
            assert session.open_streams == 0


async def test_the_error_after_a_wait_says_how_long_it_was() -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"nothing listens there, for 0\.3 s"):
        await polymux.connect(f"tcp://127.0.0.1:{free_port()}", protocol="mplex", wait=0.3)
    assert 0.3 <= time.monotonic() - begun < 30


async def test_without_wait_the_first_refusal_raises() -> None:
    with pytest.raises(Unreachable, match=r"nothing listens there$"):
        await polymux.connect(f"tcp://127.0.0.1:{free_port()}", protocol="mplex")


async def test_a_wait_can_be_cancelled() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    task = asyncio.create_task(polymux.connect(url, protocol="mplex", wait=60))
    await asyncio.sleep(0.15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_a_peer_that_listens_raises_at_once() -> None:
    """`wait` applies where nothing listens, not where TLS fails or a command does not exist."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as plain:
        loop = asyncio.get_running_loop()
        plain.setblocking(False)

        async def hang_up() -> None:
            taken, _ = await loop.sock_accept(plain)
            taken.close()

        hanging_up = asyncio.create_task(hang_up())
        url = f"tls://127.0.0.1:{plain.getsockname()[1]}"
        async with asyncio.timeout(40):
            with pytest.raises(Unreachable):
                await polymux.connect(
                    url, protocol="mplex", wait=60, tls=ssl.create_default_context()
                )
        await hanging_up
    with pytest.raises(Unreachable):
        await polymux.connect("exec:/no/such/command", protocol="mplex", wait=60)
