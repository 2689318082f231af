"""What a caller cannot have meant is refused at the call with a clear line, and changes nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable
from functools import partial, wraps
from typing import Any

import pytest
from tests.aio.session_helpers import channels, joined, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Limits, MinmuxSession, OmnistreamsSession, Session, StreamuxSession, Timeouts

ANY: Any = None  # what a type checker would refuse


@pytest.mark.parametrize("name", Limits().names())
def test_a_limit_is_a_whole_number_of_0_or_more(name: str) -> None:
    Limits(**{name: 0})
    for value in (-1, 1 << 63):
        with pytest.raises(ValueError, match=f"limit {name} is 0 to 2\\^60, not {value}"):
            Limits(**{name: value})
    for wrong in ("1", 1.5, None):
        with pytest.raises(TypeError):
            Limits(**{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["handshake", "frame", "write", "keepalive_interval", "slow_reader", "close"]
)
def test_a_time_of_a_policy_is_0_or_more_seconds(name: str) -> None:
    Timeouts(**{name: 0})
    for value in (-0.5, math.nan):
        with pytest.raises(ValueError, match=f"{name} is 0 or more seconds, not {value}"):
            Timeouts(**{name: value})
    with pytest.raises(TypeError):
        Timeouts(**{name: "5"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"timeout": -1}, polymux.LocalProtocolError, "timeout is 0 or more seconds, not -1"),
        ({"timeout": "5"}, TypeError, "timeout is a number of seconds, not str"),
        ({"opens_per_second": -4}, ValueError, "opens_per_second is 0"),
        ({"opens_per_second": "4"}, TypeError, "opens_per_second is a number, not str"),
        ({"url": b"tcp://127.0.0.1:1"}, TypeError, "a URL is a str .* not bytes"),
        ({"url": None}, TypeError, "a URL is a str .* not NoneType"),
        ({"limits": {"max_streams": 4}}, TypeError, "limits is a polymux.Limits, not dict"),
        ({"timeouts": 5}, TypeError, "timeouts is a polymux.Timeouts, not int"),
        ({"protocol": b"mplex"}, TypeError, "protocol is a text such as 'mplex', not bytes"),
    ],
)
def test_connecting_refuses_wrong_arguments(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        polymux.connect(**({"url": "tcp://127.0.0.1:1", "protocol": "mplex"} | arguments))


def plain(_: Session) -> None:
    """No coroutine."""


async def yielding(_: Session) -> AsyncIterator[int]:
    yield 1


async def fine(_: Session) -> None:
    """What a handler is."""


@wraps(fine)
def wrapped(session: Session) -> Any:
    return fine(session)


def says_so(session: Session) -> Awaitable[None]:
    return fine(session)


class Served:
    async def __call__(self, _: Session) -> None:
        """An object can be called, too."""

    async def method(self, _: Session) -> None:
        """And a method."""


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (plain, "plain is a plain function: write `async def`"),
        (partial(plain), "plain is a plain function"),
        (yielding, "yielding has a yield"),
        (None, "is an async function, not NoneType"),
        (7, "is an async function, not int"),
    ],
)
async def test_a_handler_that_is_no_coroutine_is_refused(handler: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        await polymux.serve(handler, "tcp://127.0.0.1:0", protocol="mplex")
    async with joined("mplex") as (near, _), joined("streamux") as (asking, _):
        assert isinstance(asking, StreamuxSession)
        for call in (
            near.serve_streams(handler),
            asking.serve_calls(handler),
            asking.serve_streams(handler),
        ):
            with pytest.raises(TypeError, match=text):
                await call


@pytest.mark.parametrize(
    "handler",
    [
        fine,
        wrapped,
        says_so,
        partial(fine),
        Served(),
        Served().method,
        lambda session: fine(session),
    ],
)
async def test_a_handler_that_can_be_awaited_is_taken(handler: Any) -> None:
    await (await polymux.serve(handler, "tcp://127.0.0.1:0", protocol="mplex")).close()


@virtual
async def test_work_on_fewer_than_one_stream_at_once_is_refused() -> None:
    async with joined("mplex") as (near, _):
        with pytest.raises(ValueError, match="max_concurrent is 1 or more, not 0"):
            await near.serve_streams(fine, max_concurrent=0)
        with pytest.raises(TypeError, match="max_concurrent is an int"):
            await near.serve_streams(fine, max_concurrent=ANY)


@pytest.mark.parametrize("protocol", ["nerdbank:version=2", "nerdbank:version=3"])
@virtual
async def test_a_negative_window_is_refused_and_the_channel_still_there(protocol: str) -> None:
    async with joined(protocol) as sessions:
        near, far = channels(*sessions)
        for window in (-3, 1 << 63):
            with pytest.raises(polymux.LocalProtocolError, match=f"bytes .*, not {window}"):
                await near.open("x", window=window)
        with pytest.raises(TypeError, match="a window is an int, not float"):
            await near.open("x", window=1.5)  # type: ignore[arg-type]
        opening = asyncio.create_task(near.open("x"))
        await settled()
        number = far.offers()[0].stream_id
        for call in (far.accept(window=-3), far.accept_id(number, window=-3)):
            with pytest.raises(polymux.LocalProtocolError, match="not -3"):
                await call
        theirs = await far.accept(window=3)
        mine = await opening
        await mine.send(b"abc")
        assert await theirs.receive() == b"abc"


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=1", "streamux"])
@virtual
async def test_a_window_is_refused_where_the_protocol_has_none(protocol: str) -> None:
    async with joined(protocol) as (near, _):
        with pytest.raises(polymux.Unsupported, match="has no windows"):
            await near.open(window=100)
        assert near.open_streams == 0


@virtual
async def test_names_are_text_or_bytes_and_requests_have_none() -> None:
    async with joined("mplex") as (near, far), joined("streamux") as (asking, _):
        with pytest.raises(TypeError, match="a name is str or bytes, not int"):
            await near.open(7)  # type: ignore[arg-type]
        await near.open(bytearray(b"name"))  # type: ignore[arg-type]
        assert (await far.accept()).name == "name"
        with pytest.raises(polymux.Unsupported, match="has no names"):
            await asking.open("name")


@virtual
async def test_times_and_sizes_of_calls_are_checked() -> None:
    async with joined("streamux") as (asking, _), joined("mplex") as (near, _):
        assert isinstance(asking, StreamuxSession)
        with pytest.raises(polymux.LocalProtocolError, match="0 or more seconds, not -1"):
            await asking.request(b"x", timeout=-1)
        with pytest.raises(TypeError, match="number of seconds, not str"):
            await asking.request(b"x", timeout="1")  # type: ignore[arg-type]
        async with asking.exchange() as exchange:
            with pytest.raises(ValueError, match="limit is 0 or more bytes, not -1"):
                await exchange.read(limit=-1)
        with pytest.raises(ValueError, match="limit is 0 or more bytes, not -1"):
            await (await near.open()).receive_all(limit=-1)


@virtual
async def test_a_window_of_messages_or_items_is_checked() -> None:
    async with joined("omnistreams") as (near, far), joined("minmux") as (_, reader):
        assert isinstance(near, OmnistreamsSession)
        assert isinstance(far, OmnistreamsSession)
        assert isinstance(reader, MinmuxSession)
        sender = await near.open("x")
        with pytest.raises(polymux.LocalProtocolError, match=r"messages .*, not -3"):
            await far.accept(window=-3)
        receiver = await far.accept(window=3)
        await sender.send(b"x")
        assert await receiver.receive() == b"x"
        items = reader.receiver(1, window=0)
        for act in (items.grant, items.stop, items.oops, items.promise):
            with pytest.raises(polymux.LocalProtocolError, match=r"0 to 2\^64-1 items, not -1"):
                act(-1)
