"""The relay's pump, between sessions of every two duplex protocols."""

import asyncio
import hashlib
import os
import random

import pytest
from tests.relay.relayed_sessions import (
    DUPLEX,
    PAIRS,
    Relayed,
    digest_of,
    fill,
    open_stream,
    relayed_sessions,
    send_all,
)

import polymux
from polymux.relay import Filter, SessionEnd, StreamInfo
from polymux.relay.channels import LOST_REASON, NO_CREDIT, Channel
from polymux.relay.ends import Arrival, ArrivalQueue
from polymux.relay.engine import Relay
from polymux.relay.sockets import SocketsEnd

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
CONTENT_BYTES = 64 << 20 if SOAK else 150_000
TIMEOUT = 50 if SOAK else 30  # seconds; a test that hangs fails
WITHOUT_CREDIT = {"mplex", "nerdbank:version=1"}  # a slow reader pauses the whole session


@pytest.mark.parametrize(("protocol_a", "protocol_b"), PAIRS)
async def test_content_half_closes_and_names_pass_both_ways(
    protocol_a: str, protocol_b: str
) -> None:
    data = random.Random(1).randbytes(CONTENT_BYTES)
    async with asyncio.timeout(TIMEOUT), relayed_sessions(protocol_a, protocol_b) as relayed:
        for opener, accepter in ((relayed.near, relayed.far), (relayed.far, relayed.near)):
            opening = asyncio.create_task(open_stream(opener, "jobs"))
            accepted = await accepter.accept()
            stream = await opening
            sending = asyncio.create_task(send_all(stream, data))
            assert await digest_of(accepted) == hashlib.sha256(data).digest()
            await sending
            answering = asyncio.create_task(send_all(accepted, data[::-1]))  # half-closed
            assert await digest_of(stream) == hashlib.sha256(data[::-1]).digest()
            await answering
            named = "yamux" not in protocol_a and "yamux" not in protocol_b
            assert accepted.name == ("jobs" if named else "")
        await relayed.near.close()
        await relayed.task
        stats = relayed.relay.stats
        assert (stats.streams, stats.open, stats.aborted) == (2, 0, 0)
        assert stats.bytes_a == stats.bytes_b == 2 * len(data)
        assert relayed.far.failure is None
        has_names = ["yamux" not in text for text in (protocol_a, protocol_b)]
        assert stats.lost["name"] == (has_names[0] != has_names[1])


@pytest.mark.parametrize(("protocol_a", "protocol_b"), PAIRS)
async def test_a_reset_passes_with_its_reason_where_both_have_one(
    protocol_a: str, protocol_b: str
) -> None:
    async with asyncio.timeout(TIMEOUT), relayed_sessions(protocol_a, protocol_b) as relayed:
        stream, accepted = await relayed.opened("first")
        await stream.send(b"x")
        assert await accepted.receive() == b"x"
        stream.abort("code 7")
        with pytest.raises(polymux.StreamAborted):
            await accepted.receive()
        stream, accepted = await relayed.opened("second")
        accepted.abort("code 8")
        with pytest.raises(polymux.StreamAborted):
            await stream.receive()
        with_reason = [
            text[-1] in "23" or text.endswith("libp2p") for text in (protocol_a, protocol_b)
        ]
        assert (stream.error == "code 8") == all(with_reason)
        lost = relayed.relay.stats.lost["reset_reason"]
        assert lost == (with_reason[0] != with_reason[1])
        assert relayed.relay.stats.aborted == 2


@pytest.mark.parametrize("killed", ["near", "far"])
@pytest.mark.parametrize("protocol", DUPLEX)
async def test_a_killed_side_ends_the_other_and_resets_its_streams(
    protocol: str, killed: str
) -> None:
    async with asyncio.timeout(TIMEOUT), relayed_sessions(protocol, "nerdbank") as relayed:
        stream, accepted = await relayed.opened("jobs")
        await stream.send(b"x")
        assert await accepted.receive() == b"x"
        left = accepted if killed == "near" else stream
        (relayed.near if killed == "near" else relayed.far).abort("killed")
        with pytest.raises((polymux.StreamAborted, polymux.SessionClosed)) as caught:
            await left.receive()
        if killed == "near":
            assert LOST_REASON in str(caught.value)
        await relayed.task
        assert relayed.relay.stats.open == 0
        await left.session.closed


async def test_a_stream_that_is_not_read_does_not_keep_a_relay_whose_other_end_is_lost() -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        relayed_sessions("yamux", "yamux", linger=0.05) as relayed,
    ):
        stuck, unread = await relayed.opened()
        filling = asyncio.create_task(fill(stuck))
        while not relayed.relay.streams or not next(iter(relayed.relay.streams)).is_stalled:
            await asyncio.sleep(0)
        relayed.near.abort("killed")
        await relayed.task
        assert (relayed.relay.stats.open, relayed.relay.stats.aborted) == (0, 1)
        await unread.session.closed
        await asyncio.gather(filling, return_exceptions=True)


def held_bytes(relayed: Relayed) -> int:
    """Content that the relay holds: received and not passed on, or not sent."""
    return sum(
        int(stream.buffers.queued_bytes + stream.buffers.unread_bytes)
        for end in (relayed.relay.a, relayed.relay.b)
        if isinstance(end, SessionEnd)
        for stream in end.session.streams.values()
    )


