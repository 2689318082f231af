"""The entry points of each protocol, and the session class they return."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import polymux
from polymux import (
    MinmuxSession,
    NerdbankSession,
    OmnistreamsSession,
    Session,
    StreamuxSession,
    YamuxSession,
)

ENTRY_POINTS: dict[str, tuple[Any, type[Session]]] = {
    "mplex": (polymux.mplex, Session),
    "nerdbank": (polymux.nerdbank, NerdbankSession),
    "omnistreams": (polymux.omnistreams, OmnistreamsSession),
    "streamux": (polymux.streamux, StreamuxSession),
    "minmux": (polymux.minmux, MinmuxSession),
    "yamux": (polymux.yamux, YamuxSession),
}


@pytest.mark.parametrize("name", ENTRY_POINTS)
async def test_an_entry_point_returns_the_session_class_of_its_protocol(name: str) -> None:
    door, kind = ENTRY_POINTS[name]
    met: asyncio.Future[Session] = asyncio.get_running_loop().create_future()

    async def handle(session: Session) -> None:
        met.set_result(session)
        await session.wait_closed()

    async with await door.serve(handle, "tcp://127.0.0.1:0") as server:
        async with door.connect(server.url, timeout=40) as session:
            assert type(session) is kind
            assert type(await met) is kind


async def test_options_follow_the_name() -> None:
    async def answer(session: StreamuxSession) -> None:
        async for call in session.calls:
            await call.reply(await call.read())

    options = "length_bits=10,id_bits=4"
    async with await polymux.streamux.serve(answer, "tcp://127.0.0.1:0", options) as server:
        async with polymux.streamux.connect(server.url, options) as session:
            assert await session.request(b"hello") == b"hello"
    with pytest.raises(polymux.PolymuxError, match="no option of mplex"):
        polymux.mplex.connect("tcp://127.0.0.1:1", "colour=red")


async def test_options_are_keywords_too() -> None:
    near, far = await polymux.nerdbank.pipe(version=3, window=12345, seeded=[100, 200])
    assert near.endpoint.protocol.version() == "3"
    assert near.endpoint.protocol.receive_window == 12345
    assert near.seeded(1).stream_id == 1
    await near.close()
    await far.close()
    requests, answers = await polymux.streamux.pipe(length_bits=10, id_bits=4, reply_timeout=2.5)
    assert requests.protocol.layout_of(0).id_bits == 4
    assert requests.protocol.timeout_seconds(0) == 2.5
    await requests.close()
    await answers.close()
    ours, theirs = await polymux.mplex.pipe(ids="counting", max_frame=1000)
    assert ours.endpoint.protocol.max_frame_bytes == 1000
    await ours.close()
    await theirs.close()
    sending, receiving = await polymux.omnistreams.pipe(numbering="legacy", carrier="length")
    assert sending.endpoint.protocol.dialect() == "legacy"
    await sending.close()
    await receiving.close()


async def test_a_profile_may_be_a_path(tmp_path: Path) -> None:
    profile = tmp_path / "own.toml"
    profile.write_text("[stream.1]\nitem = 4\n")
    near, far = await polymux.minmux.pipe(profile=profile, canonical=False, oops="ignore")
    with pytest.raises(polymux.PolymuxError, match="3 bytes are no whole items"):
        await near.sender(1).send(b"abc")
    await near.close()
    await far.close()


async def test_a_keyword_overrides_the_same_option_in_the_text() -> None:
    near, far = await polymux.nerdbank.pipe("version=1", version=2)
    assert near.endpoint.protocol.version() == "2"
    await near.close()
    await far.close()


async def test_an_invalid_option_raises_at_the_call() -> None:
    url = "tcp://127.0.0.1:1"
    with pytest.raises(polymux.BadProtocolString, match="version is 1, 2 or 3, not 4"):
        polymux.nerdbank.connect(url, version=4)  # type: ignore[arg-type]
    with pytest.raises(polymux.BadProtocolString, match=r"profile='a,b\.toml': no option may hold"):
        polymux.minmux.connect(url, profile="a,b.toml")
    with pytest.raises(TypeError, match="unexpected keyword argument 'versoin'"):
        polymux.nerdbank.connect(url, versoin=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_help_shows_every_keyword_of_an_entry_point(name: str) -> None:
    door, _ = ENTRY_POINTS[name]
    for verb in ("connect", "serve", "pipe"):
        shown = inspect.signature(getattr(door, verb)).parameters
        general = inspect.signature(getattr(polymux, verb)).parameters
        assert set(general) - {"protocol", "other"} <= set(shown)
        assert all(each.kind != each.VAR_KEYWORD for each in shown.values())
        assert "preamble" in shown
