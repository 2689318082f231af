"""How streams share a connection: by weight, without starvation, within their credit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core import send_scheduler
from polymux.core.endpoint import Endpoint
from polymux.core.send_scheduler import QUANTUM_BYTES, check_weight
from polymux.core.streams import FIRST_QUEUE_GRANT, StreamState
from polymux.protocols.registry import create

SOURCE = Path(__file__).parent.parent.parent / "src"
COMPILED = not send_scheduler.__file__.endswith(".py")
CASES = 400 if "POLYMUX_SOAK" in os.environ else 40
CUT_BYTES = 512  # a rest of a share below this is kept for the next round

WEIGHTS = st.lists(st.integers(1, 9), min_size=2, max_size=4)
quick = settings(max_examples=200 if "POLYMUX_SOAK" in os.environ else 30)


def dialer(text: str = "mplex") -> Endpoint:
    end = Endpoint(create(text, vantage=0), 0, direct=True)
    end.start(bytes(16))
    return end


def opened(end: Endpoint, weights: list[int]) -> list[StreamState]:
    streams = [end.open(b"s", 0, weight) for weight in weights]
    end.data_to_send()
    return streams


def sent(stream: StreamState) -> int:
    return stream.half(0).content_bytes


def queued(stream: StreamState) -> int:
    return 0 if stream.buffers is None else stream.buffers.queued_bytes


def visits(end: Endpoint, streams: list[StreamState], count: int) -> list[tuple[int, int]]:
    """The next `count` times that a stream sends: its place in the list, and how many bytes."""
    found = []
    for _ in range(count):
        before = [sent(stream) for stream in streams]
        end.chunks_to_send(1)
        found += [(n, sent(s) - b) for n, (s, b) in enumerate(zip(streams, before, strict=True))]
        found = [(n, size) for n, size in found if size]
    return found


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


# Shares


@quick
@given(WEIGHTS, st.integers(500, 100_000), st.integers(1, 200_000))
def test_streams_with_content_share_by_weight_at_any_moment(
    weights: list[int], piece: int, room: int
) -> None:
    end = dialer()
    streams = opened(end, weights)
    data = bytes(piece)
    for _ in range(6):
        for stream, weight in zip(streams, weights, strict=True):
            missing = (weight + 1) * QUANTUM_BYTES + room + piece - queued(stream)
            end.send_many(stream, [data] * (missing // piece + 1))
        end.chunks_to_send(room)
        rounds = [sent(s) / (w * QUANTUM_BYTES) for s, w in zip(streams, weights, strict=True)]
        spread = max(rounds) - min(rounds)
        assert spread <= 1 + 2 * CUT_BYTES / QUANTUM_BYTES / min(weights) + 1e-9


@quick
@given(WEIGHTS)
def test_shares_have_a_jain_index_of_one_after_whole_rounds(weights: list[int]) -> None:
    end = dialer()
    streams = opened(end, weights)
    for stream, weight in zip(streams, weights, strict=True):
        end.send(stream, bytes(QUANTUM_BYTES * weight * 4))
    end.chunks_to_send(3 * sum(weights) * QUANTUM_BYTES)
    shares = [sent(stream) / weight for stream, weight in zip(streams, weights, strict=True)]
    assert jain(shares) == pytest.approx(1, abs=1e-6)


def test_streams_of_equal_weight_take_turns_of_one_quantum() -> None:
    end = dialer()
    streams = opened(end, [1, 1, 1])
    for stream in streams:
        end.send(stream, bytes(4 * QUANTUM_BYTES))
    turns = visits(end, streams, 9)
    assert turns == [(n % 3, QUANTUM_BYTES) for n in range(9)]


def test_a_heavy_stream_sends_its_share_in_quanta_between_those_of_the_others() -> None:
    end = dialer()
    light, heavy = opened(end, [1, 3])
    for stream in (light, heavy):
        end.send(stream, bytes(20 * QUANTUM_BYTES))
    order = [n for n, _ in visits(end, [light, heavy], 12)]
    assert order == [0, 1, 1, 1] * 3


def accepted(end: Endpoint, weights: list[int], credit: list[int]) -> Endpoint:
    """Open streams of omnistreams, where messages are never cut; return the peer.

    The peer requests as many messages of each as `credit` says.
    """
    far = Endpoint(create("omnistreams:carrier=length", vantage=1), 1, direct=True)
    far.start(bytes(16))
    streams = [end.open(b"s", 0, weight) for weight in weights]
    far.receive(end.data_to_send(), 0.0)
    for stream, messages in zip(streams, credit, strict=True):
        theirs = far.protocol.streams.find(stream.key)
        assert theirs is not None
        far.accept(theirs, messages)
    end.receive(far.data_to_send(), 0.0)
    return far


def all_streams(end: Endpoint) -> list[StreamState]:
    found = [end.protocol.streams.find(key) for key in range(8)]
    return [stream for stream in found if stream is not None]


@quick
@given(WEIGHTS, st.lists(st.integers(800, 150_000), min_size=4, max_size=4))
def test_messages_larger_than_a_share_are_paid_for_by_later_shares(
    weights: list[int], sizes: list[int]
) -> None:
    end = dialer("omnistreams:carrier=length")
    accepted(end, weights, [100_000] * len(weights))
    streams = all_streams(end)
    sizes = sizes[: len(weights)]
    for _ in range(60):
        for stream, weight, size in zip(streams, weights, sizes, strict=True):
            while queued(stream) < (weight + 1) * QUANTUM_BYTES + size:
                end.send(stream, bytes(size))
        end.chunks_to_send(1)
    rounds = [sent(s) / (w * QUANTUM_BYTES) for s, w in zip(streams, weights, strict=True)]
    excess = max(size / (w * QUANTUM_BYTES) for size, w in zip(sizes, weights, strict=True))
    assert max(rounds) - min(rounds) <= 2 + excess


def test_the_only_stream_with_content_is_charged_nothing() -> None:
    end = dialer("omnistreams:carrier=length")
    accepted(end, [1, 1], [1000, 1000])
    first, second = all_streams(end)
    for _ in range(10):
        end.send(first, bytes(1_000_000))
        end.data_to_send()
    for stream in (first, second):
        end.send_many(stream, [bytes(QUANTUM_BYTES)] * 8)
    assert visits(end, [first, second], 4) == [(n % 2, QUANTUM_BYTES) for n in range(4)]


# Starvation


def test_a_light_stream_beside_a_hundred_heavy_ones_gets_its_share_of_every_round() -> None:
    end = dialer()
    weights = [1] + [16] * 100
    streams = opened(end, weights)
    for stream in streams:
        end.send(stream, bytes(40 * QUANTUM_BYTES))
    before, waits, waited = 0, [], 0
    for _ in range(2 * sum(weights)):
        total = sum(sent(stream) for stream in streams[1:])
        end.chunks_to_send(1)
        waited += sum(sent(stream) for stream in streams[1:]) - total
        if sent(streams[0]) > before:
            before = sent(streams[0])
            waits.append(waited)
            waited = 0
    assert len(waits) >= 2
    assert max(waits) <= 1600 * QUANTUM_BYTES


@quick
@given(WEIGHTS, st.integers(1, 40))
def test_a_short_message_waits_for_one_quantum_of_each_stream_whatever_the_weights(
    weights: list[int], turns: int
) -> None:
    end = dialer()
    streams = opened(end, weights)
    for stream in streams:
        end.send(stream, bytes(60 * QUANTUM_BYTES))
    visits(end, streams, turns)
    (short,) = opened(end, [1])
    end.send(short, b"now")
    before = [sent(stream) for stream in streams]
    while not sent(short):
        end.chunks_to_send(1)
    for stream, bytes_before in zip(streams, before, strict=True):
        # the opening frame itself was flushed with one visit
        assert sent(stream) - bytes_before <= QUANTUM_BYTES


def test_short_messages_of_one_stream_do_not_wait_for_whole_rounds_of_heavy_ones() -> None:
    end = dialer()
    *heavy, light = opened(end, [256, 256, 1])
    for stream in heavy:
        end.send(stream, bytes(300 * QUANTUM_BYTES))
    for _ in range(20):
        end.send(light, bytes(16))
        before = sent(light)
        visits(end, heavy, 3)  # one of each, in any order
        assert sent(light) == before + 16


def test_streams_opened_without_end_do_not_starve_one_that_has_used_its_share() -> None:
    end = dialer()
    (bulk,) = opened(end, [1])
    end.send(bulk, bytes(100 * QUANTUM_BYTES))
    new = 0
    while sent(bulk) < 4 * QUANTUM_BYTES:
        for stream in opened(end, [1, 1]):  # more than one flush sends
            end.send(stream, bytes(QUANTUM_BYTES))
            end.end(stream)
            new += 1
        end.chunks_to_send(1)
        assert new < 2000


# Credit


def test_a_stream_without_credit_saves_up_nothing() -> None:
    end = dialer("omnistreams:carrier=length")
    far = accepted(end, [4, 4, 4], [1, 1000, 1000])
    streams = all_streams(end)
    for stream in streams:
        end.send_many(stream, [bytes(QUANTUM_BYTES // 2)] * 150)
    visits(end, streams, 60)
    assert sent(streams[0]) == QUANTUM_BYTES // 2
    theirs = all_streams(far)[0]
    far.queue_frame(theirs, far.protocol.credit_frame(1, theirs, 1000))
    end.receive(far.data_to_send(), 1.0)
    end.resume(streams[0])
    before = [sent(stream) for stream in streams]
    visits(end, streams, 48)
    gained = [sent(stream) - b for stream, b in zip(streams, before, strict=True)]
    assert max(gained) - min(gained) <= 4 * QUANTUM_BYTES


# Setting weights


def test_a_weight_set_later_applies_from_the_next_share() -> None:
    end = dialer()
    first, second = opened(end, [256, 1])
    for stream in (first, second):
        end.send(stream, bytes(400 * QUANTUM_BYTES))
    visits(end, [first, second], 10)
    end.set_weight(first, 1)
    visits(end, [first, second], 4)
    before = sent(first), sent(second)
    visits(end, [first, second], 40)
    gained = sent(first) - before[0], sent(second) - before[1]
    assert gained == (20 * QUANTUM_BYTES, 20 * QUANTUM_BYTES)


@pytest.mark.parametrize("weight", [0, -1, 257, 1 << 70])
def test_a_weight_out_of_range_is_refused_and_nothing_changes(weight: int) -> None:
    end = dialer()
    with pytest.raises(ValueError, match=f"a weight is 1 .the default. to 256, not {weight}"):
        end.open(b"x", 0, weight)
    assert end.data_to_send() == b""
    (stream,) = opened(end, [3])
    with pytest.raises(ValueError, match="to 256"):
        end.set_weight(stream, weight)
    assert stream.buffers is not None
    assert stream.buffers.weight == 3


@pytest.mark.parametrize("weight", ["2", 2.0, None, True])
def test_a_weight_that_is_no_int_is_refused(weight: object) -> None:
    with pytest.raises(TypeError, match="a weight is an int, not"):
        check_weight(weight)


# Room for those who queue


@quick
@given(WEIGHTS, st.integers(500, 70_000), st.integers(1, 5))
def test_room_is_granted_by_weight(weights: list[int], piece: int, cycles: int) -> None:
    end = dialer()
    scheduler = end.scheduler
    streams = opened(end, weights)
    data = bytes(piece)
    queued_in_all = [0] * len(streams)
    scheduler.contended = True
    for _ in range(cycles):
        for place, stream in enumerate(streams):
            assert stream.buffers is not None
            scheduler.grant_room(stream.buffers)
            while stream.buffers.queue_grant > 0:
                while not scheduler.lacks_room(stream.buffers):
                    end.send(stream, data)
                    queued_in_all[place] += piece
                while end.pending():
                    end.data_to_send()
    for total, weight in zip(queued_in_all, weights, strict=True):
        granted = FIRST_QUEUE_GRANT + cycles * weight * scheduler.room_share
        assert granted <= total < granted + piece


# Both forms

PROGRAM = """
import hashlib, sys
from random import Random
from polymux.core import send_scheduler
from polymux.core.endpoint import Endpoint
from polymux.protocols.registry import create
form, cases = sys.argv[1], int(sys.argv[2])
assert send_scheduler.__file__.endswith('.py') == (form == 'interpreted')
for seed in range(cases):
    rng = Random(seed)
    end = Endpoint(create('mplex', vantage=0), 0, direct=True)
    end.start(bytes(16))
    said, streams = hashlib.sha256(), []
    for _ in range(60):
        deed = rng.randrange(6)
        if deed == 0 or not streams:
            streams.append(end.open(b'%d' % seed, 0, rng.choice([1, 2, 16, 256])))
        stream = rng.choice(streams)
        if deed == 1:
            end.set_weight(stream, rng.randint(1, 256))
        elif deed < 4:
            end.send_many(stream, [rng.randbytes(rng.randrange(30000)) for _ in range(5)])
        elif deed == 4 and rng.random() < 0.2:
            end.end(stream)
            streams.remove(stream)
        said.update(end.data_to_send(rng.choice([0, 1, 5000, 100000])))
    while end.pending():
        said.update(end.data_to_send())
    print(seed, said.hexdigest()[:16])
"""


@pytest.mark.skipif(not COMPILED, reason="the core runs interpreted here")
def test_compiled_and_interpreted_schedulers_send_the_same_bytes() -> None:
    found = []
    for form in ("compiled", "interpreted"):
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if form == "interpreted":
            environment["PYTHONPATH"] = str(SOURCE)
        command = [sys.executable, "-c", PROGRAM, form, str(CASES)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    assert len(found[0]) == CASES
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [100, 65536])
def test_what_was_sent_is_not_kept_while_more_is_queued(size: int) -> None:
    end = dialer()
    streams = opened(end, [1, 1])
    for _ in range(400):  # no queue is ever empty
        for stream in streams:
            while queued(stream) < 4 * 65536:
                end.send_many(stream, [bytes(size)] * (65536 // size))
        end.chunks_to_send(65536)
        for stream in streams:
            assert stream.buffers is not None
            assert sum(map(len, stream.buffers.outgoing)) < 6 * 65536
    assert min(map(sent, streams)) > 8_000_000
