"""Sessions of files: their boundaries, which side dialled, several files read as one."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ACK, ALICE, BOB, MS, PSH, RST, START, SYN, End, Packet
from tests.capture.conftest import streams

from polymux.capture import (
    CaptureReader,
    FilePool,
    TcpSession,
    index_file,
    read_sessions,
    sessions_of,
)
from polymux.core.errors import CaptureError

HOUR = 3600 * 1000 * MS


def facts(session: TcpSession) -> tuple[object, ...]:
    """Everything known of a session except its files."""
    events = [(p.side, p.timestamp, p.size, p.data, p.end) for p in session.pieces()]
    return (
        session.flow,
        session.dialer,
        session.acceptor,
        session.started_at,
        session.ended_at,
        session.packets,
        session.saw_syn,
        session.note,
        session.protocol_hint,
        session.ends,
        session.reassembled_bytes,
        session.missing_bytes,
        session.zero_windows,
        session.retransmissions,
        session.rtt_ns,
        events,
    )


def all_facts(paths: list[str]) -> list[tuple[object, ...]]:
    with read_sessions(paths) as reading:
        return [facts(session) for session in reading]


def test_a_new_syn_after_the_end_is_a_new_session(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk((0, b"first"))
    packets += build.talk((0, b"second"), isn=(5000, 7000), start=START + HOUR)
    packets += build.talk((1, b"third"), isn=(100, 900), start=START + 2 * HOUR)
    found = list(read(build.pcapng(packets)))
    assert [streams(s) for s in found] == [(b"first", b""), (b"second", b""), (b"", b"third")]
    assert [s.started_at for s in found] == [START, START + HOUR, START + 2 * HOUR]


def test_a_session_whose_end_was_not_captured_ends_with_an_answered_syn(
    read: Callable[..., CaptureReader],
) -> None:
    packets = build.talk((0, b"first"), close=False)
    packets += build.talk((0, b"second"), isn=(5000, 7000), start=START + HOUR)
    found = list(read(build.pcapng(packets)))
    assert [streams(s)[0] for s in found] == [b"first", b"second"]
    assert [s.ends for s in found] == [(None, None), ("fin", "fin")]


def test_a_stray_syn_does_not_cut_a_running_session(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk((0, b"one"), (1, b"two"), (0, b"three"))
    stray = Packet(packets[4].at + 1, build.frame(ALICE, BOB, 777_777, 0, SYN))
    challenge = Packet(packets[4].at + 2, build.frame(BOB, ALICE, 904, 104, ACK))
    (found,) = read(build.pcapng([*packets[:5], stray, challenge, *packets[5:]]))
    assert streams(found) == (b"onethree", b"two")


def test_a_repeated_syn_is_the_same_session(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk((0, b"x"))
    again = Packet(START + 10, packets[0].data)
    (found,) = read(build.pcapng([packets[0], again, *packets[1:]]))
    assert streams(found)[0] == b"x"


def test_a_refused_connection_is_a_session_without_bytes(
    read: Callable[..., CaptureReader],
) -> None:
    packets = []
    for n in range(3):
        at = START + n * HOUR
        packets.append(Packet(at, build.frame(ALICE, BOB, 100 * n, 0, SYN)))
        packets.append(Packet(at + 1, build.frame(BOB, ALICE, 0, 100 * n + 1, RST | ACK)))
    found = [session.scan_packets() for session in read(build.pcapng(packets))]
    assert [(s.segment_bytes, s.ends) for s in found] == [((0, 0), (None, "rst"))] * 3


def test_bytes_far_away_after_the_end_are_another_session(
    read: Callable[..., CaptureReader],
) -> None:
    packets = build.talk((0, b"first"))
    packets.append(Packet(START + HOUR, build.frame(ALICE, BOB, 2**30, 5, PSH | ACK, b"other")))
    found = list(read(build.pcapng(packets)))
    assert [(streams(s)[0], s.saw_syn) for s in found] == [(b"first", True), (b"other", False)]


def test_a_session_that_spans_rotated_files_is_one(write: Callable[..., str]) -> None:
    packets = build.talk(*[(n % 2, bytes([65 + n])) for n in range(10)])
    paths = [
        write(build.pcapng(packets[n : n + 3]), f"{n:03}.pcapng") for n in range(0, len(packets), 3)
    ]
    (found,) = read_sessions(paths)
    assert streams(found) == (b"ACEGI", b"BDFHJ")
    assert found.captures == paths
    assert found.ordered


def test_either_syn_identifies_the_dialer(read: Callable[..., CaptureReader]) -> None:
    odd = (End("192.0.2.1", 80), End("192.0.2.2", 50000))
    packets = build.talk((1, b"x"), ends=odd)
    for kept in (packets[:1] + packets[2:], packets[1:]):
        (found,) = read(build.pcapng(kept))
        assert (found.dialer, found.saw_syn, found.note) == ("192.0.2.1:80", True, None)


@pytest.mark.parametrize(
    ("ports", "listening", "speaker", "dialer", "reason"),
    [
        ((40000, 9000), (), 1, 0, "the lower port"),
        ((9000, 40000), (), 1, 1, "the lower port"),
        ((40000, 50000), (), 1, 1, "sends first"),
        ((40000, 50000), (50000,), 1, 0, "listening port"),
        ((7000, 9000), (), 0, 0, "sends first"),
        ((40000, 50000), (), None, 1, "the lower port"),
    ],
)
def test_without_a_syn_the_dialer_is_guessed_and_a_note_says_so(
    write: Callable[..., str],
    ports: tuple[int, int],
    listening: tuple[int, ...],
    speaker: int | None,
    dialer: int,
    reason: str,
) -> None:
    ends = (End("192.0.2.1", ports[0]), End("192.0.2.2", ports[1]))
    line = [] if speaker is None else [(speaker, b"x")]
    packets = build.talk(*line, ends=ends)[2:]
    (found,) = read_sessions([write(build.pcapng(packets))], ports=listening)
    assert found.dialer == ends[dialer].text
    assert found.saw_syn is False
    assert found.note is not None
    assert reason in found.note


@st.composite
def traffic(draw: st.DrawFn) -> list[Packet]:
    """Several connections at once, with repeated packets, holes, port reuse, zero windows."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    packets: list[Packet] = []
    for n in range(chance.randrange(1, 4)):
        ends = (End(f"192.0.2.{n + 1}", 40000 + n), BOB)
        start = START
        for _ in range(chance.randrange(1, 3)):
            lines = [
                (chance.randrange(2), chance.randbytes(chance.randrange(1, 40)))
                for _ in range(chance.randrange(6))
            ]
            isn = (chance.randrange(2**32), chance.randrange(2**32))
            talk = build.talk(*lines, ends=ends, isn=isn, start=start + n)
            start = talk[-1].at + 50 * MS
            for packet in talk:
                fate = chance.random()
                if fate < 0.85 or packet is talk[0]:
                    packets.append(packet)
                if fate > 0.8:
                    packets.append(Packet(packet.at + chance.randrange(5 * MS), packet.data))
    packets.sort(key=lambda packet: packet.at)
    return packets


