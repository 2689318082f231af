"""Bytes that are captured twice with different content are found; honest copies never are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ACK, PSH, Packet
from tests.capture.tcp.test_reassembly import accepted, dialled, disturbed, sessions, timed

from polymux.capture import FilePool, TcpSession, index_file, sessions_of
from polymux.capture.tcp.sessions import MAX_REMOTE_COMPARISONS


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., TcpSession]:
    def make(packets: list[Packet]) -> TcpSession:
        (found,) = sessions(packets, str(tmp_path / "capture.pcapng"))
        return found.scan_packets()

    return make


def sent(seq: int, payload: bytes) -> bytes:
    return dialled(seq, flags=ACK | PSH, payload=payload)


def test_a_retransmission_with_other_bytes_is_found_and_the_first_copy_taken(
    session: Callable[..., TcpSession],
) -> None:
    found = session(timed(sent(101, b"hello"), sent(106, b"world"), sent(101, b"heLLoworld")))
    (conflict,) = found.conflicts()
    assert (conflict.side, conflict.position) == (0, 2)
    assert b"".join(piece.data for piece in found.pieces()) == b"helloworld"


def test_a_retransmission_with_new_bytes_behind_other_ones_is_found(
    session: Callable[..., TcpSession],
) -> None:
    found = session(timed(sent(101, b"hello"), sent(104, b"LOworld")))
    (conflict,) = found.conflicts()
    assert conflict.position == 3
    assert b"".join(piece.data for piece in found.pieces()) == b"helloworld"


def test_other_bytes_behind_a_hole_are_found(session: Callable[..., TcpSession]) -> None:
    found = session(timed(sent(106, b"world"), sent(106, b"wurld"), sent(101, b"hello")))
    (conflict,) = found.conflicts()
    assert conflict.position == 6
    assert b"".join(piece.data for piece in found.pieces()) == b"helloworld"


def test_other_bytes_of_the_acceptor_are_its_own(session: Callable[..., TcpSession]) -> None:
    answer = [accepted(901, flags=ACK | PSH, payload=text) for text in (b"yes", b"no!")]
    (conflict,) = session(timed(sent(101, b"hello"), *answer)).conflicts()
    assert (conflict.side, conflict.position) == (1, 0)


def test_a_keep_alive_probe_with_any_byte_is_no_conflict(
    session: Callable[..., TcpSession],
) -> None:
    found = session(timed(sent(101, b"hello"), dialled(105, payload=b"\0")))
    assert found.conflicts() == []


@settings(max_examples=60)
@given(case=disturbed())
def test_honest_copies_are_never_conflicts(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[bytes, bytes, list[Packet]]
) -> None:
    path = str(tmp_path_factory.mktemp("honest") / "capture.pcapng")
    for found in sessions(case[2], path):
        assert found.scan_packets().conflicts() == []


def test_copies_cut_off_by_the_snap_length_are_compared_as_far_as_they_go(
    session: Callable[..., TcpSession],
) -> None:
    whole = sent(101, b"hello world")
    cut = Packet(build.START + 50 * build.MS, whole[:-6], len(whole))
    packets = [*timed(whole), cut]
    assert session(packets).conflicts() == []


def test_few_copies_are_compared_where_each_read_may_be_a_request(tmp_path: Path) -> None:
    repeats = 2 * MAX_REMOTE_COMPARISONS
    path = tmp_path / "capture.pcapng"
    copies = [sent(101, (b"hello", b"heLLo")[n % 2]) for n in range(repeats + 1)]
    path.write_bytes(build.pcapng(timed(*copies)))
    rows = index_file(path).rows
    reads: list[int] = []
    with FilePool() as pool:
        local = pool.reader(path)
        (near,) = sessions_of(rows, pool.reader)
        assert len(near.scan_packets().conflicts()) == repeats

        def remote(offset: int, size: int) -> bytes:
            reads.append(offset)
            return local(offset, size)

        (far,) = sessions_of(rows, lambda _: remote)
        found = far.scan_packets().conflicts()
        assert found == near.conflicts()[:MAX_REMOTE_COMPARISONS]
    assert len(reads) == 2 * MAX_REMOTE_COMPARISONS
