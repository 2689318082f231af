"""A session whose peer has reset the connection closes quietly."""

from __future__ import annotations

import asyncio
import socket

import polymux


async def test_close_right_after_a_reset_raises_nothing() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    session = await polymux.connect(f"tcp://127.0.0.1:{port}", protocol="mplex")
    peer, _ = listener.accept()
    stream = await session.open("x")
    await stream.send(b"never read")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    peer.close()  # with unread data: a reset, which the event loop has not seen yet
    listener.close()
    await session.close()
    assert session.closed.done()
