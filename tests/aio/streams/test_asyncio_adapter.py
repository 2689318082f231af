"""A polymux stream behind asyncio's StreamReader and StreamWriter."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio.session_helpers import PROTOCOLS, answer, joined, opened, settled
from tests.aio.virtual_clock import virtual

import polymux

every = pytest.mark.parametrize("protocol", PROTOCOLS)


@every
@virtual
async def test_lines_go_there_and_back(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        answering = asyncio.create_task(answer(theirs))
        reader, writer = polymux.as_asyncio_streams(mine)
        writer.writelines([b"one\n", b"two\n"])
        await writer.drain()
        writer.write_eof()
        assert await reader.readline() == b"one\n"
        assert await reader.readline() == b"two\n"
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await answering
        assert writer.get_extra_info("polymux_stream") is mine


@every
@virtual
async def test_drain_waits_for_a_slow_reader(protocol: str) -> None:
    async with joined(protocol, limits=polymux.Limits(receive_window=10_000)) as (near, far):
        mine, theirs = await opened(near, far)
        assert far.transport is not None
        far.transport.pause_reading()
        _, writer = polymux.as_asyncio_streams(mine)
        writer.write(bytes(600_000))
        draining = asyncio.create_task(writer.drain())
        await settled()
        assert not draining.done()
        far.transport.resume_reading()
        reading = asyncio.create_task(theirs.receive_all())
        await draining
        writer.close()
        assert len(await reading) == 600_000


@virtual
async def test_a_reader_that_does_not_read_is_not_fed_without_bound() -> None:
    async with joined("nerdbank", limits=polymux.Limits(receive_window=300_000)) as (near, far):
        mine, theirs = await opened(near, far)
        reader, writer = polymux.as_asyncio_streams(theirs)
        mine.send_nowait(bytes(1_000_000))
        await mine.end()
        await asyncio.sleep(1)
        assert len(reader._buffer) < 500_000  # type: ignore[attr-defined]
        assert len(await reader.read()) == 1_000_000
        writer.close()
        await writer.wait_closed()


@every
@virtual
async def test_a_reset_is_an_error_and_not_an_end(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        reader, writer = polymux.as_asyncio_streams(mine)
        theirs.abort()
        with pytest.raises(ConnectionResetError, match="aborted by the peer"):
            await reader.read()
        with pytest.raises(ConnectionResetError):
            await writer.drain()
        writer.write(b"ignored")
        writer.close()


@virtual
async def test_aborting_the_writer_resets_the_stream() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        _, writer = polymux.as_asyncio_streams(mine)
        writer.transport.abort()
        assert writer.is_closing()
        with pytest.raises(polymux.StreamAborted):
            await theirs.receive()
        await settled()
