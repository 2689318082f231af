"""Loops whose tasks start inside `create_task` (asyncio.eager_task_factory, Python 3.12 and later).

A task that polymux starts may finish, or abort a stream, before `create_task` returns, while a
received chunk is being processed. conftest.py collects this file only where there are such loops.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import ParamSpec

import pytest
from tests.aio.session_helpers import PROTOCOLS, echo, exchange, joined, opened, settled
from tests.aio.streamux_helpers import SMALL, held, pair
from tests.aio.streamux_helpers import echo as echo_call
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Call, Session, Stream, StreamuxSession

every = pytest.mark.parametrize("protocol", PROTOCOLS)
P = ParamSpec("P")


def eager(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Run this test on a loop with eager tasks."""

    @functools.wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        if sys.version_info >= (3, 12):  # it is; mypy looks at this for 3.11 as well
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await test(*args, **kwargs)

    return run


async def send_back(stream: Stream) -> None:
    async for chunk in stream:
        await stream.send(chunk)


async def do_nothing(stream: Stream) -> None:
    """Finishes before `create_task` returns."""


# Servers


@every
@eager
async def test_a_server_answers_every_stream(protocol: str) -> None:
    server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=protocol)
    async with server, polymux.connect(server.url, protocol=protocol) as session:
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(exchange(session, str(n), b"x" * 9000)) for n in range(20)]
        assert all(job.result() == b"x" * 9000 for job in jobs)


@every
@eager
async def test_a_handler_that_returns_at_once_closes_its_session(protocol: str) -> None:
    async def return_at_once(session: Session) -> None:
        pass

    async with await polymux.serve(
        return_at_once, "tcp://127.0.0.1:0", protocol=protocol
    ) as server:
        for _ in range(3):
            try:
                session = await polymux.connect(server.url, protocol=protocol)
            except polymux.SessionClosed:  # closed before the handshake was processed
                continue
            await session.wait_closed()
            assert session.failure is None
        await settled()
        assert not server.sessions
        assert not server._tasks


@every
@eager
async def test_a_handler_that_fails_at_once_affects_no_other_session(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = 0

    async def handle(session: Session) -> None:
        nonlocal served
        served += 1
        if served == 1:
            raise ValueError("of the handler")
        await session.serve_streams(send_back)

    async with await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=protocol) as server:
        with caplog.at_level(logging.ERROR, "polymux.aio"):
            try:
                first = await polymux.connect(server.url, protocol=protocol)
                await first.wait_closed()
            except polymux.PolymuxError:  # aborted before the handshake was processed
                pass
        assert "of the handler" in caplog.text
        async with polymux.connect(server.url, protocol=protocol) as session:
            assert await exchange(session, "good", b"data") == b"data"


# serve_streams


