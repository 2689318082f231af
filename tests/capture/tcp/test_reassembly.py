"""Byte streams from packets: what was sent is reassembled, whatever the network did."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ACK, ALICE, BOB, FIN, MS, PSH, RST, START, SYN, Packet
from tests.capture.conftest import streams

from polymux.capture import CaptureLimits, CaptureReader, FilePool, TcpSession, sessions_of
from polymux.capture.packets.indexer import index_file

SECOND = 1000 * MS


def sessions(packets: list[Packet], path: str, **limits: int) -> list[TcpSession]:
    """Write the packets to a file and read the sessions of its one flow."""
    with open(path, "wb") as file:
        file.write(build.pcapng(packets))
    return sessions_of(index_file(path).rows, FilePool().reader, limits=CaptureLimits(**limits))


@pytest.fixture
def session(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TcpSession]:
    path = str(tmp_path_factory.mktemp("one") / "capture.pcapng")

    def make(packets: list[Packet], **limits: int) -> TcpSession:
        (found,) = sessions(packets, path, **limits)
        return found

    return make


def dialled(seq: int, ack: int = 901, flags: int = ACK, payload: bytes = b"", **more: int) -> bytes:
    return build.frame(ALICE, BOB, seq, ack, flags, payload, **more)


def accepted(
    seq: int, ack: int = 101, flags: int = ACK, payload: bytes = b"", **more: int
) -> bytes:
    return build.frame(BOB, ALICE, seq, ack, flags, payload, **more)


def timed(*frames: bytes | tuple[int, bytes]) -> list[Packet]:
    """A handshake, then frames one millisecond apart, or at the given time in ms."""
    at = START
    packets = []
    opening = [build.frame(ALICE, BOB, 100, 0, SYN), accepted(900, 101, SYN | ACK), dialled(101)]
    for item in [*opening, *frames]:
        at = START + item[0] * MS if isinstance(item, tuple) else at + MS
        packets.append(Packet(at, item[1] if isinstance(item, tuple) else item))
    return packets


@st.composite
def disturbed(draw: st.DrawFn) -> tuple[bytes, bytes, list[Packet]]:
    """Two streams, and packets that carry them repeated, overlapping and out of order."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    sent = [chance.randbytes(chance.randrange(0, 3000)) for _ in range(2)]
    isn = [chance.choice([100, 2**32 - 1, 2**32 - 700, 2**31 - 50]) for _ in range(2)]
    ends = (ALICE, BOB)
    pending: list[tuple[float, bytes]] = []
    for side in (0, 1):
        position = 0
        moment = 0.0
        while position < len(sent[side]):
            size = chance.choice([1, 7, 100, 536, 1400])
            moment += 1
            late = chance.choice([0, 0, 0, 1.5, 6, 30])
            begin = max(0, position - chance.choice([0, 0, 0, 3, 500]))
            copies = chance.choice([1, 1, 1, 2])
            for copy in range(copies):
                payload = sent[side][begin : position + size]
                data = build.frame(
                    ends[side],
                    ends[1 - side],
                    isn[side] + 1 + begin,
                    isn[1 - side] + 1,
                    PSH | ACK,
                    payload,
                )
                pending.append((moment + late + copy * 5.3, data))
            position += size
        last = build.frame(
            ends[side],
            ends[1 - side],
            isn[side] + 1 + len(sent[side]),
            isn[1 - side] + 1,
            FIN | ACK,
        )
        pending.append((moment + 1, last))
    opening = [
        build.frame(ALICE, BOB, isn[0], 0, SYN),
        build.frame(BOB, ALICE, isn[1], isn[0] + 1, SYN | ACK),
    ]
    frames = opening + [data for _, data in sorted(pending, key=lambda item: item[0])]
    return sent[0], sent[1], [Packet(START + n * MS, data) for n, data in enumerate(frames)]


@settings(max_examples=150, deadline=None)
@given(case=disturbed())
def test_what_was_sent_is_reassembled_whatever_the_network_did(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[bytes, bytes, list[Packet]]
) -> None:
    dialer, acceptor, packets = case
    path = str(tmp_path_factory.getbasetemp() / "disturbed.pcapng")
    (found,) = sessions(packets, path)
    assert streams(found) == (dialer, acceptor)
    assert found.missing_bytes == (0, 0)
    assert found.ends == ("fin", "fin")


