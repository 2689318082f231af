"""The results of `connect`, `serve` and `open` can be awaited or entered with `async with`."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import polymux
from polymux import Session, Unreachable


async def echo(stream: polymux.Stream) -> None:
    await stream.send(await stream.receive_all())


async def answer(session: Session) -> None:
    await session.serve_streams(echo)


async def test_a_server_is_closed_at_the_end_of_its_block() -> None:
    async with polymux.serve(answer, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as session:
            async with session.open("a") as stream:
                await stream.send(b"hello")
                await stream.end()
                assert await stream.receive_all() == b"hello"
    with pytest.raises(Unreachable):
        await polymux.connect(server.url, protocol="mplex")


async def test_a_server_that_was_awaited_is_closed_by_its_user() -> None:
    server = await polymux.serve(answer, "tcp://127.0.0.1:0", protocol="mplex")
    session = await polymux.connect(server.url, protocol="mplex")
    stream = await session.open("a")
    await stream.send(b"hello")
    await stream.end()
    assert await stream.receive_all() == b"hello"
    await session.close()
    await server.close()


async def test_a_stream_is_closed_at_the_end_of_its_block_and_aborted_by_an_error() -> None:
    near, far = await polymux.pipe("mplex")
    async with near.open("a") as stream:
        theirs = await far.accept()
        await stream.send(b"x")
    assert await theirs.receive_all() == b"x"
    taken: list[polymux.Stream] = []

    async def fail() -> None:
        async with near.open("b"):
            taken.append(await far.accept())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(polymux.StreamAborted):
        await taken[0].receive_all()
    await near.close()
    await far.close()


async def test_an_exchange_is_cancelled_at_the_end_of_its_block() -> None:
    near, far = await polymux.pipe("streamux")
    async with near.open() as exchange:
        await exchange.send(b"x")
        await exchange.end()
        call = await far.accept()
        assert call.usable
    while call.usable:
        await asyncio.sleep(0)
    with pytest.raises(polymux.StreamAborted, match="cancelled by the peer"):
        await call.reply(b"late")
    await near.close()
    await far.close()


async def test_tasks_gather_and_timeouts_accept_the_result_of_open() -> None:
    near, far = await polymux.pipe("mplex")
    task = asyncio.create_task(near.open("a"))
    first, second = await asyncio.gather(near.open("b"), asyncio.wait_for(near.open("c"), 5))
    async with asyncio.TaskGroup() as group:
        fourth = group.create_task(near.open("d"))
    names = {(await task).name, first.name, second.name, fourth.result().name}
    assert names == {"a", "b", "c", "d"}
    await near.close()
    await far.close()


async def test_an_offer_whose_block_is_cancelled_before_it_was_accepted_is_withdrawn() -> None:
    near, far = await polymux.pipe("nerdbank")

    async def use() -> None:
        async with near.open("jobs"):
            pytest.fail("it was never accepted")

    task = asyncio.create_task(use())
    await asyncio.sleep(0)
    while not far.offers():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while far.offers() or near.open_streams:
        await asyncio.sleep(0)
    await near.close()
    await far.close()


async def test_a_block_that_is_cancelled_while_it_begins_to_listen_leaves_nothing() -> None:
    async def use() -> None:
        async with polymux.serve(answer, "tcp://127.0.0.1:0", protocol="mplex"):
            await asyncio.sleep(60)

    for turns in range(4):
        task = asyncio.create_task(use())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


CALLS: dict[str, Callable[[Session], Any]] = {
    "connect": lambda _: polymux.connect("tcp://127.0.0.1:1", protocol="mplex"),
    "serve": lambda _: polymux.serve(answer, "tcp://127.0.0.1:0", protocol="mplex"),
    "Session.open": lambda session: session.open("a"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_the_warning_of_what_was_never_awaited_has_its_name(name: str) -> None:
    near, far = await polymux.pipe("mplex")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        waiting = CALLS[name](near)
        assert repr(waiting) == f"<polymux {name}(), to be awaited>"
        del waiting
        gc.collect()
    assert [str(each.message) for each in told] == [f"coroutine '{name}' was never awaited"]
    await near.close()
    await far.close()


async def test_a_bad_argument_raises_at_the_call_and_leaves_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(polymux.BadUrl):
            polymux.serve(answer, "nowhere", protocol="mplex")
        with pytest.raises(polymux.BadProtocolString):
            polymux.serve(answer, "tcp://127.0.0.1:0", protocol="smoke")
        with pytest.raises(polymux.LocalProtocolError, match="0 or more seconds"):
            polymux.connect("tcp://127.0.0.1:1", protocol="mplex", wait=-1)
        gc.collect()


async def test_the_reprs_of_sessions_streams_and_servers() -> None:
    async with polymux.serve(answer, "tcp://127.0.0.1:0", protocol="mplex") as server:
        assert str(server) == f"server at {server.url}"
        assert repr(server) == f"<polymux server at {server.url}, sessions open: 0>"
        async with polymux.connect(server.url, protocol="mplex") as session:
            assert repr(session) == f"<polymux {session}, streams open: 0>"
            assert server.url.removeprefix("tcp://") in repr(session)
            async with session.open("logs") as stream:
                assert str(stream) in repr(stream)
                assert "'logs'" in repr(stream)
                assert repr(session) == f"<polymux {session}, streams open: 1>"
        assert repr(session).endswith(", closed>")
    assert repr(server).endswith(", closed>")


def test_a_violation_is_shown_in_full_wherever_it_is_printed() -> None:
    observer = polymux.Observer(polymux.protocol("mplex"))
    observer.feed(polymux.Side.DIALER, bytes.fromhex("08000c000a0121"), timestamp=0)
    violation = observer.take_violations()[0]
    assert str(violation) in repr([violation])
    assert repr(violation).startswith("<polymux violation mplex.")
    assert repr(observer) == "<polymux observer of mplex, 3 frames seen>"
    endpoint = polymux.Endpoint(polymux.protocol("mplex"), polymux.Side.ACCEPTOR)
    assert repr(endpoint) == "<polymux endpoint of mplex, acceptor>"
