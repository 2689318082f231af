"""Busy polling: when a session starts to poll after a send, and when it stops."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.aio.session_helpers import echo, joined, opened

import polymux
from polymux import Session
from polymux.aio.runtime import current_runtime, runtimes
from polymux.live.session.busy_poll import (
    MAX_FAST_REPLIES,
    MIN_FAST_REPLIES,
    BusyPoller,
    BusyPollLoop,
    poll_budget_ns,
)
from polymux.live.session.socket_options import min_rtt_ns

SECOND = 10**9
LONG = 10 * SECOND  # never passes in a test


class Loop:
    """An event loop that runs one iteration when the test says so."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def iterate(self) -> None:
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    @property
    def blocks(self) -> bool:
        return not self.ready


def make_poller(poll_loop: BusyPollLoop | None = None) -> BusyPoller:
    """A poller whose replies took long without polling."""
    poller = BusyPoller(poll_loop or BusyPollLoop(), LONG)
    poller.sleep_latency_ns = LONG
    return poller


def exchange_fast(poller: BusyPoller, loop: Loop, times: int) -> None:
    for _ in range(times):
        poller.on_send(loop.call_soon)
        poller.on_receive()


def test_the_loop_spins_until_the_reply_arrives() -> None:
    loop, poller = Loop(), make_poller()
    exchange_fast(poller, loop, MIN_FAST_REPLIES)
    assert loop.blocks
    poller.on_send(loop.call_soon)
    for _ in range(3):
        assert not loop.blocks
        loop.iterate()
    poller.on_receive()
    loop.iterate()
    assert loop.blocks


def test_too_few_fast_replies_do_not_start_polling() -> None:
    loop, poller = Loop(), make_poller()
    exchange_fast(poller, loop, MIN_FAST_REPLIES - 1)
    poller.on_send(loop.call_soon)
    assert loop.blocks


def test_one_late_reply_resets_the_count() -> None:
    loop, poller = Loop(), BusyPoller(BusyPollLoop(), 10**6)
    poller.fast_replies = MIN_FAST_REPLIES - 1
    poller.on_send(loop.call_soon)
    time.sleep(0.003)
    poller.on_receive()
    assert poller.fast_replies == 0
    poller.on_send(loop.call_soon)
    assert loop.blocks


def test_data_received_before_any_send_is_no_reply() -> None:
    loop, poller = Loop(), make_poller()
    for _ in range(MIN_FAST_REPLIES):
        poller.on_receive()
    poller.on_send(loop.call_soon)
    assert loop.blocks


def miss_deadline(poller: BusyPoller, loop: Loop, needed: int) -> None:
    poller.budget_ns = LONG
    exchange_fast(poller, loop, needed)
    assert loop.blocks
    poller.budget_ns = 1
    poller.on_send(loop.call_soon)
    assert not loop.blocks
    time.sleep(0.00001)


def test_a_missing_reply_doubles_the_fast_replies_needed() -> None:
    loop, poller = Loop(), make_poller()
    for needed in (MIN_FAST_REPLIES, 2 * MIN_FAST_REPLIES, 4 * MIN_FAST_REPLIES):
        assert poller.fast_replies_needed == needed
        miss_deadline(poller, loop, needed)
        loop.iterate()
        assert loop.blocks
        assert poller.fast_replies == 0
    poller.budget_ns = LONG
    exchange_fast(poller, loop, 8 * MIN_FAST_REPLIES)
    assert poller.fast_replies_needed == 8 * MIN_FAST_REPLIES
    exchange_fast(poller, loop, 1)  # it polls, and a fast reply resets the number
    assert poller.fast_replies_needed == MIN_FAST_REPLIES
    for _ in range(20):
        poller.back_off()
    assert poller.fast_replies_needed == MAX_FAST_REPLIES


def test_a_late_reply_backs_off_though_other_pollers_kept_the_loop_spinning() -> None:
    loop, poll_loop = Loop(), BusyPollLoop()
    poller, other = make_poller(poll_loop), make_poller(poll_loop)
    exchange_fast(other, loop, MIN_FAST_REPLIES)
    other.on_send(loop.call_soon)
    poller.budget_ns = 1
    miss_deadline_beside_others(poller, loop)
    poller.on_receive()
    assert (poller.fast_replies, poller.fast_replies_needed) == (0, 2 * MIN_FAST_REPLIES)
    assert list(poll_loop.active_pollers) == [other]


