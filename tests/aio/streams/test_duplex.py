"""One stream: sending, receiving, ending, aborting, and its removal from the session."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio.session_helpers import PROTOCOLS, channels, joined, opened, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux.core.send_scheduler import SESSION_SEND_BUFFER_BYTES

every = pytest.mark.parametrize("protocol", PROTOCOLS)


@every
@virtual
async def test_a_half_closed_stream_can_still_be_answered(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        await mine.send(b"question")
        await mine.end()
        assert await theirs.receive_all() == b"question"
        with pytest.raises(polymux.StreamEnded):
            mine.send_nowait(b"more")
        await theirs.send(b"answer")
        await theirs.end()
        assert await mine.receive_all() == b"answer"


@every
@virtual
async def test_a_reset_is_an_error_for_readers_and_writers_and_not_an_end(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        waiting = asyncio.create_task(mine.receive())
        await settled()
        theirs.abort()
        with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
            await waiting
        for verb in (mine.receive, mine.receive_all, mine.receive_parts):
            with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
                await verb()
        with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
            await mine.send(b"x")
        with pytest.raises(polymux.StreamAborted, match="this side aborted the stream"):
            await theirs.receive()


@virtual
async def test_a_reset_takes_unread_content_with_it_in_mplex_and_not_in_nerdbank() -> None:
    for protocol, left in (("mplex", b""), ("nerdbank", b"early")):
        async with joined(protocol) as (near, far):
            mine, theirs = await opened(near, far)
            await theirs.send(b"early")
            await settled()
            theirs.abort()
            await settled()
            assert mine.receive_nowait() == left
            assert near.endpoint.receive_queue.unread_bytes == 0
            with pytest.raises(polymux.StreamAborted):
                await mine.receive()


@virtual
async def test_texts_of_a_peer_are_printable_in_errors_and_unchanged_beside_them() -> None:
    async with joined("nerdbank") as (near, far):
        mine, theirs = await opened(near, far)
        theirs.abort("red \x1b[31m\nline " + "x" * 500)
        with pytest.raises(polymux.StreamAborted) as problem:
            await mine.receive()
        text = str(problem.value)
        assert "red \\x1b[31m\\nline xxx" in text
        assert text.endswith("...")
        assert text.isprintable()
        assert mine.error == "red \x1b[31m\nline " + "x" * 500


@every
@virtual
async def test_buffers_are_copied_when_they_are_sent(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        buffer = bytearray(b"first")
        await mine.send(buffer)
        mine.send_nowait(memoryview(buffer)[1:])
        mine.send_many([buffer, memoryview(buffer), b"!"])
        buffer[:] = b"XXXXX"
        await mine.end()
        assert await theirs.receive_all() == b"firstirstfirstfirst!"


@virtual
async def test_what_is_no_buffer_is_refused_and_nothing_is_queued() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        for wrong in ("text", 5, None):
            with pytest.raises(TypeError, match="a stream sends bytes, not"):
                await mine.send(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="a stream sends bytes, not"):
                mine.send_nowait(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="a stream sends bytes, not"):
                mine.send_many([b"before", wrong])  # type: ignore[list-item]
        await mine.end()
        assert await theirs.receive_all() == b""


@every
@virtual
async def test_empty_pieces_are_nothing_and_no_end(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        await mine.send(b"")
        mine.send_many([b"", b"a", b"", b"b", b""])
        mine.send_many([])
        await settled()
        assert theirs.receive_nowait() == b"ab"
        await mine.send(b"c")
        await mine.end()
        assert await theirs.receive_all() == b"c"


@virtual
async def test_an_empty_message_of_a_peer_is_no_end_of_data() -> None:
    async with joined("mplex") as (near, _):
        near.data_received(bytes.fromhex("0000 0200"))  # opened, and an empty message
        stream = await near.accept()
        reading = asyncio.create_task(stream.receive())
        await settled()
        near.data_received(bytes.fromhex("0200 0200"))
        await settled()
        assert not reading.done()
        near.data_received(bytes.fromhex("020178 0400"))
        assert await reading == b"x"
        assert await stream.receive() == b""


@every
@virtual
async def test_send_many_sends_each_piece_complete_and_in_order(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        before = near.endpoint.protocol.causality.frames_sent(0)
        mine.send_many([bytes([i]) * 100 for i in range(200)])
        mine.send_many(bytes([i]) for i in range(10))
        await settled()
        assert near.endpoint.protocol.causality.frames_sent(0) - before == 210
        await mine.end()
        wanted = b"".join(bytes([i]) * 100 for i in range(200)) + bytes(range(10))
        assert await theirs.receive_all() == wanted


@every
@virtual
async def test_parts_are_not_copied_and_their_credit_is_returned(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        data = bytes(range(256)) * 8192

        async def send() -> None:
            await mine.send(data)
            await mine.end()

        got = []
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            while parts := await theirs.receive_parts():
                got += parts
        assert b"".join(got) == data
        assert any(isinstance(part, memoryview) for part in got)
        assert far.endpoint.receive_queue.unread_bytes == 0


@virtual
async def test_only_one_task_may_read_a_stream() -> None:
    async with joined("mplex") as (near, far):
        mine, _ = await opened(near, far)
        first = asyncio.create_task(mine.receive())
        await settled()
        with pytest.raises(RuntimeError, match="already being read"):
            await mine.receive()
        first.cancel()


@every
@virtual
async def test_receive_all_aborts_a_stream_beyond_its_limit(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        await mine.send(bytes(2000))
        with pytest.raises(polymux.LimitExceeded, match=r"more than 1000 .* receive_all\(limit="):
            await theirs.receive_all(limit=1000)
        with pytest.raises(polymux.StreamAborted):
            await mine.receive()


@every
@virtual
async def test_closing_lets_what_is_queued_arrive_and_reads_no_more(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        await theirs.send(b"unread")
        await settled()
        async with mine:
            await mine.send(bytes(90_000))
        assert await theirs.receive_all() == bytes(90_000)
        assert near.endpoint.receive_queue.unread_bytes == 0
        with pytest.raises(polymux.StreamEnded, match="closed by this side"):
            await mine.receive()


@every
@virtual
async def test_a_peer_that_goes_on_sending_to_a_closed_stream_comes_to_its_end(
    protocol: str,
) -> None:
    limits = polymux.Limits(stream_buffer_bytes=50_000, receive_window=30_000)
    async with joined(protocol, limits=limits) as (near, far):
        mine, theirs = await opened(near, far)
        await mine.close()

        async def send_on_and_on() -> None:
            for _ in range(100):
                await theirs.send(bytes(10_000))
                await settled()

        with pytest.raises((polymux.StreamAborted, polymux.StreamEnded)):
            await send_on_and_on()
        await theirs.close()
        await settled()
        assert not near.streams
        assert not far.streams


@every
@virtual
async def test_streams_that_are_over_leave_nothing_behind(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        for turn in range(40):
            mine, theirs = await opened(near, far, f"n{turn}")
            await mine.send(b"x")
            if turn % 4 == 0:
                mine.abort()
            elif turn % 4 == 1:
                theirs.abort()
            elif turn % 4 == 2:
                await mine.close()
                await theirs.receive_all()
                await theirs.close()
            else:
                await mine.end()
                await theirs.end()
                assert await theirs.receive_all() == b"x"
            await settled()
        for session in (near, far):
            assert session.streams == {}
            assert session.peer_stream_count == 0
            assert session.endpoint.receive_queue.unread_bytes == 0
            assert session.endpoint.scheduler.ready_bytes == 0
            assert all(s.buffers is None for s in session.endpoint.protocol.streams.all())


@every
@virtual
async def test_content_that_came_before_the_end_is_kept_until_it_is_read(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        mine, theirs = await opened(near, far)
        await mine.send(b"kept")
        await mine.end()
        await theirs.end()
        await settled()
        assert far.endpoint.receive_queue.unread_bytes == 4
        assert await theirs.receive_all() == b"kept"
        assert far.streams == {}


@virtual
async def test_a_channel_without_credit_does_not_block_the_others() -> None:
    async with joined("nerdbank", limits=polymux.Limits(receive_window=100)) as (near, far):
        stuck, _ = await opened(near, far, "stuck")
        await stuck.send(bytes(1_000_000))  # credit for a hundred bytes of it
        await settled()
        free, theirs = await opened(near, far, "free")
        for _ in range(10):
            await free.send(b"x" * 100)
            await settled()
            assert await theirs.receive() == b"x" * 100


@virtual
async def test_senders_are_woken_in_turn_and_never_queue_without_bound() -> None:
    limits = polymux.Limits(accept_backlog=300)
    async with joined("mplex", limits=limits) as (near, far):
        streams = [await near.open(str(i)) for i in range(200)]
        assert far.transport is not None
        far.transport.pause_reading()
        peaks: list[int] = []
        first_turns: list[int] = []

        async def send(number: int) -> None:
            for turn in range(3):
                await streams[number].send(bytes(60_000))
                peaks.append(near.endpoint.scheduler.ready_bytes)
                if turn == 0:
                    first_turns.append(number)
            await streams[number].end()

        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(send(number))
            await settled(50)
            assert len(first_turns) < 30  # the rest waits for room
            far.transport.resume_reading()
            reading = [tasks.create_task((await far.accept()).receive_all()) for _ in range(200)]
        assert max(peaks) < SESSION_SEND_BUFFER_BYTES + 256 * 1024
        assert first_turns == list(range(200))
        assert all(len(task.result()) == 180_000 for task in reading)


@virtual
async def test_sending_raises_when_the_peer_reads_no_more() -> None:
    async with joined("nerdbank", limits=polymux.Limits(receive_window=100)) as (near, far):
        mine, theirs = await opened(near, far)
        sending = asyncio.create_task(mine.send(bytes(1000)))
        await sending
        sending = asyncio.create_task(mine.send(b"more"))
        await settled()
        assert not sending.done()
        await theirs.close()
        with pytest.raises(polymux.StreamEnded, match="the peer reads no more"):
            await sending


@virtual
async def test_an_error_text_after_the_last_content_is_not_an_end_of_data() -> None:
    """.NET ends a failed writer with ContentWritingCompleted, then a termination with the text."""
    async with joined("nerdbank") as (near, far):
        mine, theirs = await opened(near, far)
        await theirs.send(b"half of it")
        await theirs.end()
        await settled()
        theirs.abort("disk full")
        await settled()
        assert await mine.receive() == b"half of it"
        with pytest.raises(polymux.StreamAborted, match="disk full"):
            await mine.receive()
        with pytest.raises(polymux.StreamAborted, match="disk full"):
            await mine.send(b"x")


@virtual
async def test_closing_an_offer_that_was_not_accepted_withdraws_it() -> None:
    async with joined("nerdbank") as sessions:
        near, far = channels(*sessions)
        stream = await near.offer("x")
        await settled()
        assert [offer.name for offer in far.offers()] == ["x"]
        await stream.close()
        await settled()
        assert far.offers() == []
        assert near.streams == far.streams == {}
