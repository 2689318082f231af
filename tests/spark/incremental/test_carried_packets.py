"""Packets that are carried to the next run: the sessions they make are those of the captures."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.analysis.tls.protocols_inside import inside_tls, talk_of
from tests.analysis.tls.tls_peers import TlsPeers, write_capture
from tests.capture import capture_builder as build
from tests.capture.capture_builder import START

from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import CaptureLimits, FlowRefs, TcpSession, index_file, sessions_of
from polymux.capture.io.file_pool import UrlFilePool
from polymux.spark.batch.reference_shuffle import FlowSelection, IndexResult, ReferenceReader
from polymux.spark.incremental.carried_packets import CarriedWriter, load_carried
from polymux.spark.incremental.open_rule import SETTLE_NS, OpenRule

HOUR = 3600 * 1_000_000_000


def facts(session: TcpSession) -> tuple[object, ...]:
    events = [(p.side, p.timestamp, p.size, p.data, p.end) for p in session.pieces()]
    return (
        session.flow, session.dialer, session.captures, session.started_at, session.ended_at,
        session.packets, session.note, session.ends, session.missing_bytes, session.zero_windows,
        session.retransmissions, session.rtt_ns, session.ordered, session.conflicts(), events,
    )  # fmt: skip


def rough(rng: Random) -> list[build.Packet]:
    """Several connections of one flow, with lost, repeated and reordered packets."""
    packets: list[build.Packet] = []
    for number in range(rng.randrange(1, 5)):
        lines = [(rng.randrange(2), rng.randbytes(rng.randrange(1, 400))) for _ in range(12)]
        packets += build.talk(
            *lines,
            isn=(rng.randrange(1 << 32), rng.randrange(1 << 32)),
            start=START + number * HOUR,
            close=rng.random() < 0.6,
        )
    packets = [packet for packet in packets if rng.random() < 0.95]
    packets += [packet for packet in packets if rng.random() < 0.1]
    return sorted(packets, key=lambda packet: packet.at + rng.randrange(-2, 3) * 1_000_000)


def carried(rows: list[FlowRefs], folder: Path, rule: OpenRule) -> list[FlowRefs]:
    """The rows of open sessions, carried once; their payload is found by `reader`."""
    folder.mkdir()
    with UrlFilePool(CaptureLimits(), copies=COPIES) as files:
        with CarriedWriter(folder) as writer:
            writer.add(rule.open_sessions(sessions_of(rows, files.reader)), files)
    if not writer.files:
        return []
    refs, payload = map(str, writer.files)
    packed = load_carried([refs], [payload], str(folder), 1024, frozenset(), frozenset())
    name = IndexResult.unpack(packed).name
    reader = ReferenceReader(str(folder), [name], FlowSelection(range(1024)))
    COPIES.update(reader.copies)
    return [row for flow in reader for row in flow.rows()]


COPIES: dict[str, str] = {}


@pytest.mark.parametrize("seed", range(20))
def test_a_flow_cut_anywhere_and_carried_twice_has_the_same_sessions(
    seed: int, tmp_path: Path
) -> None:
    rng = Random(seed)
    packets = rough(rng)
    cuts = sorted(rng.sample(range(1, len(packets)), 2))
    pieces = [packets[: cuts[0]], packets[cuts[0] : cuts[1]], packets[cuts[1] :]]
    paths = [tmp_path / f"{number}.pcapng" for number in range(3)]
    for path, piece in zip(paths, pieces, strict=True):
        path.write_bytes(build.pcapng(piece))
    COPIES.clear()
    rows: list[FlowRefs] = []
    found: dict[tuple[bytes, int], tuple[object, ...]] = {}
    for number, path in enumerate(paths):
        rows += index_file(str(path)).rows
        rule = OpenRule({"default": max(packet.at for packet in pieces[number])})
        with UrlFilePool(CaptureLimits(), copies=COPIES) as files:
            for session in sessions_of(rows, files.reader):
                found[session.flow, session.started_at] = facts(session)
        rows = carried(rows, tmp_path / f"state-{number}", rule)
    with UrlFilePool(CaptureLimits()) as files:
        whole = [row for path in paths for row in index_file(str(path)).rows]
        expected = [facts(session) for session in sessions_of(whole, files.reader)]
    assert sorted(found.values(), key=repr) == sorted(expected, key=repr)


def test_connections_alive_at_once_in_a_capture_are_carried_as_they_are(tmp_path: Path) -> None:
    one = build.talk(*[(n % 2, b"one%d" % n) for n in range(9)], close=False)
    two = build.talk(*[(n % 2, b"two%d" % n) for n in range(9)], isn=(1 << 30, 3 << 30))
    turns = [packet for pair in zip(one, two[: len(one)], strict=True) for packet in pair]
    path = tmp_path / "a.pcapng"
    path.write_bytes(
        build.pcapng([build.Packet(START + n * 1000, turn.data) for n, turn in enumerate(turns)])
    )
    COPIES.clear()
    rows = index_file(str(path)).rows
    with UrlFilePool(CaptureLimits()) as files:
        expected = [facts(session) for session in sessions_of(rows, files.reader)]
    rows = carried(rows, tmp_path / "state", OpenRule({"default": START}))
    with UrlFilePool(CaptureLimits(), copies=COPIES) as files:
        assert [facts(session) for session in sessions_of(rows, files.reader)] == expected
    assert len(expected) == 2


def test_a_session_is_carried_until_it_has_ended_or_was_silent_for_long(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(build.pcapng(build.talk((0, b"open"), close=False)))
    ended = tmp_path / "b.pcapng"
    ended.write_bytes(build.pcapng(build.talk((0, b"over"))))

    def is_open(file: Path, later: int) -> bool:
        with UrlFilePool(CaptureLimits()) as files:
            sessions = sessions_of(index_file(str(file)).rows, files.reader)
            rule = OpenRule({"default": sessions[0].ended_at + later}, carry_ns=HOUR)
            return bool(rule.open_sessions(sessions))

    assert is_open(path, 0)
    assert is_open(path, HOUR)
    assert not is_open(path, HOUR + 1)
    assert is_open(ended, SETTLE_NS)
    assert not is_open(ended, SETTLE_NS + 1)


def test_the_secrets_of_carried_tls_sessions_are_carried_and_no_others(tmp_path: Path) -> None:
    conversation = inside_tls(talk_of("mplex", 3))
    path = tmp_path / "talk.pcapng"
    write_capture(path, conversation)
    mine, keys = KeyLog(), KeyLog()
    mine.add_text(conversation.key_log)
    for text in (conversation.key_log, TlsPeers().finish().key_log):
        keys.add_text(text)
    with UrlFilePool(CaptureLimits()) as files, CarriedWriter(tmp_path, keys) as writer:
        writer.add(sessions_of(index_file(str(path)).rows, files.reader), files)
    assert len(mine.client_randoms()) < len(keys.client_randoms())
    assert writer.secrets == mine.to_text()
