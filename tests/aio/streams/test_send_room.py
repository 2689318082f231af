"""Senders that wait for room are woken by everything that makes room."""

import asyncio

import polymux


async def test_a_sender_does_not_wait_for_queued_data_that_has_no_credit() -> None:
    near, far = await polymux.nerdbank.pipe(version=3, window=65536)
    streams = []
    for name in ("full", "free"):
        opening = asyncio.create_task(near.open(name))
        await far.accept(name)
        streams.append(await opening)
    full, free = streams
    await full.send(bytes(65536))  # all its credit
    await asyncio.sleep(0)
    full.send_nowait(bytes(1 << 20))  # fills the session's buffer until a flush finds no credit
    assert free.send_would_block()
    await asyncio.wait_for(free.drain(), 10)
    full.send_nowait(bytes(1 << 20))
    assert free.send_would_block()
    called = asyncio.Event()
    near.socket_writer.flush_for_sender()
    free.call_when_writable(called.set)
    await asyncio.wait_for(called.wait(), 10)
    near.abort()
    await near.wait_closed()
    await far.wait_closed()
