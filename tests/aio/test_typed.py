"""Each protocol has a door of its own, which opens to its own kind of session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import polymux
from polymux import MinmuxSession, NerdbankSession, OmnistreamsSession, Session, StreamuxSession

DOORS: dict[str, tuple[Any, type[Session]]] = {
    "mplex": (polymux.mplex, Session),
    "nerdbank": (polymux.nerdbank, NerdbankSession),
    "omnistreams": (polymux.omnistreams, OmnistreamsSession),
    "streamux": (polymux.streamux, StreamuxSession),
    "minmux": (polymux.minmux, MinmuxSession),
}


@pytest.mark.parametrize("name", DOORS)
async def test_a_door_gives_the_session_class_of_its_protocol(name: str) -> None:
    door, kind = DOORS[name]
    met: asyncio.Future[Session] = asyncio.get_running_loop().create_future()

    async def handle(session: Session) -> None:
        met.set_result(session)
        await session.wait_closed()

    async with await door.serve(handle, "tcp://127.0.0.1:0") as server:
        async with door.connect(server.url, timeout=5) as session:
            assert type(session) is kind
            assert type(await met) is kind


async def test_options_go_behind_the_name() -> None:
    async def answer(session: StreamuxSession) -> None:
        async for call in session.calls:
            await call.reply(await call.read())

    options = "length_bits=10,id_bits=4"
    async with await polymux.streamux.serve(answer, "tcp://127.0.0.1:0", options) as server:
        async with polymux.streamux.connect(server.url, options) as session:
            assert await session.request(b"hello") == b"hello"
    with pytest.raises(polymux.PolymuxError, match="no option of mplex"):
        polymux.mplex.connect("tcp://127.0.0.1:1", "colour=red")
