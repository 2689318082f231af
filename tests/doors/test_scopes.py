"""`polymux.anyio` under cancel scopes and task groups, on asyncio and trio.

The patterns are those of anyio's and trio's own tests: a scope that is cancelled before the first
checkpoint, a deadline of 0, a shielded cleanup, siblings of a task that fails, a scope cancelled at
every suspension and at every turn of the event loop; and every call is a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from anyio.lowlevel import checkpoint
from tests.doors.cancel_points import everywhere
from tests.doors.test_battery import PROFILE, descriptors, threads

import polymux
import polymux.anyio

pytestmark = pytest.mark.anyio

BYTE_STREAMS = ["mplex", "nerdbank", "yamux"]
PIECE = bytes(range(256)) * 256


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def tasks() -> int:
    """How many tasks the event loop has."""
    if trio.lowlevel.in_trio_run():
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


@contextlib.asynccontextmanager
async def leaving_nothing() -> AsyncIterator[None]:
    """Check that the block leaves no task, no thread and no descriptor behind."""
    before = tasks(), threads(), descriptors()
    yield
    await settled()
    after = tasks(), threads(), descriptors()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


async def settled(turns: int = 20) -> None:
    """Let everything run that is ready."""
    for _ in range(turns):
        await checkpoint()


async def opened(near: Any, far: Any, name: str = "s") -> tuple[Any, Any]:
    """Open a stream from `near` to `far`. Return both ends of it."""
    named = () if isinstance(near, polymux.anyio.YamuxSession) else (name,)
    accepted: list[Any] = []

    async def accept() -> None:
        accepted.append(await far.accept())

    async with anyio.create_task_group() as group:
        group.start_soon(accept)
        mine = await near.open(*named)
    return mine, accepted[0]


async def fill(stream: Any) -> int:
    """Send until there is no more room. Return the number of bytes sent."""
    sent = 0

    async def send() -> None:
        nonlocal sent
        while True:
            await stream.send(PIECE)
            sent += len(PIECE)

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    return sent


async def check_works(near: Any, far: Any) -> None:
    """A new stream carries bytes both ways, and leaves nothing."""
    mine, theirs = await opened(near, far, "works")
    await mine.send(b"question")
    await mine.end()
    assert await theirs.receive_all() == b"question"
    await theirs.send(b"answer")
    await theirs.end()
    assert await mine.receive_all() == b"answer"
    await settled()
    assert (near.open_streams, far.open_streams) == (0, 0)


# What ends with its block


async def echo(session: Any) -> None:
    async def answer(stream: Any) -> None:
        async for chunk in stream:
            await stream.send(chunk)

    await session.serve_streams(answer)


async def test_nothing_outlives_the_blocks() -> None:
    async with leaving_nothing():
        async with polymux.anyio.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
            async with polymux.anyio.connect(server.url, protocol="mplex") as session:
                async with session.open("x") as stream:
                    await stream.send(b"x")
                    assert await stream.receive() == b"x"


async def in_a_pipe(problem: Exception) -> None:
    async with polymux.anyio.pipe("mplex"):
        raise problem


async def in_a_session(problem: Exception) -> None:
    async with polymux.anyio.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.anyio.connect(server.url, protocol="mplex"):
            raise problem


@pytest.mark.parametrize("block", [in_a_pipe, in_a_session])
async def test_an_exception_in_a_block_comes_out_as_it_is(block: Callable[..., Any]) -> None:
    problem = ValueError("on purpose")
    async with leaving_nothing():
        with pytest.raises(ValueError, match="on purpose") as raised:
            await block(problem)
        assert raised.value is problem


async def test_a_scope_around_blocks_ends_all_of_them() -> None:
    ended: list[str] = []

    async def handle(session: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("handler")

    async with leaving_nothing():
        with anyio.move_on_after(10) as scope:
            async with polymux.anyio.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
                async with polymux.anyio.connect(server.url, protocol="mplex") as session:
                    await session.open("x")
                    await settled()
                    scope.cancel()
                    await session.wait_closed()
        assert scope.cancelled_caught
        assert session.is_closed
        assert ended == ["handler"]


async def test_a_session_is_closed_in_order_at_the_end_of_its_block() -> None:
    received: list[bytes] = []

    async def collect(session: Any) -> None:
        received.append(await (await session.accept()).receive_all())

    async with polymux.anyio.serve(collect, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.anyio.connect(server.url, protocol="mplex") as session:
            stream = await session.open("x")
            for _ in range(20):
                await stream.send(PIECE)
            await stream.end()
    assert received == [PIECE * 20]


async def test_the_handlers_of_a_server_are_cancelled_with_it() -> None:
    ended: list[str] = []

    async def handle(session: Any) -> None:
        try:
            await session.open("never accepted")
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await checkpoint()
                ended.append("cleaned up")

    async with leaving_nothing():
        timeouts = polymux.Timeouts(close=0.05)
        async with polymux.anyio.serve(
            handle, "tcp://127.0.0.1:0", protocol="nerdbank", timeouts=timeouts
        ) as server:
            async with polymux.anyio.connect(server.url, protocol="nerdbank"):
                with anyio.move_on_after(0):
                    await server.close()
        assert ended == ["cleaned up"]


async def test_handlers_run_in_the_context_of_their_server() -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    async def handle(session: Any) -> None:
        seen.append(variable.get())
        variable.set("of the handler")
        seen.append(variable.get())

    variable.set("of the server")
    async with polymux.anyio.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
        variable.set("later")
        for _ in range(2):
            async with polymux.anyio.connect(server.url, protocol="mplex") as session:
                await session.wait_closed()
    assert seen == ["of the server", "of the handler"] * 2


# Cancelled calls


async def test_a_call_in_a_cancelled_scope_has_no_effect() -> None:
    async with polymux.anyio.pipe("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        await theirs.send(b"kept")
        await far.open("kept")
        await settled()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: mine.send(b"not sent"),
            mine.receive,
            mine.receive_all,
            mine.readline,
            lambda: mine.readexactly(1),
            mine.receive_parts,
            mine.end,
            mine.drain,
            lambda: near.open("not opened"),
            near.accept,
        ]
        for call in calls:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught
            with anyio.move_on_after(0) as scope:
                await call()
            assert scope.cancelled_caught
        assert await mine.receive() == b"kept"
        assert (await near.accept()).name == "kept"
        await mine.send(b"last")
        await mine.end()
        assert await theirs.receive_all() == b"last"


async def test_closing_in_a_cancelled_scope_closes() -> None:
    async with polymux.anyio.pipe("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        await anyio.aclose_forcefully(mine)
        assert await theirs.receive_all() == b""
        with pytest.raises(polymux.StreamEnded):
            await mine.send(b"x")
        await anyio.aclose_forcefully(near)
        await near.wait_closed()
        await far.wait_closed()


async def test_a_shielded_cleanup_goes_on_in_a_cancelled_scope() -> None:
    async with polymux.anyio.pipe("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        with anyio.CancelScope() as scope:
            try:
                scope.cancel()
                await mine.receive()
            finally:
                with anyio.CancelScope(shield=True):
                    await mine.send(b"bye")
                    await mine.send_eof()
                    assert await theirs.receive_all() == b"bye"
                    await theirs.send(b"and to you")
                    assert await mine.receive() == b"and to you"
        assert scope.cancelled_caught


async def test_a_block_of_a_stream_that_is_cancelled_resets_it() -> None:
    async with polymux.anyio.pipe("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        with anyio.move_on_after(0.01):
            async with mine:
                await mine.receive()
        with pytest.raises(polymux.StreamAborted):
            await theirs.receive()
        await check_works(near, far)


async def test_siblings_of_a_task_that_fails_are_cancelled_and_the_session_goes_on() -> None:
    async def fail() -> None:
        await settled()
        raise ValueError("on purpose")

    async def run_all(*calls: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(call)

    async with polymux.anyio.pipe("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        async with leaving_nothing():
            with pytest.raises(ExceptionGroup) as raised:
                await run_all(mine.receive, near.accept, near.wait_closed, fail)
        assert [type(problem) for problem in raised.value.exceptions] == [ValueError]
        await theirs.send(b"x")
        assert await mine.receive() == b"x"


async def test_a_second_reader_is_refused() -> None:
    async with polymux.anyio.pipe("mplex") as (near, far):
        mine, _ = await opened(near, far)
        async with anyio.create_task_group() as group:
            group.start_soon(mine.receive)
            await settled()
            with pytest.raises(RuntimeError, match="already being read"):
                await mine.receive()
            group.cancel_scope.cancel()


async def test_cancelled_handlers_of_streams_end_before_their_call() -> None:
    ended: list[str] = []

    async def handle(stream: Any) -> None:
        try:
            await stream.receive_all()
        finally:
            with anyio.CancelScope(shield=True):
                await settled()
                ended.append(stream.name)

    async with polymux.anyio.pipe("mplex") as (near, far):
        async with leaving_nothing():
            async with anyio.create_task_group() as group:
                group.start_soon(far.serve_streams, handle)
                streams = [await near.open(name) for name in ("a", "b", "c")]
                await settled()
                group.cancel_scope.cancel()
            assert sorted(ended) == ["a", "b", "c"]
        for stream in streams:
            with pytest.raises(polymux.StreamAborted):
                await stream.receive()
        await check_works(near, far)


async def test_a_stream_that_a_task_of_its_handler_loses_is_no_failure_of_the_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(stream: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(stream.receive_all)

    async with polymux.anyio.pipe("mplex") as (near, far):
        async with anyio.create_task_group() as group:
            group.start_soon(far.serve_streams, handle)
            stream = await near.open("x")
            await settled()
            stream.abort()
            await settled()
            group.cancel_scope.cancel()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_cancelled_call_waits_for_its_handlers_without_using_the_processor() -> None:
    async def handle(stream: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)

    async with polymux.anyio.pipe("mplex") as (near, far):
        async with anyio.create_task_group() as group:
            group.start_soon(far.serve_streams, handle)
            await near.open("x")
            await settled()
            before = time.process_time()
            group.cancel_scope.cancel()
        assert time.process_time() - before < 0.2


async def test_a_request_that_is_cancelled_cancels_its_handler() -> None:
    ended = anyio.Event()

    async def handle(call: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with polymux.anyio.pipe("streamux") as (near, far):
        async with anyio.create_task_group() as group:
            group.start_soon(far.serve_calls, handle)
            with anyio.move_on_after(0.05) as scope:
                await near.request(b"question")
            assert scope.cancelled_caught
            with anyio.fail_after(20):
                await ended.wait()
            group.cancel_scope.cancel()


# Cancelled at every suspension, and at every turn

on_every_loop = pytest.mark.parametrize(
    "anyio_backend",
    ["asyncio", "trio", ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "trio", "uvloop"],
)


@on_every_loop
@pytest.mark.parametrize("protocol", BYTE_STREAMS)
async def test_a_cancelled_open_leaves_no_stream(protocol: str) -> None:
    async for cut in everywhere():
        async with polymux.anyio.pipe(protocol) as (near, far):
            accepted: list[Any] = []

            async def accept(far: Any = far, accepted: list[Any] = accepted) -> None:
                accepted.append(await far.accept())

            async with anyio.create_task_group() as group:
                group.start_soon(accept)
                named = () if protocol == "yamux" else ("x",)
                returned, stream = await cut(near.open, *named)
                await settled()
                group.cancel_scope.cancel()
            for left in [*accepted, *([stream] if returned else [])]:
                left.abort()
            await settled()
            assert (near.open_streams, far.open_streams) == (0, 0), cut
            await check_works(near, far)


@on_every_loop
@pytest.mark.parametrize("protocol", BYTE_STREAMS)
async def test_a_cancelled_accept_loses_no_stream(protocol: str) -> None:
    async for cut in everywhere():
        async with polymux.anyio.pipe(protocol) as (near, far):
            async with anyio.create_task_group() as group:
                group.start_soon(near.offer if protocol == "nerdbank" else near.open)
                returned, stream = await cut(far.accept)
                if not returned:
                    with anyio.fail_after(20):
                        stream = await far.accept()
            stream.abort()
            await settled()
            await check_works(near, far)


READS: dict[str, Callable[[Any], Awaitable[bytes]]] = {
    "receive": lambda stream: stream.receive(4),
    "readline": lambda stream: stream.readline(),
    "readexactly": lambda stream: stream.readexactly(4),
    "__anext__": lambda stream: stream.__anext__(),
}


@on_every_loop
@pytest.mark.parametrize("verb", READS)
async def test_a_cancelled_read_takes_nothing(verb: str) -> None:
    async for cut in everywhere():
        async with polymux.anyio.pipe("yamux") as (near, far):
            mine, theirs = await opened(near, far)
            await mine.send(b"a")
            await settled()

            async def send_rest(mine: Any = mine) -> None:
                await mine.send(b"bc")
                await settled(5)
                await mine.send(b"\nd")
                await mine.end()

            taken = b""
            async with anyio.create_task_group() as group:
                group.start_soon(send_rest)
                returned, data = await cut(READS[verb], theirs)
                taken = data if returned else b""
            with anyio.fail_after(20):
                assert taken + await theirs.receive_all() == b"abc\nd", cut


@on_every_loop
async def test_a_cancelled_send_sends_all_or_nothing() -> None:
    limits = polymux.Limits(receive_window=100_000)
    async for cut in everywhere():
        async with polymux.anyio.pipe("nerdbank", limits=limits) as (near, far):
            mine, theirs = await opened(near, far)
            sent = await fill(mine)
            async with anyio.create_task_group() as group:
                received: list[bytes] = []

                async def read(theirs: Any = theirs, received: list[bytes] = received) -> None:
                    received.append(await theirs.receive_all())

                group.start_soon(read)
                returned, _ = await cut(mine.send, b"y" * 1000)
                await mine.end()
            assert len(received[0]) == sent + (1000 if returned else 0), cut


@on_every_loop
async def test_a_cancelled_close_aborts_the_session() -> None:
    async for cut in everywhere():
        async with leaving_nothing():
            async with polymux.anyio.pipe("mplex") as (near, far):
                mine, _ = await opened(near, far)
                await mine.send(b"x")
                await cut(near.close)
                with anyio.fail_after(20):
                    await near.wait_closed()
                    await far.wait_closed()


@on_every_loop
@pytest.mark.parametrize("scheme", ["tcp", "ws"])
async def test_a_cancelled_connect_leaves_no_connection(scheme: str, tmp_path: Path) -> None:
    async def connect() -> None:
        async with polymux.anyio.connect(server.url, protocol="omnistreams"):
            pass

    url = f"{scheme}://127.0.0.1:0"
    async with polymux.anyio.serve(echo, url, protocol="omnistreams") as server:
        async for cut in everywhere():
            async with leaving_nothing():
                await cut(connect)
                with anyio.fail_after(20):
                    while server.sessions:
                        await anyio.sleep(0.001)
                await settled()


@on_every_loop
async def test_a_cancelled_serve_listens_no_more() -> None:
    async def serve() -> None:
        async with polymux.anyio.serve(echo, "tcp://127.0.0.1:0", protocol="mplex"):
            pass

    async for cut in everywhere():
        async with leaving_nothing():
            await cut(serve)


@on_every_loop
async def test_a_cancelled_ping_leaves_the_session_in_order() -> None:
    async for cut in everywhere():
        async with polymux.anyio.pipe("yamux") as (near, far):
            returned, seconds = await cut(near.ping)
            assert not returned or seconds >= 0
            assert await near.ping() >= 0
            await check_works(near, far)


@on_every_loop
async def test_a_cancelled_control_message_is_sent_whole_or_not_at_all() -> None:
    async for cut in everywhere():
        async with polymux.anyio.pipe("omnistreams") as (near, far):
            returned, _ = await cut(near.control, b"first")
            await near.control(b"second")
            expected = [b"first", b"second"] if returned else [b"second"]
            with anyio.fail_after(20):
                assert [await far.receive_control() for _ in expected] == expected


@on_every_loop
async def test_items_that_were_not_sent_are_not_received(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text(PROFILE)
    async for cut in everywhere():
        async with polymux.anyio.pipe(f"minmux:profile={tmp_path}/profile.toml") as (near, far):
            receiver, sender = far.receiver(1, window=0), near.sender(1)

            async def grant(receiver: Any = receiver) -> None:
                await settled(5)
                receiver.grant(10)

            async with anyio.create_task_group() as group:
                group.start_soon(grant)
                returned, _ = await cut(sender.send, b"ab")
            await sender.send(b"c")
            await sender.end()
            got = b"".join([chunk async for chunk in receiver])
            assert got == (b"abc" if returned else b"c"), cut


# A thousand cancelled calls

CALLS: dict[str, Callable[[Any, Any, Any], Awaitable[Any]]] = {
    "receive": lambda near, far, stream: stream.receive(),
    "receive_all": lambda near, far, stream: stream.receive_all(),
    "readline": lambda near, far, stream: stream.readline(),
    "readexactly": lambda near, far, stream: stream.readexactly(3),
    "send": lambda near, far, stream: stream.send(PIECE * 16),
    "drain": lambda near, far, stream: stream.drain(),
    "accept": lambda near, far, stream: near.accept(),
    "open": lambda near, far, stream: near.open("never accepted"),
    "serve_streams": lambda near, far, stream: near.serve_streams(echo),
    "wait_closed": lambda near, far, stream: near.wait_closed(),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_a_thousand_cancelled_calls_leave_nothing(verb: str) -> None:
    limits = polymux.Limits(open_reset_burst=10_000, receive_window=100_000)
    async with polymux.anyio.pipe("nerdbank", limits=limits) as (near, far):
        mine, theirs = await opened(near, far)
        if verb in ("send", "drain"):
            await fill(mine)
        async with leaving_nothing():
            for _ in range(1000):
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(cancel_soon, scope)
                        await CALLS[verb](near, far, mine)
                assert scope.cancelled_caught
        assert near.open_streams == 1
        await theirs.send(b"x")
        assert await mine.receive() == b"x"


OTHER_CALLS: dict[str, tuple[str, Callable[[Any], Awaitable[Any]]]] = {
    "ping": ("yamux", lambda near: near.ping()),
    "request": ("streamux", lambda near: near.request(b"never answered")),
    "control": ("omnistreams", lambda near: near.control(b"said")),
    "receive_control": ("omnistreams", lambda near: near.receive_control()),
}


@pytest.mark.parametrize("verb", OTHER_CALLS)
async def test_a_thousand_cancelled_calls_of_single_protocols_leave_nothing(verb: str) -> None:
    protocol, call = OTHER_CALLS[verb]
    limits = polymux.Limits(open_reset_burst=10_000, empty_frame_burst=10_000)
    async with polymux.anyio.pipe(protocol, limits=limits) as (near, far):
        await settled()
        async with leaving_nothing():
            for _ in range(1000):
                with anyio.CancelScope() as scope:  # a ping may be answered before
                    async with anyio.create_task_group() as group:
                        group.start_soon(cancel_soon, scope)
                        await call(near)
        assert near.open_streams == 0
        assert near.failure is far.failure is None


async def cancel_soon(scope: anyio.CancelScope) -> None:
    await checkpoint()
    scope.cancel()


async def test_a_thousand_cancelled_connections_leave_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(2000)
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"

        async with leaving_nothing():
            for _ in range(1000):
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(cancel_soon, scope)
                        async with polymux.anyio.connect(url, protocol="nerdbank:version=2"):
                            raise AssertionError("nobody answers")
                assert scope.cancelled_caught


async def test_a_thousand_cancelled_servers_leave_nothing() -> None:
    async with leaving_nothing():
        for _ in range(1000):
            with anyio.CancelScope() as scope:
                async with polymux.anyio.serve(echo, "tcp://127.0.0.1:0", protocol="mplex"):
                    scope.cancel()
                    await checkpoint()
            assert scope.cancelled_caught


# Checkpoints


async def test_every_call_is_a_checkpoint() -> None:
    async with polymux.anyio.pipe("nerdbank") as (near, far):
        mine, theirs = await opened(near, far)
        await theirs.send(b"a line\nand another one")
        await theirs.end()
        await near.offer("offered")
        await far.offer("to be accepted")
        await settled()
        for call in (
            lambda: mine.send(b"x"),
            lambda: mine.receive(1),
            mine.readline,
            lambda: mine.readexactly(2),
            mine.receive_parts,
            mine.receive_all,
            mine.drain,
            mine.send_eof,
            lambda: near.offer("another"),
            near.accept,
            mine.aclose,
            mine.aclose,
            far.close,
            far.wait_closed,
        ):
            with assert_checkpoints():
                await call()


@contextlib.contextmanager
def assert_checkpoints() -> Iterator[None]:
    """Check that the event loop turns in the block."""
    if trio.lowlevel.in_trio_run():
        with trio.testing.assert_checkpoints():
            yield
    else:
        turned: list[None] = []
        asyncio.get_running_loop().call_soon(turned.append, None)
        yield
        assert turned


# Time


@pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
)
async def test_timers_run_on_the_clock_of_trio(anyio_backend: Any) -> None:
    timeouts = polymux.Timeouts(keepalive_interval=3600.0)
    async with polymux.anyio.pipe("yamux", timeouts=timeouts) as (near, _):
        before, began = near.bytes_sent, trio.current_time()
        while near.bytes_sent == before:
            await anyio.sleep(60)
        assert 3000 < trio.current_time() - began < 8000