@settings(max_examples=100, deadline=None)
@given(case=disturbed(), seed=st.integers(0, 2**32))
def test_packets_missing_from_the_capture_become_gaps_and_nothing_is_moved(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[bytes, bytes, list[Packet]],
    seed: int,
) -> None:
    *sent, packets = case
    chance = random.Random(seed)
    kept = packets[:2] + [packet for packet in packets[2:] if chance.random() < 0.9]
    path = str(tmp_path_factory.getbasetemp() / "lossy.pcapng")
    (found,) = sessions(kept, path)
    for side, got in enumerate(streams(found)):
        assert len(got) <= len(sent[side])
        wrong = [n for n, byte in enumerate(got) if byte != sent[side][n] and byte != ord("?")]
        assert wrong == []
        assert found.reassembled_bytes[side] + found.missing_bytes[side] == len(got)


@settings(max_examples=60, deadline=None)
@given(case=disturbed(), size=st.integers(1, 4000))
def test_batches_of_any_size_hold_the_same_events(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[bytes, bytes, list[Packet]],
    size: int,
) -> None:
    path = str(tmp_path_factory.getbasetemp() / "batches.pcapng")
    (found,) = sessions(case[2], path)
    whole = [(p.side, p.timestamp, p.size, p.end) for p in found.pieces()]
    parts = []
    for batch in found.batches(size):
        for n in range(batch.count):
            end = {2: "fin", 3: "rst"}.get(batch.kind[n])
            parts.append((batch.side[n], batch.timestamp[n], batch.size[n], end))
    assert parts == whole


def test_the_timestamp_is_when_bytes_became_contiguous(session: Callable[..., TcpSession]) -> None:
    found = session(
        timed((10, dialled(106, payload=b"world")), (25, dialled(101, payload=b"hello")))
    )
    assert [(p.timestamp, p.data) for p in found.pieces()] == [
        (START + 25 * MS, b"hello"),
        (START + 25 * MS, b"world"),
    ]


def test_both_directions_stay_in_capture_order(session: Callable[..., TcpSession]) -> None:
    lines = [(0, b"a"), (1, b"b"), (1, b"c"), (0, b"d")]
    found = session(build.talk(*lines))
    assert [(p.side, p.data) for p in found.pieces() if not p.end] == lines


def test_order_is_that_of_the_file_even_if_the_clock_goes_back(
    session: Callable[..., TcpSession],
) -> None:
    packets = build.talk((0, b"a"), (1, b"b"), (0, b"c"))
    for packet in packets[4:]:
        packet.at -= 3600 * SECOND
    found = session(packets)
    assert [p.data for p in found.pieces() if not p.end] == [b"a", b"b", b"c"]
    assert found.ends == ("fin", "fin")


def test_the_first_copy_of_overlapping_bytes_wins(session: Callable[..., TcpSession]) -> None:
    found = session(
        timed(
            dialled(101, payload=b"abc"),
            dialled(103, payload=b"XDE"),
            dialled(110, payload=b"jkl"),
            dialled(105, payload=b"YfghiZZZm"),
            dialled(106, payload=b"QQQ"),
        )
    )
    assert streams(found)[0] == b"abcDEfghijklm"


def test_a_hole_that_waited_three_seconds_is_a_gap(session: Callable[..., TcpSession]) -> None:
    frames = [(10, dialled(106, payload=b"world")), (3011, accepted(901, 101))]
    found = session(timed(*frames))
    assert [(p.timestamp, p.size, p.data) for p in found.pieces()] == [
        (START + 10 * MS, 5, b""),
        (START + 10 * MS, 5, b"world"),
    ]
    late = session(timed(*frames, (3012, dialled(101, payload=b"hello"))))
    assert streams(late)[0] == b"?????world"
    patient = session(
        timed(*frames, (3012, dialled(101, payload=b"hello"))), hole_timeout_ns=4 * SECOND
    )
    assert streams(patient)[0] == b"helloworld"