def miss_deadline_beside_others(poller: BusyPoller, loop: Loop) -> None:
    poller.fast_replies = MIN_FAST_REPLIES
    poller.on_send(loop.call_soon)
    assert poller in poller.poll_loop.active_pollers
    time.sleep(0.00001)


def test_each_poller_has_its_own_budget() -> None:
    loop, poll_loop = Loop(), BusyPollLoop()
    poller, other = make_poller(poll_loop), make_poller(poll_loop)
    exchange_fast(other, loop, MIN_FAST_REPLIES)
    poller.budget_ns = 1
    miss_deadline_beside_others(poller, loop)
    other.on_send(loop.call_soon)
    loop.iterate()
    assert list(poll_loop.active_pollers) == [other]
    assert poller.fast_replies_needed == 2 * MIN_FAST_REPLIES
    other.on_receive()
    loop.iterate()
    assert loop.blocks


def test_polling_that_does_not_shorten_the_wait_backs_off() -> None:
    loop, poller = Loop(), make_poller()
    exchange_fast(poller, loop, MIN_FAST_REPLIES)
    assert not poller.active
    poller.sleep_latency_ns = SECOND  # polling takes as long
    polled = 0
    for _ in range(20):
        poller.on_send(loop.call_soon)
        assert not loop.blocks
        poller.sent_at_ns -= SECOND
        poller.on_receive()
        loop.iterate()
        assert loop.blocks
        if not poller.active:
            break
        polled += 1
    assert 0 < polled < 10  # the first few replies do not end it
    assert (poller.fast_replies, poller.fast_replies_needed) == (0, 2 * MIN_FAST_REPLIES)


def test_a_far_peer_is_never_polled_for_however_soon_data_follows_a_send() -> None:
    loop, poller = Loop(), make_poller()
    queries = []

    def far_rtt() -> int:
        queries.append(poller.fast_replies_needed)
        return 2 * LONG + 1

    poller.min_rtt_ns = far_rtt
    for _ in range(1000):
        exchange_fast(poller, loop, 1)
        assert loop.blocks
    assert queries[:5] == [
        MIN_FAST_REPLIES,
        2 * MIN_FAST_REPLIES,
        4 * MIN_FAST_REPLIES,
        8 * MIN_FAST_REPLIES,
        MAX_FAST_REPLIES,
    ]  # the RTT is queried rarely
    assert len(queries) < 25


@pytest.mark.parametrize("rtt_ns", [-1, 0, 2 * LONG])
def test_a_near_peer_and_one_of_unknown_distance_are_polled_for(
    rtt_ns: int,
) -> None:
    loop, poller = Loop(), make_poller()
    poller.min_rtt_ns = lambda: rtt_ns
    exchange_fast(poller, loop, MIN_FAST_REPLIES)
    poller.on_send(loop.call_soon)
    assert not loop.blocks


def test_a_poller_expires_behind_one_with_a_larger_budget() -> None:
    loop, poll_loop = Loop(), BusyPollLoop()
    patient, hasty = make_poller(poll_loop), make_poller(poll_loop)
    exchange_fast(patient, loop, MIN_FAST_REPLIES)
    patient.on_send(loop.call_soon)
    hasty.budget_ns = 1
    hasty.fast_replies = MIN_FAST_REPLIES
    hasty.on_send(loop.call_soon)
    assert list(poll_loop.active_pollers) == [patient, hasty]
    time.sleep(0.001)
    loop.iterate()
    assert list(poll_loop.active_pollers) == [patient]
    assert hasty.fast_replies_needed == 2 * MIN_FAST_REPLIES


def test_a_closed_session_does_not_poll() -> None:
    loop, poller = Loop(), make_poller()
    exchange_fast(poller, loop, MIN_FAST_REPLIES)
    poller.on_send(loop.call_soon)
    poller.stop()
    loop.iterate()
    assert loop.blocks
    exchange_fast(poller, loop, 2 * MIN_FAST_REPLIES)
    assert loop.blocks


