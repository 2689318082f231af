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
from polymux.aio.session.busy_poll import FIRST, MOST, Vigil, Watch, patience_for, watch_of, watches
from polymux.aio.session.socket_options import round_trip

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


def watchful(watch: Watch | None = None) -> Vigil:
    """Of a session that has had to wait long for its answers while it slept."""
    vigil = Vigil(watch or Watch(), LONG)
    vigil.asleep = LONG
    return vigil


def converse(vigil: Vigil, loop: Loop, times: int) -> None:
    for _ in range(times):
        vigil.wrote(loop.soon)
        vigil.came()


def test_the_loop_turns_until_the_answer_comes() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, FIRST)
    assert loop.sleeps
    vigil.wrote(loop.soon)
    for _ in range(3):
        assert not loop.sleeps
        loop.turn()
    vigil.came()
    loop.turn()
    assert loop.sleeps


def test_too_few_answers_that_came_at_once_prove_nothing() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, FIRST - 1)
    vigil.wrote(loop.soon)
    assert loop.sleeps


def test_one_late_answer_is_enough_to_sleep_again() -> None:
    loop, vigil = Loop(), Vigil(Watch(), 10**6)
    vigil.prompt = FIRST - 1
    vigil.wrote(loop.soon)
    time.sleep(0.003)
    vigil.came()
    assert vigil.prompt == 0
    vigil.wrote(loop.soon)
    assert loop.sleeps


def test_what_comes_unasked_is_no_answer() -> None:
    loop, vigil = Loop(), watchful()
    for _ in range(FIRST):
        vigil.came()
    vigil.wrote(loop.soon)
    assert loop.sleeps


def wait_in_vain(vigil: Vigil, loop: Loop, needed: int) -> None:
    vigil.patience = LONG
    converse(vigil, loop, needed)
    assert loop.sleeps
    vigil.patience = 1
    vigil.wrote(loop.soon)
    assert not loop.sleeps
    time.sleep(0.00001)


def test_an_answer_that_does_not_come_makes_it_harder_to_believe_in_the_next() -> None:
    loop, vigil = Loop(), watchful()
    for needed in (FIRST, 2 * FIRST, 4 * FIRST):
        assert vigil.needed == needed
        wait_in_vain(vigil, loop, needed)
        loop.turn()
        assert loop.sleeps
        assert vigil.prompt == 0
    vigil.patience = LONG
    converse(vigil, loop, 8 * FIRST)
    assert vigil.needed == 8 * FIRST
    converse(vigil, loop, 1)  # awake: it is believed in again as the first was
    assert vigil.needed == FIRST
    for _ in range(20):
        vigil.expire()
    assert vigil.needed == MOST


def test_an_answer_that_comes_late_is_no_success_though_others_kept_the_loop_awake() -> None:
    loop, watch = Loop(), Watch()
    vigil, other = watchful(watch), watchful(watch)
    converse(other, loop, FIRST)
    other.wrote(loop.soon)
    vigil.patience = 1
    wait_in_vain_beside(vigil, loop)
    vigil.came()
    assert (vigil.prompt, vigil.needed) == (0, 2 * FIRST)
    assert list(watch.awake) == [other]


def wait_in_vain_beside(vigil: Vigil, loop: Loop) -> None:
    vigil.prompt = FIRST
    vigil.wrote(loop.soon)
    assert vigil in vigil.watch.awake
    time.sleep(0.00001)


def test_each_has_its_own_patience() -> None:
    loop, watch = Loop(), Watch()
    vigil, other = watchful(watch), watchful(watch)
    converse(other, loop, FIRST)
    vigil.patience = 1
    wait_in_vain_beside(vigil, loop)
    other.wrote(loop.soon)
    loop.turn()
    assert list(watch.awake) == [other]
    assert vigil.needed == 2 * FIRST
    other.came()
    loop.turn()
    assert loop.sleeps


def test_who_gains_nothing_by_it_goes_back_to_sleep() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, FIRST)
    assert not vigil.up
    vigil.asleep = SECOND  # and who is awake has to wait as long
    awake = 0
    for _ in range(20):
        vigil.wrote(loop.soon)
        assert not loop.sleeps
        vigil.asked_at -= SECOND
        vigil.came()
        loop.turn()
        assert loop.sleeps
        if not vigil.up:
            break
        awake += 1
    assert 0 < awake < 10  # it is given the benefit of the doubt, but not for ever
    assert (vigil.prompt, vigil.needed) == (0, 2 * FIRST)