@every
@virtual
@eager
async def test_serve_streams_handles_every_stream(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        working = asyncio.create_task(far.serve_streams(send_back))
        for number in range(20):
            assert await exchange(near, f"n{number}", b"x" * 1000) == b"x" * 1000
        await near.close()
        await working
        assert not far.streams


@every
@virtual
@eager
async def test_any_number_of_queued_streams_with_instant_handlers_are_handled(
    protocol: str,
) -> None:
    limits = polymux.Limits(max_streams=2000, accept_backlog=2000, max_own_streams=2000)
    async with joined(protocol, limits=limits) as (near, far):
        opening = [asyncio.create_task(near.open(f"n{number}")) for number in range(1500)]
        await settled()
        assert len(far.accept_queue) == 1500
        working = asyncio.create_task(far.serve_streams(do_nothing, max_concurrent=1))
        for task in opening:
            assert await (await task).receive_all() == b""
        await near.close()
        await working
        assert far.failure is None


@every
@virtual
@eager
async def test_a_stream_reset_in_the_chunk_that_opens_it_is_not_handled(protocol: str) -> None:
    names: list[str] = []
    ends: list[str] = []

    async def handler(stream: Stream) -> None:
        names.append(stream.name)
        try:
            await stream.receive_all()
            ends.append("end")
        except polymux.StreamAborted:
            ends.append("reset")

    async with joined(protocol) as (near, far):
        working = asyncio.create_task(far.serve_streams(handler))
        assert far.transport is not None
        far.transport.pause_reading()  # so that both arrive in one chunk
        if protocol == "mplex":
            stream = await near.open("gone")
        else:
            stream = await near.offer("gone")  # type: ignore[attr-defined]
        await settled()
        stream.abort()
        await settled()
        far.transport.resume_reading()
        await settled()
        late = await near.open("next")
        await late.end()
        assert await late.receive_all() == b""
        await near.close()
        await working
        assert (names, ends) == (["next"], ["end"])
        assert not far.endpoint.counters.hits
        assert not near.endpoint.counters.hits
        assert not far.streams


@every
@virtual
@eager
async def test_a_handler_may_end_its_session_at_once(protocol: str) -> None:
    async with joined(protocol) as (near, far):

        async def handler(stream: Stream) -> None:
            far.abort("the handler wants no more")

        working = asyncio.create_task(far.serve_streams(handler))
        opening = [asyncio.create_task(near.open(f"n{number}")) for number in range(3)]
        with pytest.raises(polymux.SessionClosed, match="wants no more"):
            await working
        await near.wait_closed()
        await asyncio.gather(*opening, return_exceptions=True)
        await settled()
        assert not asyncio.all_tasks() - {asyncio.current_task()}


# serve_calls


@pytest.mark.parametrize("at_once", [1, 64])
@virtual
@eager
async def test_calls_are_answered_once_each(at_once: int) -> None:
    asked: list[bytes] = []

    async def handler(call: Call) -> None:
        data = await call.read()
        asked.append(data)
        await call.reply(data)

    async with pair() as (near, far):
        working = asyncio.create_task(far.serve_calls(handler, max_concurrent=at_once))
        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(near.request(b"%d" % number))
        await settled()
        assert sorted(asked) == sorted(b"%d" % number for number in range(200))
        assert not any(held(far).values())
        await near.close()
        await working


@virtual
@eager
async def test_a_call_that_the_peer_cancels_ends_its_handler() -> None:
    stopped: list[bytes] = []

    async def handler(call: Call) -> None:
        data = await call.read()
        try:
            await asyncio.sleep(1000)
        finally:
            stopped.append(data)

    async with pair() as (near, far):
        working = asyncio.create_task(far.serve_calls(handler))
        with pytest.raises(TimeoutError):
            await near.request(b"slow", timeout=1)
        await settled()
        assert stopped == [b"slow"]
        await near.close()
        await working


@virtual
@eager
async def test_a_call_cancelled_while_queued_is_not_handled() -> None:
    begun = 0
    go_on = asyncio.Event()

    async def handler(call: Call) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()
        await call.reply(await call.read())

    async with pair() as (near, far):
        working = asyncio.create_task(far.serve_calls(handler, max_concurrent=1))
        first = asyncio.create_task(near.request(b"first"))
        await settled()
        with pytest.raises(TimeoutError):
            await near.request(b"second", timeout=1)
        await settled()
        go_on.set()
        assert await first == b"first"
        assert await near.request(b"third") == b"third"
        assert begun == 2
        await near.close()
        await working


@virtual
@eager
async def test_a_handler_that_drops_its_call_at_once_may_continue() -> None:
    cleaned = asyncio.Event()

    async def handler(call: Call) -> None:
        call.drop("not this one")
        await asyncio.sleep(1)
        cleaned.set()

    async with pair() as (near, far):
        working = asyncio.create_task(far.serve_calls(handler))
        with pytest.raises(TimeoutError):
            await near.request(b"x", timeout=2)
        assert cleaned.is_set()
        await near.close()
        await working


@eager
async def test_a_streamux_server_answers() -> None:
    async def handle(session: Session) -> None:
        assert isinstance(session, StreamuxSession)
        await session.serve_calls(echo_call)

    server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=SMALL)
    async with server, polymux.connect(server.url, protocol=SMALL) as session:
        assert isinstance(session, StreamuxSession)
        async with asyncio.TaskGroup() as tasks:
            replies = [tasks.create_task(session.request(b"%d" % n * 999)) for n in range(50)]
        assert [reply.result() for reply in replies] == [b"%d" % n * 999 for n in range(50)]


# asyncio's streams


@every
@virtual
@eager
async def test_data_received_before_is_read_through_a_stream_reader(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        await mine.send(b"early\n")
        await mine.end()
        await settled()
        reader, writer = polymux.as_asyncio_streams(theirs)
        assert await reader.read() == b"early\n"
        writer.write(b"late\n")
        writer.close()
        await writer.wait_closed()
        assert await mine.receive_all() == b"late\n"


@every
@virtual
@eager
async def test_a_stream_reset_before_it_has_a_reader_is_an_error_there(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        mine.abort()
        await settled()
        reader, writer = polymux.as_asyncio_streams(theirs)
        with pytest.raises(ConnectionResetError, match="aborted by the peer"):
            await reader.read()
        writer.close()