def test_one_spinning_callback_serves_all_sessions_of_a_loop() -> None:
    loop, poll_loop = Loop(), BusyPollLoop()
    pollers = [make_poller(poll_loop) for _ in range(50)]
    for poller in pollers:
        exchange_fast(poller, loop, MIN_FAST_REPLIES)
        poller.on_send(loop.call_soon)
    assert len(loop.ready) == 1
    for poller in pollers[:-1]:
        poller.on_receive()
        loop.iterate()
        assert len(loop.ready) == 1
    pollers[-1].on_receive()
    loop.iterate()
    assert loop.blocks


def test_a_loop_that_was_closed_while_polling_is_freed() -> None:
    gc.collect()
    before = len(runtimes)
    loop = asyncio.new_event_loop()

    async def poll() -> BusyPoller:
        runtime = current_runtime()
        assert current_runtime() is runtime, "all sessions of a loop share it"
        poller = make_poller(runtime.poll_loop)
        poller.fast_replies = MIN_FAST_REPLIES
        poller.on_send(runtime.call_soon)
        await asyncio.sleep(0)
        runtime.call_soon(id, runtime)  # as a flush that was scheduled would hold it
        return poller

    poller = loop.run_until_complete(poll())
    assert poller.poll_loop.spinning
    loop.close()
    assert len(runtimes) == before + 1
    del loop
    gc.collect()
    assert len(runtimes) == before


def test_a_single_processor_disables_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert poll_budget_ns(0.0002) == 200_000
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert poll_budget_ns(0.0002) == 0


@pytest.mark.parametrize(
    ("seconds", "budget"),
    [(0.0, 0), (-1.0, 0), (-1e300, 0), (math.nan, 0), (0.5, 5 * 10**8), (1e10, 10**9),
     (math.inf, 10**9)],
)  # fmt: skip
def test_any_number_of_seconds_is_accepted(
    seconds: float, budget: int, two_processors: None
) -> None:
    assert poll_budget_ns(seconds) == budget


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


async def ask(session: Session, times: int) -> None:
    stream = await session.open("echo")
    for _ in range(times):
        await stream.send(b"?")
        assert await stream.receive() == b"?"
    await stream.close()


async def test_sessions_over_sockets_start_and_stop_polling(two_processors: None) -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex", busy_poll=0.5) as session:
            poller = session.busy_poller
            poller.sleep_latency_ns = LONG  # with both sides on one loop neither blocks
            await ask(session, 50)
            assert poller.fast_replies > MIN_FAST_REPLIES
            assert poller.poll_loop.spinning
            async with asyncio.timeout(40):  # the server sends nothing more
                while poller.poll_loop.spinning:
                    await asyncio.sleep(0.05)
            assert not poller.poll_loop.spinning
            poll_loop = poller.poll_loop
            await ask(session, 50)
            assert poll_loop.spinning
    assert not poll_loop.spinning


async def test_the_minimum_rtt_of_tcp_is_known(two_processors: None) -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as session:
            await ask(session, 5)
            transport = session.transport
            assert transport is not None
            if sys.platform == "linux":
                assert 0 < min_rtt_ns(transport) < 1_000_000_000
            assert session.busy_poller.min_rtt_ns is not None
    assert min_rtt_ns(transport) == -1
    assert session.busy_poller.min_rtt_ns is None


async def test_the_minimum_rtt_of_other_transports_is_unknown(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/socket"
    async with await polymux.serve(echo, url, protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as session:
            await ask(session, 1)
            assert session.transport is not None
            assert min_rtt_ns(session.transport) == -1
    async with joined("mplex") as (near, _):
        assert near.transport is not None
        assert min_rtt_ns(near.transport) == -1


async def test_a_budget_of_zero_disables_polling(two_processors: None) -> None:
    url = "tcp://127.0.0.1:0"
    async with await polymux.serve(echo, url, protocol="mplex", busy_poll=0) as server:
        async with polymux.connect(server.url, protocol="mplex", busy_poll=0) as session:
            await ask(session, 50)
            assert session.busy_poller.fast_replies == 0
            assert not session.busy_poller.poll_loop.spinning


async def test_sessions_in_memory_do_not_poll(two_processors: None) -> None:
    async with joined("mplex") as (near, far):
        await opened(near, far)
        assert near.busy_poller.budget_ns == far.busy_poller.budget_ns == 0