def test_too_much_behind_a_hole_makes_it_a_gap(session: Callable[..., TcpSession]) -> None:
    frames = [dialled(201 + 100 * n, payload=bytes([n]) * 100) for n in range(50)]
    hole = dialled(101, payload=bytes([255]) * 100)
    assert b"?" not in streams(session(timed(*frames, hole)))[0]
    assert streams(session(timed(*frames, hole), max_out_of_order_bytes=4000))[0].startswith(
        b"?" * 100
    )
    assert streams(session(timed(*frames, hole), max_out_of_order_segments=40))[0].startswith(
        b"?" * 100
    )


def test_an_answer_to_bytes_never_captured_shows_the_gap_before_it(
    session: Callable[..., TcpSession],
) -> None:
    """A request was not captured; its reply must not come before the gap."""
    found = session(timed(dialled(101, payload=b"one"), accepted(901, 110, PSH | ACK, b"reply")))
    assert [(p.side, p.size, p.data) for p in found.pieces()] == [
        (0, 3, b"one"),
        (0, 6, b""),
        (1, 5, b"reply"),
    ]


def test_an_acknowledgement_alone_waits_for_the_next_packet(
    session: Callable[..., TcpSession],
) -> None:
    acked = accepted(901, 110)
    late = session(timed(dialled(101, payload=b"one"), acked, dialled(104, payload=b"second")))
    assert streams(late)[0] == b"onesecond"
    lost = session(timed(dialled(101, payload=b"one"), acked, dialled(110, payload=b"third")))
    assert [(p.size, p.data) for p in lost.pieces()] == [(3, b"one"), (6, b""), (5, b"third")]


def test_an_acknowledged_fin_that_was_not_captured_is_no_gap(
    session: Callable[..., TcpSession],
) -> None:
    found = session(timed(dialled(101, payload=b"one"), accepted(901, 105, PSH | ACK, b"reply")))
    assert streams(found) == (b"one", b"reply")
    assert found.ends == (None, None)


def test_the_end_of_the_capture_turns_what_is_missing_into_gaps(
    session: Callable[..., TcpSession],
) -> None:
    found = session(
        timed(dialled(105, payload=b"x"), accepted(901, 120), dialled(130, flags=FIN | ACK))
    )
    assert streams(found)[0] == b"????x" + b"?" * 24
    assert found.ends == ("fin", None)


def test_keep_alive_probes_are_neither_bytes_nor_retransmissions(
    session: Callable[..., TcpSession],
) -> None:
    found = session(
        timed(
            dialled(101, payload=b"abc"),
            dialled(103),
            accepted(901, 104),
            dialled(103, payload=b"\0"),
            accepted(901, 104),
        )
    )
    assert streams(found)[0] == b"abc"
    assert found.retransmissions == ([], [])


def test_bytes_on_the_syn_count(session: Callable[..., TcpSession]) -> None:
    packets = [
        Packet(START, build.frame(ALICE, BOB, 100, 0, SYN, b"fast")),
        Packet(START + MS, accepted(900, 105, SYN | ACK)),
        Packet(START + 2 * MS, dialled(105, payload=b"er")),
    ]
    assert streams(session(packets))[0] == b"faster"


@pytest.mark.parametrize(
    ("answer", "ends"), [(0, ("rst", None)), (FIN, ("fin", "fin")), (RST, ("fin", "rst"))]
)
def test_a_reset_after_the_own_fin_ends_the_other_side_unless_it_ended_itself(
    answer: int, ends: tuple[str, str | None], session: Callable[..., TcpSession]
) -> None:
    found = session(
        timed(
            dialled(101, payload=b"ab"),
            dialled(103, flags=FIN | ACK),
            accepted(901, ack=104, flags=answer | ACK),
            dialled(104, flags=RST | ACK),
        )
    )
    assert [p.end for p in found.pieces() if p.side == 0] == [None, "fin"]
    assert found.ends == ends


def test_a_reset_ends_its_side_and_emits_what_was_buffered(
    session: Callable[..., TcpSession],
) -> None:
    found = session(
        timed(
            dialled(103, payload=b"cd"),
            dialled(105, flags=RST | ACK),
            accepted(901, payload=b"late"),
        )
    )
    assert [(p.side, p.size, p.end) for p in found.pieces()] == [
        (0, 2, None),
        (0, 2, None),
        (0, 0, "rst"),
        (1, 4, None),
    ]
    assert found.ends == ("rst", None)


