"""The tables of a session inside TLS are those of the same session without TLS."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import Found, Record, Row, analyse, save
from tests.analysis.tls.protocols_inside import inside_tls, talk_of, websocket_talk
from tests.analysis.tls.tls_peers import SERVER_NAME, Conversation, TlsPeers, write_capture

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.tls.key_log import KeyLog, read_key_logs
from polymux.capture import read_sessions

TIMES_AND_PLACES = {
    "session_id", "time", "byte_offset", "opened_at", "accepted_at", "closed_at", "started_at",
    "bucket", "window_limit_bps_dialer", "window_limit_bps_acceptor", "throughput_bps_dialer",
    "throughput_bps_acceptor", "first_at_dialer", "first_at_acceptor", "last_at_dialer",
    "last_at_acceptor", "blocked_us_dialer", "blocked_us_acceptor", "stalled_us_dialer",
    "stalled_us_acceptor", "hol_blocked_us_dialer", "hol_blocked_us_acceptor",
}  # fmt: skip
TALKS = {
    "mplex": talk_of("mplex"),
    "nerdbank": talk_of("nerdbank:version=3"),
    "omnistreams": talk_of("omnistreams"),
    "websocket": websocket_talk(),
}


def keys_of(*key_logs: bytes) -> AnalysisOptions:
    """All tables, with these key logs."""
    return AnalysisOptions(keys=KeyLog().merged(key_logs)).with_content()


def without_times(rows: list[Row]) -> list[Row]:
    return [{k: v for k, v in row.items() if k not in TIMES_AND_PLACES} for row in rows]


def same_tables(plain: Found, opened: Found) -> None:
    for table in ("frames", "streams", "violations", "content", "requests"):
        assert without_times(opened.rows(table)) == without_times(plain.rows(table)), table
    for name in ("protocol", "version", "dialect", "frames", "streams", "violations", "ending"):
        assert getattr(plain.session, name) == getattr(opened.session, name), name
    for side in ("dialer", "acceptor"):
        for name in ("payload_bytes", "missing_bytes", "undecoded_bytes"):
            column = f"{name}_{side}"
            assert getattr(plain.session, column) == getattr(opened.session, column)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("protocol", TALKS)
def test_tables_are_equal(protocol: str, version: ssl.TLSVersion, tmp_path: Path) -> None:
    record: Record = TALKS[protocol]
    plain = analyse(save(tmp_path / "plain.pcapng", record, record[-1][2] + 1), plan=keys_of(b""))
    conversation = inside_tls(record, TlsPeers(version))
    write_capture(tmp_path / "tls.pcapng", conversation)
    opened = analyse(str(tmp_path / "tls.pcapng"), plan=keys_of(conversation.key_log))
    same_tables(plain, opened)
    session = opened.session
    assert session.balanced
    assert plain.session.frames > 2
    assert session.server_name == SERVER_NAME
    assert session.tls is not None
    assert session.tls_unopened == 0
    assert session.tls_records
    assert session.tls_handshake_us
    assert session.overhead_bytes_dialer > plain.session.overhead_bytes_dialer + 200


@pytest.mark.parametrize("protocol", TALKS)
def test_offsets_of_frames_point_into_the_capture(protocol: str, tmp_path: Path) -> None:
    record = TALKS[protocol]
    conversation = inside_tls(record)
    write_capture(tmp_path / "tls.pcapng", conversation)
    plain = analyse(save(tmp_path / "plain.pcapng", record, record[-1][2] + 1))
    opened = analyse(str(tmp_path / "tls.pcapng"), plan=keys_of(conversation.key_log))
    for side, sender in enumerate(("dialer", "acceptor")):
        wire = b"".join(data for who, data in conversation.flights if who == side)
        # Where each byte of application data is: the last records of the direction.
        places: list[int] = []
        position = 0
        while position < len(wire):
            size = int.from_bytes(wire[position + 3 : position + 5], "big")
            if wire[position] == 23:
                places += range(position + 5, position + 5 + size - 17)
            position += 5 + size
        places = places[-len(conversation.sent[side]) :]
        expected = [row["byte_offset"] for row in plain.rows("frames") if row["sender"] == sender]
        found = [row["byte_offset"] for row in opened.rows("frames") if row["sender"] == sender]
        assert found == [places[offset] for offset in expected if isinstance(offset, int)]


def test_without_its_secret_a_session_is_a_row_with_the_reason(tmp_path: Path) -> None:
    conversation = inside_tls(TALKS["mplex"])
    write_capture(tmp_path / "tls.pcapng", conversation)
    for plan in (keys_of(b""), AnalysisOptions("mplex")):
        session = analyse(str(tmp_path / "tls.pcapng"), plan=plan).session
        assert (session.protocol, session.ending) == (None, "undecodable")
        assert "no secret for this session" in (session.note or "")
        assert session.tls == "1.3 TLS_AES_256_GCM_SHA384"
        assert session.server_name == SERVER_NAME
        assert session.balanced
        assert session.violations == 0


def test_a_named_protocol_is_read_inside_tls(tmp_path: Path) -> None:
    conversation = inside_tls(TALKS["mplex"])
    write_capture(tmp_path / "tls.pcapng", conversation)
    keys = KeyLog().merged([conversation.key_log])
    session = analyse(
        str(tmp_path / "tls.pcapng"), plan=AnalysisOptions("mplex", keys=keys)
    ).session
    assert (session.protocol, session.ending, session.note) == ("mplex", "clean", None)


def test_frames_after_a_lost_packet_are_decoded_and_no_peer_is_blamed(tmp_path: Path) -> None:
    record = talk_of("mplex", 6)
    conversation = inside_tls(record)
    packets = conversation.packets()
    plan = keys_of(conversation.key_log)
    write_capture(tmp_path / "whole.pcapng", conversation)
    whole = analyse(str(tmp_path / "whole.pcapng"), plan=plan).rows("frames")
    sent = [0, 0]
    ends = []  # side, and where each packet ends in the bytes of its side
    for side, data in packets:
        sent[side] += len(data)
        ends.append((side, sent[side]))
    records = [record_ranges(conversation, side) for side in (0, 1)]
    for number in random.Random(9).sample(range(8, len(packets)), 200):
        path = tmp_path / f"{number}.pcapng"
        write_capture(path, conversation, lost=frozenset({number}))
        found = analyse(str(path), plan=plan)
        session = found.session
        assert session.balanced, session.note
        assert session.ending == "gap"
        assert found.rows("violations") == []
        side, end = ends[number]
        start = end - len(packets[number][1])
        touched = [record for record in records[side] if record[0] < end and record[1] > start]
        assert session.tls_unopened is not None
        assert 1 <= session.tls_unopened <= len(touched) + 1
        decoded = {placed(row) for row in found.rows("frames")}
        for row in whole:
            # A frame of the other side, or that begins behind the records that were touched.
            other = row["sender"] != ("dialer", "acceptor")[side]
            if other or int(str(row["byte_offset"])) >= touched[-1][1]:
                assert placed(row) in decoded, (number, row)


def record_ranges(conversation: Conversation, side: int) -> list[tuple[int, int]]:
    """Where each record of a side begins and ends in its bytes."""
    wire = b"".join(data for sender, data in conversation.flights if sender == side)
    ranges, position = [], 0
    while position < len(wire):
        end = position + 5 + int.from_bytes(wire[position + 3 : position + 5], "big")
        ranges.append((position, end))
        position = end
    return ranges


def placed(row: Row) -> tuple[object, ...]:
    """What a frame is, and where."""
    return row["sender"], row["byte_offset"], row["size"], row["kind"], row["stream"]


def test_secrets_give_the_same_tables_wherever_they_stand(tmp_path: Path) -> None:
    """First, in the middle or last in the capture, in a file, or in one of 1,000 of a folder."""
    conversation = inside_tls(TALKS["nerdbank"])
    count = len(conversation.packets())
    (tmp_path / "keys.log").write_bytes(conversation.key_log)
    (tmp_path / "keys").mkdir()
    other = TlsPeers().finish().key_log
    for number in range(1000):
        text = conversation.key_log if number == 617 else other
        (tmp_path / "keys" / f"{number}.log").write_bytes(text)
    tables = []
    for secrets_at, named in (
        (0, ""),
        (count // 2, ""),
        (count, ""),
        (-1, "keys.log"),
        (-1, "keys"),
    ):
        path = tmp_path / f"{secrets_at}{named}.pcapng"
        write_capture(path, conversation, secrets={secrets_at: conversation.key_log})
        keys = read_key_logs([str(tmp_path / named)] if named else [])
        with read_sessions([str(path)]) as reading:
            assert bool(reading.secrets) == (not named)
            plan = AnalysisOptions(keys=keys).with_content().with_secrets(reading.secrets)
        found = analyse(str(path), plan=plan)
        assert found.session.protocol == "nerdbank"
        tables.append([found.rows(table) for table in ("frames", "streams", "content", "requests")])
    assert tables == [tables[0]] * 5
    assert all(tables[0][:3])
