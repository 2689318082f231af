"""A session whose peer answers at once stays awake for the next answer, and no longer than that."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest
from tests.aio.talk import echo, joined, opened

import polymux
from polymux import Session
from polymux.aio.hot.vigil import FIRST, MOST, Vigil, Watch, patience_for, watch_of, watches

LONG = 10**10  # nanoseconds that do not pass in a test


class Loop(asyncio.AbstractEventLoop):
    """Turns when it is told to."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], object]] = deque()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: object = None
    ) -> None:
        self.ready.append(lambda: callback(*args))

    def turn(self) -> None:
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    @property
    def sleeps(self) -> bool:
        return not self.ready


def new_loop() -> Loop:
    return cast(Callable[[], Loop], Loop)()  # nothing else of it is asked for


def watchful(loop: Loop, patience: int = LONG) -> Vigil:
    return Vigil(loop, patience)


def converse(vigil: Vigil, times: int) -> None:
    for _ in range(times):
        vigil.wrote()
        vigil.came()


def test_the_loop_turns_until_the_answer_comes() -> None:
    loop = new_loop()
    vigil = watchful(loop)
    converse(vigil, FIRST)
    assert loop.sleeps
    vigil.wrote()
    for _ in range(3):
        assert not loop.sleeps
        loop.turn()
    vigil.came()
    loop.turn()
    assert loop.sleeps


def test_too_few_answers_that_came_at_once_prove_nothing() -> None:
    loop = new_loop()
    vigil = watchful(loop)
    converse(vigil, FIRST - 1)
    vigil.wrote()
    assert loop.sleeps


def test_one_late_answer_is_enough_to_sleep_again() -> None:
    loop = new_loop()
    vigil = watchful(loop, 10**6)
    vigil.prompt = FIRST - 1
    vigil.wrote()
    time.sleep(0.003)
    vigil.came()
    assert vigil.prompt == 0
    vigil.wrote()
    assert loop.sleeps


def test_what_comes_unasked_is_no_answer() -> None:
    loop = new_loop()
    vigil = watchful(loop)
    for _ in range(FIRST):
        vigil.came()
    vigil.wrote()
    assert loop.sleeps


def test_an_answer_that_does_not_come_makes_it_harder_to_believe_in_the_next() -> None:
    loop = new_loop()
    vigil = watchful(loop)
    for needed in (FIRST, 2 * FIRST, 4 * FIRST, 4 * FIRST):
        vigil.patience = LONG
        converse(vigil, needed)
        assert loop.sleeps
        vigil.patience = 1
        vigil.wrote()
        assert not loop.sleeps
        time.sleep(0.00001)
        if needed == 4 * FIRST:
            vigil.watch.until = time.monotonic_ns() + LONG
            vigil.came()  # after all: then the next is believed in as the first was
            vigil.patience = LONG
            converse(vigil, FIRST)
            assert vigil.needed == FIRST
            break
        loop.turn()
        assert loop.sleeps
        assert vigil.prompt == 0
    for _ in range(20):
        vigil.expire()
    assert vigil.needed == MOST


def test_one_watch_turns_the_loop_for_all_its_sessions() -> None:
    loop = new_loop()
    vigils = [watchful(loop) for _ in range(50)]
    for vigil in vigils:
        converse(vigil, FIRST)
        vigil.wrote()
    assert len(loop.ready) == 1
    for vigil in vigils[:-1]:
        vigil.came()
        loop.turn()
        assert len(loop.ready) == 1
    vigils[-1].came()
    loop.turn()
    assert loop.sleeps


def test_a_watch_keeps_no_loop() -> None:
    gc.collect()
    before = len(watches)
    loop: Loop | None = new_loop()
    vigil: Vigil | None = watchful(cast(Loop, loop))
    assert vigil is not None
    assert watch_of(cast(Loop, loop)) is vigil.watch
    assert isinstance(vigil.watch, Watch)
    assert len(watches) == before + 1
    loop = vigil = None
    gc.collect()
    assert len(watches) == before


def test_nobody_stays_awake_with_a_single_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert patience_for(0.0001) == 100_000
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert patience_for(0.0001) == 0


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
    policy = polymux.Policy(awake=0.05)
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex", policy=policy) as session:
            vigil = session._vigil
            await ask(session, 50)
            assert vigil.prompt > FIRST
            assert vigil.watch.turning
            await asyncio.sleep(0.2)  # the server has nothing more to say
            assert not vigil.watch.turning
            assert not vigil.watch.awake


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