def test_nobody_stays_awake_for_a_far_peer_however_closely_its_answers_follow() -> None:
    loop, vigil = Loop(), watchful()
    asked = []

    def distance() -> int:
        asked.append(vigil.needed)
        return 2 * LONG + 1

    vigil.distance = distance
    for _ in range(1000):
        converse(vigil, loop, 1)
        assert loop.sleeps
    assert asked[:5] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, MOST]  # it is not asked often
    assert len(asked) < 25


@pytest.mark.parametrize("near", [-1, 0, 2 * LONG])
def test_a_near_peer_is_stayed_awake_for_and_so_is_one_nobody_can_place(
    near: int,
) -> None:
    loop, vigil = Loop(), watchful()
    vigil.distance = lambda: near
    converse(vigil, loop, FIRST)
    vigil.wrote(loop.soon)
    assert not loop.sleeps


def test_nobody_stays_awake_for_a_session_that_is_over() -> None:
    loop, vigil = Loop(), watchful()
    converse(vigil, loop, FIRST)
    vigil.wrote(loop.soon)
    vigil.rest()
    loop.turn()
    assert loop.sleeps
    converse(vigil, loop, 2 * FIRST)
    assert loop.sleeps


def test_one_watch_turns_the_loop_for_all_its_sessions() -> None:
    loop, watch = Loop(), Watch()
    vigils = [watchful(watch) for _ in range(50)]
    for vigil in vigils:
        converse(vigil, loop, FIRST)
        vigil.wrote(loop.soon)
    assert len(loop.ready) == 1
    for vigil in vigils[:-1]:
        vigil.came()
        loop.turn()
        assert len(loop.ready) == 1
    vigils[-1].came()
    loop.turn()
    assert loop.sleeps


def test_a_loop_that_was_closed_while_somebody_was_awake_is_gone() -> None:
    gc.collect()
    before = len(watches)
    loop = asyncio.new_event_loop()
    vigil = watchful(watch_of(loop))
    assert watch_of(loop) is vigil.watch
    vigil.prompt = FIRST
    vigil.wrote(loop.call_soon)
    loop.run_until_complete(asyncio.sleep(0))
    assert vigil.watch.turning
    loop.close()
    assert len(watches) == before + 1
    del loop
    gc.collect()
    assert len(watches) == before


def test_nobody_stays_awake_with_a_single_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert patience_for(0.0002) == 200_000
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert patience_for(0.0002) == 0


@pytest.mark.parametrize(
    ("seconds", "patience"),
    [(0.0, 0), (-1.0, 0), (-1e300, 0), (math.nan, 0), (0.5, 5 * 10**8), (1e10, 10**9),
     (math.inf, 10**9)],
)  # fmt: skip
def test_any_number_of_seconds_will_do(seconds: float, patience: int, two_processors: None) -> None:
    assert patience_for(seconds) == patience


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
    policy = polymux.Policy(awake=0.5)
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex", policy=policy) as session:
            vigil = session._vigil
            vigil.asleep = LONG  # with both sides on one loop nobody really sleeps
            await ask(session, 50)
            assert vigil.prompt > FIRST
            assert vigil.watch.turning
            async with asyncio.timeout(10):  # the server has nothing more to say
                while vigil.watch.turning:
                    await asyncio.sleep(0.05)
            assert not vigil.watch.awake
            watch = vigil.watch
            await ask(session, 50)
            assert watch.awake
    assert not watch.awake


async def test_tcp_knows_how_far_away_a_peer_is(two_processors: None) -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as session:
            await ask(session, 5)
            transport = session.transport
            assert transport is not None
            if sys.platform == "linux":
                assert 0 < round_trip(transport) < 1_000_000_000
            assert session._vigil.distance is not None
    assert round_trip(transport) == -1
    assert session._vigil.distance is None


async def test_of_what_is_no_tcp_nobody_knows_how_far_it_is(tmp_path: Path) -> None:
    place = f"unix://{tmp_path}/socket"
    async with await polymux.serve(echo, place, protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as session:
            await ask(session, 1)
            assert session.transport is not None
            assert round_trip(session.transport) == -1
    async with joined("mplex") as (near, _):
        assert near.transport is not None
        assert round_trip(near.transport) == -1


async def test_who_wants_to_sleep_sleeps(two_processors: None) -> None:
    sleepy = polymux.Policy(awake=0)
    place = "tcp://127.0.0.1:0"
    async with await polymux.serve(echo, place, protocol="mplex", policy=sleepy) as server:
        async with polymux.connect(server.url, protocol="mplex", policy=sleepy) as session:
            await ask(session, 50)
            assert session._vigil.prompt == 0
            assert not session._vigil.watch.turning


async def test_nobody_need_stay_awake_in_memory(two_processors: None) -> None:
    async with joined("mplex") as (near, far):
        await opened(near, far)
        assert near._vigil.patience == far._vigil.patience == 0
