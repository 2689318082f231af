"""The JavaScript program of the tutorial runs, and polymux talks to it as the page says."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest
from tests.interop.node_peer import PEERS

import polymux

PAGE = Path(__file__).parent.parent.parent / "docs" / "tutorials" / "javascript.md"


@pytest.mark.usefixtures("node_peers")
async def test_the_program_of_the_tutorial_answers() -> None:
    (program,) = re.findall(r"^```js\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert "listen(9000)" in program
    node = await asyncio.create_subprocess_exec(
        "node", "-e", program.replace("listen(9000)", f"listen({port})"), cwd=PEERS
    )
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    session = await polymux.connect(f"tcp://127.0.0.1:{port}", protocol="mplex")
                    break
                except polymux.Unreachable:
                    await asyncio.sleep(0.1)
            async with session:
                stream = await session.open("greeting")
                await stream.send(b"hello")
                await stream.end()
                assert await stream.receive_all() == b"HELLO"
    finally:
        node.kill()
        await node.wait()
