"""Nerdbank sessions: offers, accepting, ids, seeded channels, window growth, termination."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.aio.conftest import run_strictly
from tests.aio.session_helpers import channels, joined, opened, settled
from tests.aio.virtual_clock import ClockLoop, virtual

import polymux
from polymux import Limits
from polymux.aio.runtime import current_runtime
from polymux.core.frames import Frame
from polymux.core.observer import Observer
from polymux.live.factory import session_factory
from polymux.live.transports.memory import MemoryTransport
from polymux.protocols.nerdbank.codec import (
    GROWTH_REQUEST,
    READING_COMPLETED,
    TERMINATED,
    WINDOW_ADJUST,
)
from polymux.protocols.registry import create

with_windows = pytest.mark.parametrize("version", [2, 3])
MIB = 1024 * 1024


@virtual
async def test_offers_and_acceptors_of_a_name_meet_in_the_order_they_came() -> None:
    async with joined("nerdbank") as sessions:
        near, far = channels(*sessions)
        waiting = [asyncio.create_task(far.accept("a")) for _ in range(2)]
        other = asyncio.create_task(far.accept("b"))
        whichever = asyncio.create_task(far.accept())
        await settled()
        offers = [await near.offer(name) for name in ("a", "c", "a", "a", "b")]
        await settled()
        assert [task.result().stream_id for task in waiting] == [
            offers[0].stream_id,
            offers[2].stream_id,
        ]
        assert whichever.result().stream_id == offers[1].stream_id
        assert other.result().stream_id == offers[4].stream_id
        assert [offer.stream_id for offer in far.offers()] == [offers[3].stream_id]
        assert (await far.accept("a")).stream_id == offers[3].stream_id


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("oac"), st.sampled_from("xy")), max_size=30))
def test_queues_are_first_in_first_out_per_name_whatever_the_order(
    acts: list[tuple[str, str]],
) -> None:
    async def scene() -> None:
        async with joined("nerdbank") as sessions:
            near, far = channels(*sessions)
            offered: dict[str, list[int]] = {"x": [], "y": []}
            takers: dict[str, list[asyncio.Task[polymux.Stream]]] = {"x": [], "y": []}
            for act, name in acts:
                if act == "o":
                    offered[name].append((await near.offer(name)).stream_id)
                elif act == "a":
                    takers[name].append(asyncio.create_task(far.accept(name)))
                elif takers[name] and not takers[name][-1].done():
                    takers[name].pop().cancel()
                await settled()
            for name in "xy":
                taken = [task.result().stream_id for task in takers[name] if task.done()]
                assert taken == offered[name][: len(taken)]
                assert len(taken) == min(len(offered[name]), len(takers[name]))
                for task in takers[name]:
                    task.cancel()

    run_strictly(scene, ClockLoop)


@virtual
async def test_a_rejection_and_its_text_reach_the_offering_side() -> None:
    async with joined("nerdbank") as sessions:
        near, far = channels(*sessions)
        opening = asyncio.create_task(near.open("x"))
        await settled()
        offer = far.offers()[0]
        far.reject(offer, "not today")
        with pytest.raises(polymux.StreamAborted, match="rejected by the peer: not today"):
            await opening
        with pytest.raises(polymux.LocalProtocolError, match="not waiting to be accepted"):
            far.reject(offer)


@virtual
async def test_an_offer_that_is_withdrawn_is_never_handed_out() -> None:
    async with joined("nerdbank") as sessions:
        near, far = channels(*sessions)
        waiting = asyncio.create_task(far.accept("x"))
        await settled()
        first = await near.offer("x")
        first.abort()
        second = await near.offer("x")
        assert (await waiting).stream_id == second.stream_id
        with pytest.raises(polymux.LocalProtocolError, match="not waiting to be accepted"):
            await far.accept_id(first.stream_id)
        with pytest.raises(polymux.LocalProtocolError, match="neither offered nor seeded"):
            await far.accept_id(99)


@virtual
async def test_names_that_come_once_leave_nothing_behind() -> None:
    async with joined("nerdbank", limits=Limits(closed_streams_remembered=10)) as sessions:
        near, far = channels(*sessions)
        for i in range(300):
            (await near.offer(f"unique {i}")).abort()
            await settled(6)
        assert len(far.accept_queue) == 0
        assert far.streams == {}
        assert len(near.endpoint.protocol.streams.all()) <= 11
        assert not near.endpoint.protocol.pending_replies


@virtual
async def test_seeded_channels_carry_content_without_an_offer() -> None:
    async with joined("nerdbank:seeded=1000+500") as sessions:
        near, far = channels(*sessions)
        mine = near.seeded(1)
        await mine.send(b"early")
        await mine.end()
        await settled()
        theirs = await far.accept_id(1)
        assert await theirs.receive_all() == b"early"
        await theirs.end()
        await settled()
        with pytest.raises(polymux.LocalProtocolError, match="is over"):
            near.seeded(1)
        with pytest.raises(polymux.LocalProtocolError, match="neither offered nor seeded"):
            near.seeded(2)
        assert (await near.offer("x")).stream_id == 3


# --- termination


def tapped(near: polymux.Session, far: polymux.Session) -> list[tuple[int, bytes]]:
    """From now on: what passes between two sessions, with its sender."""
    passed: list[tuple[int, bytes]] = []
    for side, session in enumerate((near, far)):
        transport = session.transport
        assert isinstance(transport, MemoryTransport)
        write = transport.write

        def note(data: bytes, side: int = side, write: Callable[[bytes], None] = write) -> None:
            passed.append((side, data))
            write(data)

        transport.write = note  # type: ignore[method-assign,assignment]  # only bytes are written
    return passed


@pytest.mark.parametrize("version", [1, 2, 3])
@virtual
async def test_each_side_terminates_a_finished_channel_exactly_once(version: int) -> None:
    protocol = f"nerdbank:version={version}"
    maker = (
        session_factory(protocol, 0, None, None, 0.0, runtime=current_runtime),
        session_factory(protocol, 1, None, None, 0.0, runtime=current_runtime),
    )
    near, far = maker[0](), maker[1]()
    pipes = MemoryTransport(near), MemoryTransport(far)
    pipes[0].other, pipes[1].other = pipes[1], pipes[0]
    near.transport, far.transport = pipes
    passed = tapped(near, far)
    near.connection_made(pipes[0])
    far.connection_made(pipes[1])
    mine, theirs = await opened(near, far)
    await mine.send(b"x")
    await mine.end()
    assert await theirs.receive_all() == b"x"
    await theirs.end()
    await settled()
    await mine.close()
    theirs.abort()
    await settled()
    watcher = Observer(create(protocol))
    for side, data in passed:
        watcher.feed(side, data, 0)
    assert watcher.rows is not None
    rows = [(b.sender[i], b.kind[i]) for b in watcher.rows.take() for i in range(b.used)]
    for side in (0, 1):
        kinds = [int(kind) for sender, kind in rows if sender == side]
        assert kinds.count(TERMINATED) == 1
        assert kinds[-1] == TERMINATED  # nothing follows it
    assert [v.rule.name for v in watcher.connection.violations] == []
    assert mine.state.ending == theirs.state.ending == "clean"
    near.abort()
    far.abort()
    await near.wait_closed()
    await far.wait_closed()


@pytest.mark.parametrize("version", [1, 2, 3])
@virtual
async def test_a_side_that_finishes_last_terminates_without_waiting_for_more(version: int) -> None:
    """The duty arises with our own last frame; nothing more needs to come in for it to be paid."""
    async with joined(f"nerdbank:version={version}") as (near, far):
        mine, theirs = await opened(near, far)
        await theirs.end()
        await settled()
        far.shutdown.io_stopped = True  # the peer does nothing any more
        await mine.end()
        await settled()
        assert near.streams == {}
        assert (0, TERMINATED, mine.state.key) not in near.endpoint.protocol.pending_replies


@with_windows
@virtual
async def test_a_side_that_reads_no_more_announces_it_and_gets_no_more_data(version: int) -> None:
    limits = Limits(receive_window=100)
    async with joined(f"nerdbank:version={version}", limits=limits) as (near, far):
        mine, theirs = await opened(near, far)
        mine.send_nowait(bytes(1000))
        await settled()
        await theirs.close()
        await settled()
        with pytest.raises(polymux.StreamEnded, match="the peer reads no more"):
            await mine.send(b"x")
        assert near.streams == far.streams == {}
        assert mine.state.ending == theirs.state.ending == "clean"


# --- windows


@with_windows
@virtual
async def test_a_starved_reader_grants_a_wider_window_and_a_busy_one_repeats_its_own(
    version: int,
) -> None:
    limits = Limits(receive_window=1000)
    async with joined(f"nerdbank:version={version}", limits=limits) as (near, far):
        mine, theirs = await opened(near, far)
        near.endpoint.send_frame(Frame(GROWTH_REQUEST, mine.state.key))
        near.schedule_flush()
        await settled()
        assert mine.own_half.window == 4000
        await mine.send(b"unread")
        near.endpoint.send_frame(Frame(GROWTH_REQUEST, mine.state.key))
        await settled()
        assert mine.own_half.window == 4000
        assert (1, WINDOW_ADJUST, mine.state.key) not in near.endpoint.protocol.pending_replies
        assert await theirs.receive() == b"unread"


@with_windows
@virtual
async def test_a_reader_that_takes_what_came_with_the_request_counts_as_starved(
    version: int,
) -> None:
    async with joined(f"nerdbank:version={version}", limits=Limits(receive_window=1000)) as (
        near,
        far,
    ):
        mine, theirs = await opened(near, far)
        reading = asyncio.create_task(theirs.receive())
        await settled()
        await mine.send(b"news")
        near.endpoint.send_frame(Frame(GROWTH_REQUEST, mine.state.key))
        await settled()
        assert await reading == b"news"
        assert mine.own_half.window == 4000


@virtual
async def test_windows_grow_to_their_limit_and_within_the_budget_of_all() -> None:
    limits = Limits(receive_window=MIB, max_receive_window=4 * MIB, max_window_growth_total=7 * MIB)
    async with joined("nerdbank", limits=limits) as (near, far):
        pairs = [await opened(near, far) for _ in range(3)]

        async def ask() -> list[int]:
            for mine, _ in pairs:
                near.endpoint.send_frame(Frame(GROWTH_REQUEST, mine.state.key))
                near.schedule_flush()
                await settled()
            return [mine.own_half.window // MIB for mine, _ in pairs]

        assert await ask() == [4, 4, 1]
        assert await ask() == [4, 4, 1]
        pairs[0][0].abort()  # what it had grown is there for others
        await settled()
        del pairs[0]
        assert await ask() == [4, 4]


@with_windows
@virtual
async def test_a_sender_that_stalls_asks_for_more_and_gets_it(version: int) -> None:
    limits = Limits(receive_window=1000)
    async with joined(f"nerdbank:version={version}", limits=limits) as (near, far):
        mine, theirs = await opened(near, far)
        reading = asyncio.create_task(theirs.receive_all())
        await mine.send(bytes(3_000_000))
        await mine.end()
        assert len(await reading) == 3_000_000
        assert mine.own_half.window > 100_000


@virtual
async def test_a_peer_that_does_not_answer_is_asked_once() -> None:
    async with joined("nerdbank", limits=Limits(receive_window=1000)) as (near, far):
        mine, theirs = await opened(near, far)
        far.endpoint.protocol.limits.max_receive_window = 0  # refuses every wish
        asked = []
        growth = near._window_growth._request_if_due  # type: ignore[attr-defined]

        def wants(record: object) -> bool:
            asked.append(bool(growth(record)))
            return asked[-1]

        near._window_growth._request_if_due = wants  # type: ignore[attr-defined]
        reading = asyncio.create_task(theirs.receive_all())
        await mine.send(bytes(200_000))
        await mine.end()
        assert len(await reading) == 200_000
        assert len(asked) > 100
        assert 3 <= sum(asked) <= 12  # 1, 2, 4, 8... stalls apart


@with_windows
@virtual
async def test_a_window_of_64_bytes_carries_everything(version: int) -> None:
    limits = Limits(receive_window=64, max_receive_window=64)
    async with joined(f"nerdbank:version={version}", limits=limits) as (near, far):
        mine, theirs = await opened(near, far)
        reading = asyncio.create_task(theirs.receive_all())
        data = bytes(range(256)) * 40
        await mine.send(data)
        await mine.end()
        assert await reading == data
        assert theirs.peer_half.peak_in_flight <= 64


@virtual
async def test_version_1_never_sees_the_newer_codes() -> None:
    async with joined("nerdbank:version=1") as (near, far):
        mine, theirs = await opened(near, far)
        await theirs.close()
        mine.send_nowait(bytes(200_000))
        await settled()
        await mine.close()
        await settled()
        for session in (near, far):
            assert "nerdbank.unknown-code" not in session.endpoint.counters.hits
            assert session.failure is None
        assert READING_COMPLETED not in (mine.state.protocol_state, theirs.state.protocol_state)
