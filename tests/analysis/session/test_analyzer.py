"""The rows of a captured session are those that both applications would have written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import (
    ACCEPTOR,
    MS,
    START,
    Found,
    Record,
    Stage,
    analyse,
    save,
)

from polymux.analysis.options import DEFAULT_TABLES, AnalysisOptions
from polymux.analysis.output.arrow_batches import decode_dictionaries
from polymux.analysis.schema.tables import TABLES
from polymux.core.frames import Frame
from polymux.protocols.mplex.protocol import MESSAGE_INITIATOR
from polymux.testing.simulator import Simulation

PROTOCOLS = ("mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3")


def talk(protocol: str) -> Stage:
    """Two streams, one opened by each side, both used in both directions and ended."""
    stage = Stage(protocol)
    for side, name in ((0, b"logs"), (1, b"metrics")):
        stream = stage.open(side, name)
        stage.exchange()
        if protocol != "mplex":
            stage.accept(1 - side)
            stage.exchange()
        stage.wait(2 * MS)
        stage.send(side, stream, b"a" * (30_000 + side))
        stage.exchange()
        stage.wait(3 * MS)
        peer = stage.peer_stream(side, stream)
        stage.send(1 - side, peer, b"b" * (500 + side))
        stage.exchange()
        stage.end(side, stream)
        stage.end(1 - side, peer)
        stage.exchange()
    return stage


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_streams_carry_what_both_applications_counted(protocol: str, tmp_path: Path) -> None:
    stage = talk(protocol)
    found = analyse(stage.save(tmp_path / "a.pcapng"))
    streams = {str(row["stream"]): row for row in found.rows("streams")}
    assert len(streams) == 2
    for label, row in streams.items():
        for side, word in enumerate(("dialer", "acceptor")):
            assert (
                row[f"bytes_{word}"] == stage.sent[label, side] == len(stage.received[label, side])
            )
        assert row["ending"] == "clean"
        assert row["ended_dialer"] == row["ended_acceptor"] == "ended"
    assert [row["name"] for row in streams.values()] == ["logs", "metrics"]
    assert [row["opener"] for row in streams.values()] == ["dialer", "acceptor"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_session_row_sums_up_the_other_tables(protocol: str, tmp_path: Path) -> None:
    found = analyse(talk(protocol).save(tmp_path / "a.pcapng"))
    session, frames = found.session, found.rows("frames")
    assert session.protocol == protocol.partition(":")[0]
    assert session.version == (protocol[-1] if ":" in protocol else None)
    assert (session.dialer, session.acceptor) == ("192.0.2.1:40000", "198.51.100.2:9000")
    assert session.frames == len(frames)
    assert session.streams == len(found.rows("streams")) == 2
    assert session.ending == "clean"
    assert session.violations == len(found.rows("violations")) == 0
    assert session.balanced
    for side in ("dialer", "acceptor"):
        sizes = sum(int(str(row["size"])) for row in frames if row["sender"] == side)
        assert getattr(session, f"bytes_{side}") == sizes
        payload = sum(int(str(row[f"bytes_{side}"])) for row in found.rows("streams"))
        assert getattr(session, f"payload_bytes_{side}") == payload


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_table_has_exactly_the_columns_that_are_designed(
    protocol: str, tmp_path: Path
) -> None:
    stage = talk(protocol)
    stage.wait(200 * MS)
    stream = stage.open(0, b"late")
    stage.exchange()
    if protocol != "mplex":
        stage.accept(1)
        stage.exchange()
    stage.wait(200 * MS)
    stage.send(0, stream, b"x" * 10)
    stage.exchange()
    stage.record.append((0, b"\xc1" if protocol != "mplex" else b"\x0f\x00", stage.now))
    found = analyse(stage.save(tmp_path / "a.pcapng"), plan=AnalysisOptions().with_content())
    assert set(found.batches) == (DEFAULT_TABLES | {"content"}) - {
        "requests"
    }  # only Streamux has them
    for table, batches in found.batches.items():
        for batch in batches:
            exact = decode_dictionaries(table, batch)
            assert exact.schema.equals(TABLES[table].to_arrow())
            exact.validate(full=True)


def test_frames_have_their_place_size_and_order(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    stage.wait(MS)
    stage.send(0, stream, b"hello")
    stage.exchange()
    frames = analyse(stage.save(tmp_path / "a.pcapng")).rows("frames")
    assert [
        (f["frame_index"], f["byte_offset"], f["size"], f["payload_bytes"]) for f in frames
    ] == [
        (0, 0, 3, 1),
        (1, 3, 7, 5),
    ]
    assert [f["kind"] for f in frames] == ["NewStream", "MessageInitiator"]
    assert [f["stream"] for f in frames] == ["d1", "d1"]
    assert all(f["verdict"] == "clean" and f["amount"] is None for f in frames)


def test_a_planted_violation_is_found_on_its_stream(tmp_path: Path) -> None:
    stage = Stage("mplex")
    first, second = stage.open(0, b"good"), stage.open(0, b"bad")
    stage.send(0, first, b"fine")
    stage.end(0, second)
    stage.exchange()
    stage.ends[0].send_frame(Frame(MESSAGE_INITIATOR, second.key, b"too late"), force=True)
    data = stage.ends[0].data_to_send()
    stage.record.append((0, data, stage.now))
    found = analyse(stage.save(tmp_path / "a.pcapng"))
    (row,) = found.rows("violations")
    assert (row["rule"], row["stream"], row["sender"]) == (
        "mplex.write-after-close", second.label(), "dialer",
    )  # fmt: skip
    assert (row["origin"], row["severity"], row["certainty"]) == ("spec", "error", "certain")
    (frame,) = [f for f in found.rows("frames") if f["verdict"] == "violation"]
    assert (frame["sender"], frame["frame_index"]) == (row["sender"], row["frame_index"])
    assert found.session.violations == found.session.findings == 1
    assert found.stream(second.label())["bytes_dialer"] == 0
    assert found.session.ending == "clean"


def test_blocked_time_is_counted_from_the_last_byte_to_the_grant(tmp_path: Path) -> None:
    stage = Stage("nerdbank:version=3")
    stream = stage.open(0, b"starved", window=1000)
    stage.exchange()
    stage.accept(1, window=1000)
    stage.exchange()
    stage.reading = False
    stage.send(0, stream, b"x" * 1500)
    stage.exchange()
    stage.wait(700 * MS)
    stage.reading = True
    stage.ends[1].read(stage.peer_stream(0, stream), 1000)
    stage.exchange()
    stage.wait(20 * MS)
    stage.end(0, stream)
    stage.exchange()
    found = analyse(stage.save(tmp_path / "a.pcapng"))
    row = found.stream("d1")
    assert row["blocked_us_dialer"] == 700_000
    assert row["blocked_us_acceptor"] == 0
    assert row["peak_in_flight_bytes_dialer"] == 1000
    assert row["credit_granted_dialer"] == 2500  # the window, and 1000 and 500 acknowledged
    assert row["bytes_dialer"] == 1500
    (stall,) = [s for s in found.rows("stalls") if s["cause"] != "sender-idle"]
    assert (stall["cause"], stall["stream"], stall["sender"]) == ("no-credit", "d1", "dialer")
    assert stall["duration_us"] == 700_000


def test_a_gap_inside_a_frame_is_skipped_and_noted(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    stage.send(0, stream, b"m" * 60_000)
    stage.exchange()
    stage.wait(MS)
    stage.send(0, stream, b"after")
    stage.exchange()
    whole = stage.record
    (side, data, at) = whole[1]
    path = str(tmp_path / "gap.pcapng")
    _save_with_hole(path, whole, hole=(1, 20_000, 30_000))
    found = analyse(path)
    assert side == 0
    assert found.session.bytes_dialer == sum(len(d) for s, d, _ in whole if s == 0)
    assert found.stream("d1")["bytes_dialer"] == 60_005
    assert found.session.ending == "gap"
    assert "10000 bytes of the dialer were not captured" in (found.session.note or "")
    assert found.session.missing_bytes_dialer == 0
    assert found.session.balanced
    assert found.rows("violations") == []
    assert len(data) > 30_000
    assert at >= START


def test_decoding_continues_after_a_gap_between_frames(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    for _ in range(20):
        stage.wait(MS)
        stage.send(0, stream, b"m" * 100)
        stage.exchange()
    path = str(tmp_path / "gap.pcapng")
    _save_with_hole(path, stage.record, hole=(5, 0, 102))
    found = analyse(path)
    assert found.session.ending == "gap"
    assert found.session.missing_bytes_dialer == 102
    assert found.session.undecoded_bytes_dialer == 0
    assert found.session.balanced
    assert "102 bytes of the dialer were not captured" in (found.session.note or "")
    assert found.stream("d1")["bytes_dialer"] == 19 * 100
    assert len(found.rows("frames")) == 20


def _save_with_hole(path: str, record: Record, hole: tuple[int, int, int]) -> None:
    """Write a recording of which bytes begin:end of one chunk were not captured."""
    from polymux.capture import PcapngWriter, TcpConnectionWriter
    from polymux.capture.synthesis.packet_builder import PacketBurst

    class Leaky(PcapngWriter):
        drop = False

        def burst(self, burst: PacketBurst) -> None:
            if not self.drop:
                super().burst(burst)

    chunk, begin, end = hole
    writer = Leaky(path, sync="none")
    scribe = TcpConnectionWriter(writer, ("192.0.2.1", 40000), ACCEPTOR, START)
    for number, (side, data, at) in enumerate(record):
        if number != chunk:
            scribe.data(side, data, at)
            continue
        for part, lost in ((data[:begin], False), (data[begin:end], True), (data[end:], False)):
            writer.drop = lost
            scribe.data(side, part, at)
        writer.drop = False
    scribe.close(record[-1][2] + 4_000 * MS)
    writer.close()


def test_a_session_without_its_start_lists_its_streams_and_blames_neither_side(
    tmp_path: Path,
) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    for _ in range(30):
        stage.wait(MS)
        stage.send(0, stream, b"m" * 100)
        stage.exchange()
    path = stage.save(tmp_path / "whole.pcapng")
    from polymux.capture import index_file

    whole = Path(path).read_bytes()
    assert index_file(path).summary.packets > 10
    # Leave out the handshake and the first frames: the file's head, then what follows packet 8.
    head = _blocks(whole)[:2]
    late = tmp_path / "late.pcapng"
    late.write_bytes(b"".join(head + _blocks(whole)[10:]))
    found = analyse(str(late), plan=AnalysisOptions(ports={9000: "mplex"}))
    assert "its start was not captured" in (found.session.note or "")
    assert found.session.balanced
    assert found.session.frames > 10
    assert found.rows("violations") == []
    listed = found.stream("d1")
    assert listed["opened_at"] is None
    assert listed["bytes_dialer"] == 100 * found.session.frames
    assert "1 stream was opened by frames that were not captured" in str(found.session.note)


def test_bytes_before_the_first_whole_frame_are_skipped_when_the_start_is_missing(
    tmp_path: Path,
) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    stage.send(0, stream, bytes(range(7, 247)) * 600)
    stage.exchange()
    for _ in range(10):
        stage.wait(MS)
        stage.send(0, stream, b"m" * 100)
        stage.exchange()
    path = stage.save(tmp_path / "whole.pcapng")
    blocks = _blocks(Path(path).read_bytes())
    late = tmp_path / "late.pcapng"
    late.write_bytes(b"".join(blocks[:2] + blocks[7:]))  # inside the long message
    found = analyse(str(late), plan=AnalysisOptions(ports={9000: "mplex"}))
    messages = [f for f in found.rows("frames") if f["payload_bytes"] == 100]
    assert len(messages) == 10
    assert found.session.undecoded_bytes_dialer > 0
    assert found.session.balanced


def _blocks(data: bytes) -> list[bytes]:
    """The blocks of a pcapng file."""
    blocks, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        blocks.append(data[at : at + size])
        at += size
    return blocks


def test_a_port_used_again_is_another_session(tmp_path: Path) -> None:
    stages = [talk("mplex"), talk("mplex")]
    later = [(side, data, at + 60_000 * MS) for side, data, at in stages[1].record]
    save(tmp_path / "1.pcapng", stages[0].record, stages[0].now + MS)
    save(tmp_path / "2.pcapng", later, stages[1].now + 60_001 * MS, start=START + 60_000 * MS)
    found = analyse(str(tmp_path))
    assert len(found.sessions) == 2
    assert len({session.session_id for session in found.sessions}) == 2
    assert [session.ending for session in found.sessions] == ["clean", "clean"]
    assert len(found.rows("streams")) == 4


def test_ids_of_sessions_are_the_same_on_every_run(tmp_path: Path) -> None:
    path = talk("mplex").save(tmp_path / "a.pcapng")
    first, second = analyse(path), analyse(path)
    assert first.session.session_id == second.session.session_id
    assert len(first.session.session_id) == 16
    assert int(first.session.session_id, 16) > 0


def test_an_end_inside_a_frame_is_truncated(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    stage.send(0, stream, b"m" * 100)
    stage.exchange()
    side, data, at = stage.record[-1]
    stage.record[-1] = (side, data[:50], at)
    found = analyse(stage.save(tmp_path / "a.pcapng"))
    assert found.session.ending == "truncated"
    (row,) = found.rows("violations")
    assert (row["rule"], row["severity"]) == ("mplex.truncated", "warning")
    assert found.session.undecoded_bytes_dialer == 50


def test_a_session_whose_end_was_not_captured_ends_unknown(tmp_path: Path) -> None:
    stage = talk("mplex")
    found = analyse(save(tmp_path / "a.pcapng", stage.record))
    assert found.session.ending == "unknown"


def test_bytes_of_no_known_protocol_are_counted_and_named_so(tmp_path: Path) -> None:
    record = [(0, b"\x16\x03\x01\x00\x05hello", START + MS), (1, b"\x16\x03\x03\x00\x02ok", START)]
    found = analyse(save(tmp_path / "a.pcapng", record, START + 2 * MS))
    session = found.session
    assert session.protocol is None
    assert "TLS" in (session.evidence or "")
    assert (session.undecoded_bytes_dialer, session.undecoded_bytes_acceptor) == (10, 7)
    assert session.ending == "undecodable"
    assert "--protocol" in (session.note or "")


def test_a_session_without_bytes_is_a_row_too(tmp_path: Path) -> None:
    found = analyse(save(tmp_path / "a.pcapng", [], START + MS))
    assert found.session.bytes_dialer == found.session.frames == 0
    assert found.session.ending == "clean"


def test_only_the_tables_that_are_wanted_are_made(tmp_path: Path) -> None:
    path = talk("mplex").save(tmp_path / "a.pcapng")
    found = analyse(path, plan=AnalysisOptions(tables=frozenset({"streams"})))
    assert set(found.batches) == {"streams"}
    assert found.session.frames > 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(4))
def test_random_honest_traffic_is_counted_as_its_endpoints_count_it(
    protocol: str, seed: int, tmp_path: Path
) -> None:
    world = Simulation(protocol, seed)
    world.run(250)
    record = [(side, data, START + at) for side, data, at in world.record]
    plan = AnalysisOptions(protocol)
    found = analyse(save(tmp_path / "a.pcapng", record, START + world.now + MS), plan=plan)
    assert [row for row in found.rows("violations") if row["severity"] != "note"] == []
    assert found.session.balanced
    _same_as_middle(found, world)


def _same_as_middle(found: Found, world: Simulation) -> None:
    protocol = world.middle_observer.protocol
    streams = [*protocol.streams.removed, *protocol.streams.all()]
    assert sorted(stream.label() for stream in streams) == sorted(
        str(row["stream"]) for row in found.rows("streams")
    )
    for stream in streams:
        row = found.stream(stream.label())
        for half, word in ((stream.dialer, "dialer"), (stream.acceptor, "acceptor")):
            assert row[f"bytes_{word}"] == half.content_bytes
            assert row[f"frames_{word}"] == half.frames
        assert row["ending"] == protocol.ending(stream)