def test_zero_windows_are_spans(session: Callable[..., TcpSession]) -> None:
    found = session(
        timed(
            (10, accepted(901, window=0)),
            (12, accepted(901, window=0)),
            (15, accepted(901, window=9)),
            (20, dialled(101, window=0)),
            (21, dialled(101, flags=RST, window=0)),
        )
    ).scan_packets()
    assert found.zero_windows == (
        [(START + 20 * MS, START + 21 * MS)],
        [(START + 10 * MS, START + 15 * MS)],
    )


def test_a_window_too_small_for_what_follows_is_a_span(
    session: Callable[..., TcpSession],
) -> None:
    def seen(small: int, large: int, sent: int) -> object:
        return (
            session(
                timed(
                    (10, dialled(101, payload=b"ab")),
                    (11, accepted(901, ack=103, window=small)),
                    (500, accepted(901, ack=103, window=large)),
                    (501, dialled(103, payload=b"c" * sent)),
                )
            )
            .scan_packets()
            .zero_windows
        )

    span = (START + 11 * MS, START + 500 * MS)
    assert seen(small=100, large=2000, sent=1000) == ([], [span])
    assert seen(small=100, large=2000, sent=100) == ([], [])  # there was room for it
    assert seen(small=600, large=1100, sent=1000) == ([], [])  # hardly more room than before
    assert seen(small=100, large=400, sent=1000) == ([], [])  # beyond it: the number is scaled


def test_retransmissions_are_spans(session: Callable[..., TcpSession]) -> None:
    found = session(
        timed(
            (10, dialled(101, payload=b"abc")),
            (210, dialled(101, payload=b"abc")),
            (610, dialled(101, payload=b"abc")),
            (700, accepted(904, payload=b"later")),
            (900, accepted(901, payload=b"abc")),
        )
    ).scan_packets()
    assert found.retransmissions == (
        [(START + 10 * MS, START + 610 * MS)],
        [(START + 700 * MS, START + 900 * MS)],
    )


def test_reordering_within_three_milliseconds_is_no_retransmission(
    session: Callable[..., TcpSession],
) -> None:
    found = session(timed((10, dialled(104, payload=b"d")), (12, dialled(101, payload=b"abc"))))
    assert found.scan_packets().retransmissions == ([], [])
    assert streams(found)[0] == b"abcd"


def test_the_round_trip_is_that_of_the_handshake(session: Callable[..., TcpSession]) -> None:
    assert session(build.talk((0, b"x"), step=7 * MS)).scan_packets().rtt_ns == 14 * MS


def test_without_a_handshake_the_round_trip_is_the_quickest_acknowledgement(
    session: Callable[..., TcpSession],
) -> None:
    packets = [
        Packet(START, dialled(101, payload=b"a")),
        Packet(START + 5 * MS, accepted(901, 102, payload=b"b")),
        Packet(START + 7 * MS, dialled(102, 902, payload=b"c")),
        Packet(START + 9 * MS, accepted(902, 103)),
    ]
    assert session(packets).scan_packets().rtt_ns == 4 * MS


def test_a_retransmitted_byte_gives_no_round_trip(
    session: Callable[..., TcpSession],
) -> None:
    packets = [
        Packet(START, dialled(101, payload=b"a")),
        Packet(START + 300 * MS, dialled(101, payload=b"a")),
        Packet(START + 301 * MS, accepted(901, 102)),
    ]
    assert session(packets).scan_packets().rtt_ns is None


def test_more_than_two_missing_gibibytes_are_a_gap_and_no_retransmission(
    session: Callable[..., TcpSession],
) -> None:
    far = 101 + 5 * 2**29
    found = session(timed(dialled(101, payload=b"a"), dialled(102 + far - 101, payload=b"b")))
    assert [(p.size, p.data) for p in found.pieces()] == [(1, b"a"), (far - 101, b""), (1, b"b")]


def test_a_session_can_be_read_twice(read: Callable[..., CaptureReader]) -> None:
    (found,) = read(build.pcapng(build.talk((0, b"again"))))
    assert streams(found) == streams(found) == (b"again", b"")


def test_a_handshake_with_one_timestamp_gives_no_round_trip(
    session: Callable[..., TcpSession],
) -> None:
    """Recorders write the handshake of a connection that is already open."""
    assert session(build.talk((0, b"x"), (1, b"y"), step=0)).scan_packets().rtt_ns is None