@settings(max_examples=60, deadline=None)
@given(packets=traffic(), seed=st.integers(0, 2**32))
def test_files_split_shuffled_and_repeated_give_the_same_sessions(
    tmp_path_factory: pytest.TempPathFactory, packets: list[Packet], seed: int
) -> None:
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("cut")
    whole = folder / "whole.pcapng"
    whole.write_bytes(build.pcapng(packets))
    expected = all_facts([str(whole)])
    cuts = sorted(chance.sample(range(len(packets) + 1), min(3, len(packets))))
    parts = [packets[a:b] for a, b in itertools.pairwise([0, *cuts, len(packets)])]
    paths = []
    for n, part in enumerate(parts):
        name = folder / f"{chance.randrange(1000)}-{n}.pcapng"
        name.write_bytes(build.pcapng(part))
        paths.append(str(name))
    chance.shuffle(paths)
    assert all_facts(paths) == expected
    copy = folder / "copy.pcapng"
    copy.write_bytes(whole.read_bytes())
    assert all_facts([*paths, str(whole), str(copy)]) == expected


def test_a_packet_given_twice_counts_once(read: Callable[..., CaptureReader]) -> None:
    packets = build.talk((0, b"a"), (1, b"b"))
    once = [facts(s) for s in read(build.pcapng(packets))]
    twice = [facts(s) for s in read(build.pcapng([p for p in packets for _ in range(2)]))]
    assert once == twice


