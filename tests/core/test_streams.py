"""The table of streams: what it finds, what it remembers, what it lets go."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

import polymux
from polymux.core.streams import UNTIDY, Stream, Table

KEYS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=300)


@given(KEYS, st.integers(1, 50))
def test_a_table_finds_what_a_dict_would_find(moves: list[tuple[int, bool]], most: int) -> None:
    """Streams are put and retired in any order; of those that are over the last `most` stay."""
    table = Table(most)
    known: dict[int, Stream] = {}
    over: list[Stream] = []
    for serial, (key, retires) in enumerate(moves):
        stream = known.get(key)
        if retires and stream is not None and not stream.over:
            stream.over = True
            over.append(stream)
            table.retire(stream)
            while len(over) > most:
                oldest = over.pop(0)
                if known.get(oldest.key) is oldest:
                    del known[oldest.key]
        elif stream is None or stream.over:
            known[key] = Stream(key, key, 0, serial)
            known[key].serial = serial
            table.put(known[key])
    assert {key: table.find(key) for key in range(41)} == {key: known.get(key) for key in range(41)}
    assert table.all() == sorted(known.values(), key=lambda stream: stream.serial)
    assert table.used == len(known)


def test_streams_whose_key_is_used_again_and_again_are_let_go() -> None:
    table = Table(65_536)
    last = [Stream(key, key, 0, 0) for key in range(1_000)]
    for stream in last:
        table.put(stream)
        table.retire(stream)
    for turn in range(20_000):
        stream = Stream(turn % 3, 0, 0, turn)
        table.put(stream)
        table.retire(stream)
        assert len(table.closed) - table.first <= 2 * (1_000 + UNTIDY)
    assert table.used == 1_000
    assert all(table.find(key) is last[key] for key in range(3, 1_000))
    table.tidy()
    assert len(table.closed) == 1_000


def test_an_empty_table_has_forgotten_everything() -> None:
    table = Table(10)
    for key in range(200):
        table.put(Stream(key, key, 0, 0))
    table.clear()
    assert table.all() == []
    assert table.used == len(table.closed) == 0
    table.put(Stream(7, 7, 0, 0))
    assert [stream.key for stream in table.all()] == [7]


async def asked(times: int) -> int:
    near, far = await polymux.pipe("streamux:length_bits=10,id_bits=4")
    assert isinstance(near, polymux.StreamuxSession)
    assert isinstance(far, polymux.StreamuxSession)

    async def work(call: polymux.Call) -> None:
        await call.reply(await call.read())

    answering = asyncio.create_task(far.answer(work))
    for number in range(times):
        assert await near.request(b"%d" % number) == b"%d" % number
    held = max(len(each.endpoint.protocol.streams.closed) for each in (near, far))
    await near.close()
    await answering
    await far.wait_closed()
    return held


def test_requests_one_after_another_leave_little_behind() -> None:
    assert asyncio.run(asked(3_000)) <= 2 * UNTIDY + 2
