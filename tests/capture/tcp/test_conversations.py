"""Connections of the same endpoints, alive at once in the same file, are sessions of their own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ACK, ALICE, BOB, MS, START, SYN, Packet
from tests.capture.conftest import streams

from polymux.capture import CaptureReader, FilePool, TcpSession, index_file, sessions_of
from polymux.capture.tcp.conversations import MAX_ALIVE
from polymux.capture.tcp.sessions import TOLD_APART

Reads = Callable[..., CaptureReader]
PLACES = [(n << 28, (n << 28) + (n << 26)) for n in range(1, 14)]  # far from each other


def merged(rng: random.Random, *hosts: Sequence[Packet]) -> list[Packet]:
    """The packets of several captures as one, each in its order, a millisecond apart."""
    turns = [number for number, packets in enumerate(hosts) for _ in packets]
    rng.shuffle(turns)
    waiting = [iter(packets) for packets in hosts]
    return [Packet(START + n * MS, next(waiting[turn]).data) for n, turn in enumerate(turns)]


def lines_of(rng: random.Random, mark: bytes) -> list[tuple[int, bytes]]:
    return [(rng.randrange(2), mark + b"%d." % n) for n in range(rng.randrange(2, 9))]


def sent(lines: Sequence[tuple[int, bytes]]) -> tuple[bytes, bytes]:
    both = [b"".join(data for side, data in lines if side == each) for each in (0, 1)]
    return both[0], both[1]


def reader(refs: bytes) -> Callable[[int, int], bytes]:
    return lambda start, size: refs[start : start + size]


def is_noted(session: TcpSession) -> bool:
    return TOLD_APART in (session.note or "")


def test_two_handshakes_within_each_other_are_two_sessions(read: Reads) -> None:
    one = build.talk((0, b"first"), (1, b"yes"), (0, b"more"))
    two = build.talk((0, b"second"), (1, b"no"), isn=PLACES[3])
    turns = [packet for pair in itertools.zip_longest(one, two) for packet in pair if packet]
    packets = [Packet(START + n * MS, packet.data) for n, packet in enumerate(turns)]
    found = list(read(build.pcapng(packets)))
    assert [streams(session) for session in found] == [(b"firstmore", b"yes"), (b"second", b"no")]
    assert [session.ends for session in found] == [("fin", "fin")] * 2
    assert all(map(is_noted, found))


@pytest.mark.parametrize("seed", range(30))
def test_connections_in_any_order_of_their_packets_are_told_apart(read: Reads, seed: int) -> None:
    """Of two hosts, each with several connections one after another."""
    rng = random.Random(seed)
    places = iter(rng.sample(PLACES, len(PLACES)))
    hosts, expected = [], []
    for host in range(2):
        packets: list[Packet] = []
        for turn in range(rng.randrange(1, 4)):
            lines = lines_of(rng, b"%d/%d " % (host, turn))
            packets += build.talk(*lines, isn=next(places))
            expected.append(sent(lines))
        hosts.append(packets)
    found = list(read(build.pcapng(merged(rng, *hosts))))
    assert sorted(streams(session) for session in found) == sorted(expected)
    assert all(session.saw_syn and session.ends == ("fin", "fin") for session in found)
    assert [session.started_at for session in found] == sorted(s.started_at for s in found)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("seed", range(10))
def test_connections_of_which_one_direction_was_captured_are_told_apart(
    read: Reads, side: int, seed: int
) -> None:
    rng = random.Random(seed)
    lines = [[(side, b"%d/%d " % (host, n)) for n in range(9)] for host in (0, 1)]
    hosts = [build.talk(*lines[host], isn=PLACES[host]) for host in (0, 1)]
    sender = hosts[0][side].data[26:30]  # address of the sender in the frame
    kept = [[packet for packet in host if packet.data[26:30] == sender] for host in hosts]
    found = list(read(build.pcapng(merged(rng, *kept))))
    assert sorted(streams(s)[side] for s in found) == [sent(each)[side] for each in lines]


def test_a_connection_that_began_before_the_capture_is_told_from_one_that_begins(
    read: Reads,
) -> None:
    old = build.talk(*[(n % 2, b"%d." % n) for n in range(20)])[6:]
    new = build.talk((0, b"new"), (1, b"yes"), (0, b"on"), isn=PLACES[5])
    packets = [*old[:3], *merged(random.Random(3), old[3:], new)]
    again = [Packet(START + n * MS, packet.data) for n, packet in enumerate(packets)]
    found = list(read(build.pcapng(again)))
    assert sorted(session.packets for session in found) == [len(new), len(old)]
    assert (b"newon", b"yes") in [streams(session) for session in found]


def test_a_flow_of_many_connections_at_once_stays_a_few_lanes(read: Reads) -> None:
    rng = random.Random(5)
    hosts = [build.talk((0, b"%d" % n), (0, b"!"), isn=place) for n, place in enumerate(PLACES)]
    assert len(hosts) > MAX_ALIVE
    packets = merged(rng, *hosts)
    assert sum(session.packets for session in read(build.pcapng(packets))) == len(packets)


@pytest.mark.parametrize("seed", range(20))
def test_a_port_that_is_used_again_is_no_connection_at_the_same_time(
    read: Reads, seed: int
) -> None:
    """The first connection ends with FIN, with RST, or as its host dies; then packets of it that
    come late, and acknowledgements of the acceptor, which still has it."""
    rng = random.Random(seed)
    place = rng.choice([PLACES[4], (5000, 7000)])
    dead = build.talk((0, b"one"), (1, b"two"), close=False)
    challenge = Packet(0, build.frame(BOB, ALICE, 904, 104, ACK))
    again = build.talk((0, b"three"), (1, b"four"), isn=place)
    order = [*dead, again[0], challenge, again[0], *again[1:]]
    packets = [Packet(START + n * MS, packet.data) for n, packet in enumerate(order)]
    found = list(read(build.pcapng(packets)))
    assert [streams(session) for session in found] == [(b"one", b"two"), (b"three", b"four")]
    assert not any(map(is_noted, found))


def test_a_syn_that_nothing_answers_is_no_connection_beside_those_told_apart(
    read: Reads,
) -> None:
    rng = random.Random(1)
    hosts = [build.talk(*lines_of(rng, b"a"), isn=place) for place in PLACES[:2]]
    packets = merged(rng, *hosts)
    stray = build.frame(ALICE, BOB, 13 << 28, 0, SYN)
    middle = len(packets) // 2
    with_stray = [*packets[:middle], Packet(packets[middle].at - 1, stray), *packets[middle:]]
    plain = [streams(session) for session in read(build.pcapng(packets))]
    assert [streams(session) for session in read(build.pcapng(with_stray))] == plain


@pytest.mark.parametrize("stored", [False, True])
def test_sessions_told_apart_are_the_same_from_their_packets_alone(
    write: Callable[..., str], stored: bool
) -> None:
    rng = random.Random(8)
    hosts = [build.talk(*lines_of(rng, b"x"), isn=place) for place in PLACES[:3]]
    path = write(build.pcapng(merged(rng, *hosts)))
    rows = index_file(path).rows
    if stored:
        rows = [
            row._replace(refs=b"", records=row.packets, stored=reader(row.refs)) for row in rows
        ]
    pool = FilePool()
    found = sessions_of(rows, pool.reader)
    assert len(found) == 3
    for session in found:
        (alone,) = sessions_of(session.packet_rows(), pool.reader)
        assert (streams(alone), alone.packets) == (streams(session), session.packets)
    pool.close()


def test_both_captures_of_the_same_packets_in_two_files_are_told_apart_too(
    tmp_path: Path,
) -> None:
    """A rotation: every file has packets of both connections."""
    from polymux.capture import read_sessions

    rng = random.Random(2)
    lines = [lines_of(rng, b"%d " % host) for host in (0, 1)]
    packets = merged(rng, *[build.talk(*lines[n], isn=PLACES[n]) for n in (0, 1)])
    paths = []
    for number, part in enumerate([packets[:9], packets[9:]]):
        paths.append(tmp_path / f"{number}.pcapng")
        paths[-1].write_bytes(build.pcapng(part))
    with read_sessions(paths) as reading:
        assert sorted(map(streams, reading)) == sorted(map(sent, lines))


def test_bytes_after_a_stray_syn_are_no_proof_of_two_connections(read: Reads) -> None:
    """The replaced connection sends nothing more: only acknowledgements come late."""
    one = build.talk((0, b"one"), close=False)
    two = build.talk((0, b"two"), isn=PLACES[2])
    late = Packet(0, build.frame(BOB, ALICE, 901, 104, ACK))
    order = [*one, *two[:3], late, *two[3:]]
    packets = [Packet(START + n * MS, packet.data) for n, packet in enumerate(order)]
    found = list(read(build.pcapng(packets)))
    assert [streams(session)[0] for session in found] == [b"one", b"two"]
    assert not any(map(is_noted, found))