def test_one_file_for_each_direction_is_merged_by_the_clock_and_noted(
    write: Callable[..., str],
) -> None:
    packets = build.talk((0, b"ask"), (1, b"answer"), (0, b"more"), (1, b"end"))
    sides = [
        [p for p in packets if (p.data[26:30] == bytes([192, 0, 2, 1])) == wanted]
        for wanted in (True, False)
    ]
    paths = [write(build.pcapng(side), f"{n}.pcapng") for n, side in enumerate(sides)]
    (found,) = read_sessions(paths)
    assert [p.data for p in found.pieces() if not p.end] == [b"ask", b"answer", b"more", b"end"]
    assert not found.ordered
    assert found.note is not None
    assert "order" in found.note


def test_clocks_that_disagree_lose_nothing(write: Callable[..., str]) -> None:
    """One direction's clock is a second behind: its answers come before the questions."""
    packets = build.talk((0, b"ask"), (1, b"answer"), (0, b"more"), (1, b"end"), step=10 * MS)
    forth = [p for p in packets if p.data[26:30] == bytes([192, 0, 2, 1])]
    back = [Packet(p.at - 1000 * MS, p.data) for p in packets if p not in forth]
    paths = [write(build.pcapng(forth), "a.pcapng"), write(build.pcapng(back), "b.pcapng")]
    (found,) = read_sessions(paths)
    assert streams(found) == (b"askmore", b"answerend")


def test_sessions_are_built_from_rows_alone(write: Callable[..., str]) -> None:
    path = write(build.pcapng(build.talk((0, b"packed"))))
    rows = index_file(path).rows
    assert {row.direction for row in rows} == {0, 1}
    for given_rows in (rows, rows[::-1], rows + rows):
        (found,) = sessions_of(given_rows, FilePool().reader)
        assert streams(found) == (b"packed", b"")


def test_ipv6_endpoints_are_written_in_brackets(read: Callable[..., CaptureReader]) -> None:
    (found,) = read(build.pcapng(build.talk((0, b"x"), ends=(build.ALICE6, build.BOB6))))
    assert (found.dialer, found.acceptor) == ("[2001:db8::1]:40000", "[2001:db8::2]:9000")


def test_a_directory_is_read_file_by_file_without_parts_and_indexes(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    data = build.pcapng(build.talk((0, b"x")))
    for name in ("b.pcapng", "a.pcapng", "below/c.pcapng", "d.pcapng.part", "a.pcapng.idx", ".e"):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "link.pcapng").symlink_to(tmp_path / "a.pcapng")
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    reading = read_sessions([str(tmp_path), str(tmp_path / "a.pcapng")])
    assert [Path(f.file).name for f in reading.files] == ["a.pcapng", "b.pcapng", "c.pcapng"]
    assert len(list(reading)) == 1


def test_a_file_that_shrinks_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcapng"
    path.write_bytes(build.pcapng(build.talk((0, b"x" * 1000))))
    with read_sessions([str(path)]) as reading:
        (found,) = reading
        path.write_bytes(b"")
        with pytest.raises(CaptureError, match="shrank"):
            list(found.pieces())


