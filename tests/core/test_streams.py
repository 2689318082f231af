"""The stream table: lookup, remembered closed streams, eviction."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polymux
from polymux.analysis.tracking.stream_tracker import StreamTracker, StreamTrackerTable
from polymux.core.stream_table import COMPACT_THRESHOLD, StreamTable
from polymux.core.streams import ID_MODULUS, StreamState, id_text

KEYS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=300)


@given(KEYS, st.integers(1, 50))
def test_a_table_finds_what_a_dict_would_find(moves: list[tuple[int, bool]], most: int) -> None:
    """Streams are inserted and closed in any order; the last `most` closed ones stay."""
    table = StreamTable(most)
    known: dict[int, StreamState] = {}
    over: list[StreamState] = []
    for serial, (key, retires) in enumerate(moves):
        stream = known.get(key)
        if retires and stream is not None and not stream.over:
            stream.over = True
            over.append(stream)
            table.mark_closed(stream)
            while len(over) > most:
                oldest = over.pop(0)
                if known.get(oldest.key) is oldest:
                    del known[oldest.key]
        elif stream is None or stream.over:
            known[key] = StreamState(key, key, 0, serial)
            known[key].serial = serial
            table.insert(known[key])
    assert {key: table.find(key) for key in range(41)} == {key: known.get(key) for key in range(41)}
    assert table.all() == sorted(known.values(), key=lambda stream: stream.serial)
    assert table.used_slots == len(known)
    parts = [table.in_slots(first, 50) for first in range(0, table.slot_count(), 50)]
    assert {id(stream) for part in parts for stream in part} == set(map(id, known.values()))


def crowding(filled: list[bool]) -> int:
    """The longest run of used slots, which bounds the length of a search."""
    longest = run = 0
    for taken in filled:
        run = run + 1 if taken else 0
        longest = max(longest, run)
    return longest


@pytest.mark.parametrize("power", [0, 20, 32, 44, 51])
def test_keys_at_regular_distances_do_not_cluster(power: int) -> None:
    table, tracks = StreamTable(10), StreamTrackerTable()
    table.multiplier = tracks.multiplier = 0x1E3779B97F4A7C15  # fixed: not random
    for n in range(4000):
        key = (n << power) - (1 << 63) if n << power >= 1 << 63 else n << power
        table.insert(StreamState(key, key, 0, n))
        tracks.insert(StreamTracker(StreamState(key, key >> 1, 0, n)))
    assert all(table.find(stream.key) is stream for stream in table.all())
    assert crowding([stream is not table.empty_slot for stream in table.slots]) < 200
    assert crowding([track is not tracks.empty_slot for track in tracks.slots]) < 200


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=300))
def test_a_key_of_any_64_bits_is_found(keys: list[int]) -> None:
    table = StreamTable(1000)
    for serial, key in enumerate(keys):
        stream = StreamState(key, key, 0, 0)
        stream.serial = serial
        table.insert(stream)
    for key in keys[::2]:
        table.remove(key)
    assert [stream.key for stream in table.all()] == keys[1::2]
    found = [table.find(key) for key in keys]
    assert [stream.key for stream in found if stream is not None] == keys[1::2]


def test_replaced_streams_are_dropped() -> None:
    table = StreamTable(65_536)
    last = [StreamState(key, key, 0, 0) for key in range(1_000)]
    for stream in last:
        table.insert(stream)
        table.mark_closed(stream)
    for turn in range(20_000):
        stream = StreamState(turn % 3, 0, 0, turn)
        table.insert(stream)
        table.mark_closed(stream)
        assert len(table.closed) - table.first_closed <= 2 * (1_000 + COMPACT_THRESHOLD)
    assert table.used_slots == 1_000
    assert all(table.find(key) is last[key] for key in range(3, 1_000))
    table.compact()
    assert len(table.closed) == 1_000


def test_a_cleared_table_is_empty() -> None:
    table = StreamTable(10)
    for key in range(200):
        table.insert(StreamState(key, key, 0, 0))
    table.clear()
    assert table.all() == []
    assert table.used_slots == len(table.closed) == 0
    table.insert(StreamState(7, 7, 0, 0))
    assert [stream.key for stream in table.all()] == [7]


async def asked(times: int) -> int:
    near, far = await polymux.pipe("streamux:length_bits=10,id_bits=4")
    assert isinstance(near, polymux.StreamuxSession)
    assert isinstance(far, polymux.StreamuxSession)

    async def work(call: polymux.Call) -> None:
        await call.reply(await call.read())

    answering = asyncio.create_task(far.serve_calls(work))
    for number in range(times):
        assert await near.request(b"%d" % number) == b"%d" % number
    held = max(len(each.endpoint.protocol.streams.closed) for each in (near, far))
    await near.close()
    await answering
    await far.wait_closed()
    return held


def test_consecutive_requests_use_little_memory() -> None:
    assert asyncio.run(asked(3_000)) <= 2 * COMPACT_THRESHOLD + 2


@given(st.integers(-(2**63), 2**63 - 1))
def test_the_text_of_an_id_is_that_of_its_64_bits_without_a_sign(stream_id: int) -> None:
    assert id_text(stream_id) == str(stream_id % ID_MODULUS)


def test_labels_of_the_largest_ids_leave_nothing_in_memory() -> None:
    stream = StreamState(-1, -1, 0, 0)
    assert stream.label() == f"d{2**64 - 1}"
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(1000):
        stream.label()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10_000