@pytest.mark.parametrize(("protocol_a", "protocol_b"), PAIRS)
async def test_a_stream_that_is_not_read_holds_bounded_memory_and_the_others_go_on(
    protocol_a: str, protocol_b: str
) -> None:
    limits = polymux.Limits(receive_window=262144, session_buffer_bytes=2 << 20)
    timeouts = polymux.Timeouts(slow_reader=0.1)
    async with (
        asyncio.timeout(TIMEOUT),
        relayed_sessions(protocol_a, protocol_b, limits=limits, timeouts=timeouts) as relayed,
    ):
        stuck, _unread = await relayed.opened("stuck")
        filling = asyncio.create_task(fill(stuck))
        data = random.Random(2).randbytes(300_000)
        most = 0
        for _ in range(2):
            stream, accepted = await relayed.opened("other")
            sending = asyncio.create_task(send_all(stream, data))
            assert await digest_of(accepted) == hashlib.sha256(data).digest()
            await sending
            await accepted.end()
            assert await stream.receive() == b""
            most = max(most, held_bytes(relayed))
        assert most <= limits.session_buffer_bytes
        if WITHOUT_CREDIT.isdisjoint((protocol_a, protocol_b)):
            stuck_stream = next(each for each in relayed.relay.streams)
            while not stuck_stream.forward.stalled_at:
                await asyncio.sleep(0)
            assert stuck_stream.forward.stall_cause == NO_CREDIT
            assert held_bytes(relayed) <= 2 * limits.receive_window
            assert stuck.usable
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)


class Upper(Filter):
    """Changes the content, and reads a byte at a time."""

    def read_limit(self) -> int:
        return 1

    def content(self, data: bytes) -> None:
        self.pump.forward(data.upper())


class Held(Filter):
    """Reads nothing until it is released."""

    released = False

    def read_limit(self) -> int:
        return -1 if self.released else 0


async def test_a_filter_changes_holds_and_ends_one_direction_of_one_stream() -> None:
    held = Held()

    def filters(info: StreamInfo) -> tuple[Filter | None, Filter | None]:
        return (Upper(), held) if info.name == b"filtered" else (None, None)

    async with asyncio.timeout(TIMEOUT), relayed_sessions("mplex", "mplex", filters) as relayed:
        stream, accepted = await relayed.opened("filtered")
        other, other_accepted = await relayed.opened("plain")
        await send_all(stream, b"hello")
        assert await accepted.receive_all() == b"HELLO"
        await send_all(accepted, b"reply")
        await send_all(other, b"plain")
        assert await other_accepted.receive_all() == b"plain"
        assert not stream.has_unread
        held.released = True
        held.pump.resume()
        assert await stream.receive_all() == b"reply"


async def test_a_rejected_offer_is_rejected_to_its_opener_with_the_reason() -> None:
    async with asyncio.timeout(TIMEOUT), relayed_sessions("nerdbank", "nerdbank") as relayed:
        opening = asyncio.create_task(open_stream(relayed.near, "refused"))
        far = relayed.far
        assert isinstance(far, polymux.NerdbankSession)
        (await far.next_offer()).abort("no such service")
        with pytest.raises(polymux.StreamAborted, match="rejected by the peer: no such service"):
            await opening
        assert relayed.relay.stats.rejected == 1


async def test_an_offer_that_is_withdrawn_while_it_is_re_opened_is_withdrawn_there_too() -> None:
    async with asyncio.timeout(TIMEOUT), relayed_sessions("nerdbank", "nerdbank") as relayed:
        opening = asyncio.create_task(open_stream(relayed.near, "late"))
        far = relayed.far
        assert isinstance(far, polymux.NerdbankSession)
        offer = await far.next_offer()
        opening.cancel()
        with pytest.raises(polymux.PolymuxError):
            await far.accepted(offer)
        while relayed.relay.stats.rejected == 0:
            await asyncio.sleep(0)


async def refuse_to_dial(name: bytes) -> Channel:
    raise AssertionError(f"nothing opens a stream here, but {name!r} was")


async def test_a_dial_that_completes_as_the_relay_is_cancelled_is_aborted() -> None:
    near, inner = await polymux.pipe("yamux")
    far, dialled = await polymux.pipe("yamux")
    opened: list[Channel] = []

    async def dial(name: bytes) -> Channel:
        opened.append(await SessionEnd(dialled).open(name))
        running.cancel()
        return opened[0]

    arrivals = ArrivalQueue()
    relay = Relay(SocketsEnd(arrivals, refuse_to_dial), SocketsEnd(ArrivalQueue(), dial))
    async with asyncio.timeout(TIMEOUT), near, inner, far, dialled:
        running = asyncio.create_task(relay.run())
        arrivals.put(Arrival(SessionEnd(inner).channel(await inner.open()), b""))
        await asyncio.wait([running])
        assert isinstance(opened[0].write_failure(), polymux.StreamAborted)


async def test_a_stream_whose_opening_fails_unexpectedly_is_aborted() -> None:
    near, inner = await polymux.pipe("yamux")

    async def dial(name: bytes) -> Channel:
        raise ZeroDivisionError("a defect of the end")

    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    relay = Relay(SessionEnd(inner), SocketsEnd(ArrivalQueue(), dial))
    async with asyncio.timeout(TIMEOUT), near:
        running = asyncio.create_task(relay.run())
        stream = await near.open()
        await stream.send(b"x")
        with pytest.raises(polymux.StreamAborted):
            await stream.receive()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert all(isinstance(failure, ZeroDivisionError) for failure in failures)
