"""A finished session is freed at once when the application drops it, without the collector."""

import asyncio
import contextlib
import gc
import sys
import warnings
import weakref
from collections.abc import Iterator

import pytest

import polymux
from polymux import MinmuxSession, OmnistreamsSession, Session, StreamuxSession, YamuxSession
from polymux.core.streams import OPEN, StreamState

CASES = [("mplex", "tcp"), ("nerdbank:version=1", "tcp"), ("nerdbank:version=3", "tcp"),
         ("omnistreams", "tcp"), ("omnistreams", "ws"), ("streamux", "tcp"),
         ("minmux", "tcp"), ("yamux", "tcp")]  # fmt: skip


@pytest.fixture
def collector_off() -> Iterator[None]:
    """Turn Python's cycle collector off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def use_streams(session: Session) -> None:
    """Use a few streams: some ended, one left open."""
    if isinstance(session, StreamuxSession):
        for _ in range(3):
            assert await session.request(b"x") == b"x"
        await session.open()
    elif isinstance(session, MinmuxSession):
        await session.sender(1).send(b"abc")
        assert await session.receiver(2).receive() == b"abc"
    elif isinstance(session, YamuxSession):
        assert await session.ping() >= 0
        async with await session.open() as stream:
            await stream.send(b"x")
            assert await stream.receive() == b"x"
        await session.open()
    elif isinstance(session, OmnistreamsSession):
        async with await session.open("x") as outlet:
            await outlet.send(b"x")
        await (await session.open("y")).send(b"never read")
    else:
        for _ in range(3):
            async with await session.open("x") as stream:
                await stream.send(b"x")
                await stream.end()
                assert await stream.receive_all() == b"x"
        await (await session.open("y")).send(b"never read")


async def answer(session: Session) -> None:
    with contextlib.suppress(polymux.PolymuxError):
        if isinstance(session, StreamuxSession):
            async for call in session.calls:
                await call.reply(await call.read())
        elif isinstance(session, MinmuxSession):
            outlet = session.sender(2)
            async for items in session.receiver(1):
                await outlet.send(items)
        elif isinstance(session, YamuxSession):
            async for stream in session.incoming:
                await stream.send(await stream.receive())
        else:
            async for stream in session.incoming:
                if stream.name == "x" and not isinstance(session, OmnistreamsSession):
                    async with stream:
                        await stream.send(await stream.receive_all())


@pytest.mark.parametrize(("protocol", "carrier"), CASES)
def test_a_session_whose_loop_was_closed_first_is_found_by_the_collector(
    protocol: str, carrier: str
) -> None:
    left: list[weakref.ref[Session]] = []

    async def handle(session: Session) -> None:
        left.append(weakref.ref(session))
        await answer(session)

    async def run() -> None:
        server = await polymux.serve(handle, f"{carrier}://127.0.0.1:0", protocol=protocol)
        session = await polymux.connect(server.url, protocol=protocol)
        left.append(weakref.ref(session))
        await use_streams(session)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the sockets that were not closed
        asyncio.run(run())
        gc.collect()
        gc.collect()
    assert [session() for session in left] == [None, None]


@pytest.mark.parametrize("how", ["closed", "cut"])
@pytest.mark.parametrize(("protocol", "carrier"), CASES)
def test_a_finished_session_without_references_is_freed_at_once(
    protocol: str, carrier: str, how: str, collector_off: None
) -> None:
    gone: list[weakref.ref[Session]] = []

    async def handle(session: Session) -> None:
        gone.append(weakref.ref(session))
        await answer(session)

    async def visit(url: str) -> None:
        session = await polymux.connect(url, protocol=protocol)
        gone.append(weakref.ref(session))
        await use_streams(session)
        if how == "closed":
            await session.close()
        else:
            session.abort("enough")
            await session.wait_closed()

    async def run() -> None:
        server = await polymux.serve(handle, f"{carrier}://127.0.0.1:0", protocol=protocol)
        await visit(server.url)
        async with asyncio.timeout(20):
            while any(session() is not None for session in gone):
                await asyncio.sleep(0.01)
        await server.close()

    asyncio.run(run())
    assert len(gone) == 2


def test_a_finished_session_keeps_no_records_of_its_streams(collector_off: None) -> None:
    async def run() -> None:
        near, far = await polymux.pipe("mplex")
        answering = asyncio.create_task(answer(far))
        records: list[StreamState] = []
        for _ in range(50):
            async with await near.open("x") as stream:
                records.append(stream.state)
                await stream.end()
        del stream
        (alone,) = map(sys.getrefcount, [StreamState(0, 0, 0, 0)])
        assert all(count > alone for count in map(sys.getrefcount, records))
        await near.close()
        await answering
        assert near.failure is None
        kept = [count for count in map(sys.getrefcount, records) if count > alone]
        assert len(kept) <= 1  # the one used last

    asyncio.run(run())


def test_data_received_before_the_end_can_be_read_after_it() -> None:
    async def run() -> None:
        near, far = await polymux.pipe("nerdbank:version=3")
        opening = asyncio.create_task(near.open("x"))
        theirs = await far.accept()
        ours = await opening
        await ours.send(b"the last words")
        await ours.end()
        async with asyncio.timeout(20):
            while theirs.state.half(0).state == OPEN:
                await asyncio.sleep(0.001)
        far.abort("enough")
        await far.wait_closed()
        assert await theirs.receive_all() == b"the last words"
        theirs.abort()
        with pytest.raises(polymux.SessionClosed, match="enough"):
            await far.accept()
        await near.wait_closed()

    asyncio.run(run())