def test_more_files_than_may_be_open_are_read(write: Callable[..., str]) -> None:
    packets = build.talk(*[(0, bytes([n])) for n in range(200)])
    paths = [write(build.pcap([p], nano=True), f"{n:03}.pcap") for n, p in enumerate(packets)]
    (found,) = read_sessions(paths)
    assert streams(found)[0] == bytes(range(200))
    assert found.ends == ("fin", "fin")


def test_only_the_connection_that_spans_interleaved_files_is_not_proven_ordered(
    tmp_path: Path,
) -> None:
    before = build.talk((0, b"before"), (1, b"yes"))
    spread = build.talk(
        (0, b"one"), (1, b"two"), (0, b"three"), isn=(5000, 7000), start=START + HOUR
    )
    files = {"a.pcapng": before, "b.pcapng": spread[::2], "c.pcapng": spread[1::2]}
    for name, packets in files.items():
        (tmp_path / name).write_bytes(build.pcapng(packets))
    with read_sessions([str(tmp_path / name) for name in files]) as reading:
        assert [session.ordered for session in reading] == [True, False]


def test_only_connections_of_the_same_time_are_noted_as_kept_apart(tmp_path: Path) -> None:
    files = {
        "a.pcapng": build.talk((0, b"long"), (1, b"ago")),
        "b.pcapng": build.talk((0, b"here"), isn=(1 << 28, 2 << 28), start=START + HOUR),
        "c.pcapng": build.talk((0, b"there"), isn=(5 << 28, 9 << 28), start=START + HOUR + 1),
    }
    for name, packets in files.items():
        (tmp_path / name).write_bytes(build.pcapng(packets))
    with read_sessions([str(tmp_path / name) for name in files]) as reading:
        notes = [session.note or "" for session in reading]
    assert ["kept apart" in note for note in notes] == [False, True, True]


@pytest.mark.parametrize("seed", range(12))
def test_a_session_is_the_same_from_the_references_of_its_packets_alone(seed: int) -> None:
    rng = random.Random(seed)
    packets = []
    for number in range(3):
        packets += build.talk(
            *[(rng.randrange(2), bytes(rng.randrange(1, 300))) for _ in range(rng.randrange(1, 8))],
            isn=(rng.randrange(1 << 32), rng.randrange(1 << 32)),
            start=START + number * HOUR,
            close=rng.random() < 0.7,
        )
    packets = [packet for packet in packets if rng.random() < 0.95]
    packets += [packet for packet in packets if rng.random() < 0.1]
    packets.sort(key=lambda packet: packet.at + rng.randrange(-2 * MS, 2 * MS))
    with tempfile.NamedTemporaryFile(suffix=".pcapng") as file, FilePool() as pool:
        file.write(build.pcapng(packets))
        file.flush()
        whole = sessions_of(index_file(file.name).rows, pool.reader)
        for session in whole:
            (again,) = sessions_of(session.packet_rows(), pool.reader)
            assert facts(again) == facts(session)


def test_the_order_of_packets_of_the_same_instant_does_not_depend_on_earlier_connections(
    tmp_path: Path,
) -> None:
    before = build.talk((0, b"before"))
    later = build.talk((0, b"later"), isn=(5 << 28, 9 << 28), start=START + HOUR)
    later[1].at = later[0].at
    files = {"a.pcapng": later[1::2], "b.pcapng": [*before, *later[0::2]]}
    for name, packets in files.items():
        (tmp_path / name).write_bytes(build.pcapng(packets))
    rows = [row for name in files for row in index_file(str(tmp_path / name)).rows]
    with FilePool() as pool:
        _, session = sessions_of(rows, pool.reader)
        (again,) = sessions_of(session.packet_rows(), pool.reader)
        assert again.captures == session.captures == [str(tmp_path / name) for name in files]
        assert facts(again) == facts(session)
