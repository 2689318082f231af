"""A session whose peer answers at once stays awake for the next answer, and no longer than that."""

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
from polymux.aio.session.busy_poll import (
    MAX_FAST_REPLIES,
    MIN_FAST_REPLIES,
    BusyPoller,
    BusyPollLoop,
    poll_budget_ns,
    poll_loop_of,
    poll_loops,
)
from polymux.aio.session.socket_options import min_rtt_ns

SECOND = 10**9
LONG = 10 * SECOND  # does not pass in a test


class Loop:
    """Turns when it is told to."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], None]] = deque()

    def soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def turn(self) -> None:
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    @property
    def sleeps(self) -> bool:
        return not self.ready


def watchful(watch: BusyPollLoop | None = None) -> BusyPoller:
    """Of a session that has had to wait long for its answers while it slept."""
    vigil = BusyPoller(watch or BusyPollLoop(), LONG)
    vigil.sleep_latency_ns = LONG
    return vigil


def converse(vigil: BusyPoller, loop: Loop, times: int) -> None:
    for _ in range(times):
        vigil.on_send(loop.soon)
        vigil.on_receive()


def test_the_loop_turns_until_the_answer_comes() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, MIN_FAST_REPLIES)
    assert loop.sleeps
    vigil.on_send(loop.soon)
    for _ in range(3):
        assert not loop.sleeps
        loop.turn()
    vigil.on_receive()
    loop.turn()
    assert loop.sleeps


def test_too_few_answers_that_came_at_once_prove_nothing() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, MIN_FAST_REPLIES - 1)
    vigil.on_send(loop.soon)
    assert loop.sleeps


def test_one_late_answer_is_enough_to_sleep_again() -> None:
    loop, vigil = Loop(), BusyPoller(BusyPollLoop(), 10**6)
    vigil.fast_replies = MIN_FAST_REPLIES - 1
    vigil.on_send(loop.soon)
    time.sleep(0.003)
    vigil.on_receive()
    assert vigil.fast_replies == 0
    vigil.on_send(loop.soon)
    assert loop.sleeps


def test_what_comes_unasked_is_no_answer() -> None:
    loop, vigil = Loop(), watchful()
    for _ in range(MIN_FAST_REPLIES):
        vigil.on_receive()
    vigil.on_send(loop.soon)
    assert loop.sleeps


def wait_in_vain(vigil: BusyPoller, loop: Loop, needed: int) -> None:
    vigil.budget_ns = LONG
    converse(vigil, loop, needed)
    assert loop.sleeps
    vigil.budget_ns = 1
    vigil.on_send(loop.soon)
    assert not loop.sleeps
    time.sleep(0.00001)


def test_an_answer_that_does_not_come_makes_it_harder_to_believe_in_the_next() -> None:
    loop, vigil = Loop(), watchful()
    for needed in (MIN_FAST_REPLIES, 2 * MIN_FAST_REPLIES, 4 * MIN_FAST_REPLIES):
        assert vigil.fast_replies_needed == needed
        wait_in_vain(vigil, loop, needed)
        loop.turn()
        assert loop.sleeps
        assert vigil.fast_replies == 0
    vigil.budget_ns = LONG
    converse(vigil, loop, 8 * MIN_FAST_REPLIES)
    assert vigil.fast_replies_needed == 8 * MIN_FAST_REPLIES
    converse(vigil, loop, 1)  # awake: it is believed in again as the first was
    assert vigil.fast_replies_needed == MIN_FAST_REPLIES
    for _ in range(20):
        vigil.back_off()
    assert vigil.fast_replies_needed == MAX_FAST_REPLIES


def test_an_answer_that_comes_late_is_no_success_though_others_kept_the_loop_awake() -> None:
    loop, watch = Loop(), BusyPollLoop()
    vigil, other = watchful(watch), watchful(watch)
    converse(other, loop, MIN_FAST_REPLIES)
    other.on_send(loop.soon)
    vigil.budget_ns = 1
    wait_in_vain_beside(vigil, loop)
    vigil.on_receive()
    assert (vigil.fast_replies, vigil.fast_replies_needed) == (0, 2 * MIN_FAST_REPLIES)
    assert list(watch.active_pollers) == [other]


def wait_in_vain_beside(vigil: BusyPoller, loop: Loop) -> None:
    vigil.fast_replies = MIN_FAST_REPLIES
    vigil.on_send(loop.soon)
    assert vigil in vigil.poll_loop.active_pollers
    time.sleep(0.00001)


def test_each_has_its_own_patience() -> None:
    loop, watch = Loop(), BusyPollLoop()
    vigil, other = watchful(watch), watchful(watch)
    converse(other, loop, MIN_FAST_REPLIES)
    vigil.budget_ns = 1
    wait_in_vain_beside(vigil, loop)
    other.on_send(loop.soon)
    loop.turn()
    assert list(watch.active_pollers) == [other]
    assert vigil.fast_replies_needed == 2 * MIN_FAST_REPLIES
    other.on_receive()
    loop.turn()
    assert loop.sleeps


def test_who_gains_nothing_by_it_goes_back_to_sleep() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, MIN_FAST_REPLIES)
    assert not vigil.active
    vigil.sleep_latency_ns = SECOND  # and who is awake has to wait as long
    awake = 0
    for _ in range(20):
        vigil.on_send(loop.soon)
        assert not loop.sleeps
        vigil.sent_at_ns -= SECOND
        vigil.on_receive()
        loop.turn()
        assert loop.sleeps
        if not vigil.active:
            break
        awake += 1
    assert 0 < awake < 10  # it is given the benefit of the doubt, but not for ever
    assert (vigil.fast_replies, vigil.fast_replies_needed) == (0, 2 * MIN_FAST_REPLIES)


def test_nobody_stays_awake_for_a_far_peer_however_closely_its_answers_follow() -> None:
    loop, vigil = Loop(), watchful()
    asked = []

    def distance() -> int:
        asked.append(vigil.fast_replies_needed)
        return 2 * LONG + 1

    vigil.min_rtt_ns = distance
    for _ in range(1000):
        converse(vigil, loop, 1)
        assert loop.sleeps
    assert asked[:5] == [
        MIN_FAST_REPLIES,
        2 * MIN_FAST_REPLIES,
        4 * MIN_FAST_REPLIES,
        8 * MIN_FAST_REPLIES,
        MAX_FAST_REPLIES,
    ]  # it is not asked often
    assert len(asked) < 25


@pytest.mark.parametrize("near", [-1, 0, 2 * LONG])
def test_a_near_peer_is_stayed_awake_for_and_so_is_one_nobody_can_place(
    near: int,
) -> None:
    loop, vigil = Loop(), watchful()
    vigil.min_rtt_ns = lambda: near
    converse(vigil, loop, MIN_FAST_REPLIES)
    vigil.on_send(loop.soon)
    assert not loop.sleeps


def test_nobody_stays_awake_for_a_session_that_is_over() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, MIN_FAST_REPLIES)
    vigil.on_send(loop.soon)
    vigil.stop()
    loop.turn()
    assert loop.sleeps
    converse(vigil, loop, 2 * MIN_FAST_REPLIES)
    assert loop.sleeps


def test_one_watch_turns_the_loop_for_all_its_sessions() -> None:
    loop, watch = Loop(), BusyPollLoop()
    vigils = [watchful(watch) for _ in range(50)]
    for vigil in vigils:
        converse(vigil, loop, MIN_FAST_REPLIES)
        vigil.on_send(loop.soon)
    assert len(loop.ready) == 1
    for vigil in vigils[:-1]:
        vigil.on_receive()
        loop.turn()
        assert len(loop.ready) == 1
    vigils[-1].on_receive()
    loop.turn()
    assert loop.sleeps


def test_a_loop_that_was_closed_while_somebody_was_awake_is_gone() -> None:
    gc.collect()
    before = len(poll_loops)
    loop = asyncio.new_event_loop()
    vigil = watchful(poll_loop_of(loop))
    assert poll_loop_of(loop) is vigil.poll_loop
    vigil.fast_replies = MIN_FAST_REPLIES
    vigil.on_send(loop.call_soon)
    loop.run_until_complete(asyncio.sleep(0))
    assert vigil.poll_loop.spinning
    loop.close()
    assert len(poll_loops) == before + 1
    del loop
    gc.collect()
    assert len(poll_loops) == before


def test_nobody_stays_awake_with_a_single_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert poll_budget_ns(0.0002) == 200_000
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert poll_budget_ns(0.0002) == 0


@pytest.mark.parametrize(
    ("seconds", "patience"),
    [(0.0, 0), (-1.0, 0), (-1e300, 0), (math.nan, 0), (0.5, 5 * 10**8), (1e10, 10**9),
     (math.inf, 10**9)],
)  # fmt: skip
def test_any_number_of_seconds_will_do(seconds: float, patience: int, two_processors: None) -> None:
    assert poll_budget_ns(seconds) == patience


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


async def ask(session: Session, times: int) -> None:
    stream = await session.open("echo")
    for _ in range(times):
        await stream.send(b"?")
        assert await stream.receive() == b"?"
    await stream.close()


async def test_sessions_over_sockets_stay_awake_and_fall_asleep(two_processors: None) -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex", busy_poll=0.5) as session:
            vigil = session.busy_poller
            vigil.sleep_latency_ns = LONG  # with both sides on one loop nobody really sleeps
            await ask(session, 50)
            assert vigil.fast_replies > MIN_FAST_REPLIES
            assert vigil.poll_loop.spinning
            async with asyncio.timeout(10):  # the server has nothing more to say
                while vigil.poll_loop.spinning:
                    await asyncio.sleep(0.05)
            assert not vigil.poll_loop.spinning
            watch = vigil.poll_loop
            await ask(session, 50)
            assert watch.spinning
    assert not watch.spinning


async def test_tcp_knows_how_far_away_a_peer_is(two_processors: None) -> None:
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


async def test_of_what_is_no_tcp_nobody_knows_how_far_it_is(tmp_path: Path) -> None:
    place = f"unix://{tmp_path}/socket"
    async with await polymux.serve(echo, place, protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as session:
            await ask(session, 1)
            assert session.transport is not None
            assert min_rtt_ns(session.transport) == -1
    async with joined("mplex") as (near, _):
        assert near.transport is not None
        assert min_rtt_ns(near.transport) == -1


async def test_who_wants_to_sleep_sleeps(two_processors: None) -> None:
    place = "tcp://127.0.0.1:0"
    async with await polymux.serve(echo, place, protocol="mplex", busy_poll=0) as server:
        async with polymux.connect(server.url, protocol="mplex", busy_poll=0) as session:
            await ask(session, 50)
            assert session.busy_poller.fast_replies == 0
            assert not session.busy_poller.poll_loop.spinning


async def test_nobody_need_stay_awake_in_memory(two_processors: None) -> None:
    async with joined("mplex") as (near, far):
        await opened(near, far)
        assert near.busy_poller.budget_ns == far.busy_poller.budget_ns == 0
