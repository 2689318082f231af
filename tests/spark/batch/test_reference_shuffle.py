"""References that stay in their files: reading them in pieces gives the same sessions."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.capture import capture_builder as build
from tests.spark.random_captures import conversations, record

from polymux.capture import (
    CaptureLimits,
    FilePool,
    FileRange,
    FlowRefs,
    TcpSession,
    index_file,
    index_range,
    sessions_of,
)
from polymux.capture.packets import indexer as capture_index
from polymux.capture.packets.packet_refs import REF_BYTES
from polymux.capture.tcp.flow_order import MAX_PAGES_IN_MEMORY, PAGE_ENTRIES, WINDOW_RECORDS
from polymux.core.errors import PolymuxError
from polymux.spark.batch import reference_shuffle as exchange
from polymux.spark.batch.reference_shuffle import (
    FlowSelection,
    ReferenceLocation,
    ReferenceReader,
    ReferenceWriter,
    StoredFlow,
    TempSpool,
    bucket_of,
)

FLOW = bytes(30) + b"\x40\x00" + bytes(2) + b"\x23\x28"
SYN, ACK = 2, 16
START = 1_700_000_000_000_000_000


def flow_of(packets: int, files: int, seed: int) -> list[FlowRefs]:
    """A flow of one session, its packets spread over files that follow one another."""
    rng = np.random.default_rng(seed)
    side = (rng.random(packets) < 0.4).astype(np.int64)
    side[:2] = 0, 1
    size = rng.integers(0, 3, packets) * 50
    size[:2] = 0
    grown = np.stack([np.where(side == which, size, 0).cumsum() for which in (0, 1)])
    before = grown - np.stack([np.where(side == which, size, 0) for which in (0, 1)])
    each = np.arange(packets)
    seq = 1 + before[side, each]
    seq[:2] = 0
    ack = 1 + before[1 - side, each]
    flags = np.full(packets, ACK)
    flags[0], flags[1] = SYN, SYN | ACK
    record = np.stack(
        [
            ((each * 200 + 100) << 20) | size,
            START + each * 1000,
            (seq << 32) | ack,
            (flags << 16) | 512,
        ],
        axis=1,
    ).astype("<i8")
    rows = []
    cuts = [packets * n // files for n in range(files + 1)]
    for number in range(files):
        for direction in (0, 1):
            chosen = record[cuts[number] : cuts[number + 1]]
            chosen = chosen[side[cuts[number] : cuts[number + 1]] == direction]
            if len(chosen):
                first, last = int(chosen[0][1]), int(chosen[-1][1])
                refs = chosen.tobytes()
                rows.append(FlowRefs(FLOW, direction, f"file {number}", 24, first, last, refs))
    return rows


def only(flow: bytes) -> FlowSelection:
    """A task for one flow."""
    bucket = bucket_of(flow)
    return FlowSelection(range(bucket, bucket + 1), frozenset({flow}), only_flows=True)


def open_reader(_: str) -> Callable[[int, int], bytes]:
    return lambda offset, size: bytes(size)


def seen(session: TcpSession) -> tuple[object, ...]:
    """Everything that an analysis reads of a session."""
    digest = sha256()
    rows = 0
    for batch in session.batches(1 << 20):
        rows += batch.count
        for column in (batch.side, batch.kind, batch.timestamp, batch.size):
            digest.update(bytes(memoryview(column).cast("B")[: batch.count * 8]))
    return (
        digest.hexdigest(),
        rows,
        session.started_at,
        session.ended_at,
        session.packets,
        session.captures,
        session.reassembled_bytes,
        session.missing_bytes,
        session.ends,
        session.rtt_ns,
        session.note,
    )


def stored(staging: Path, rows: list[FlowRefs]) -> StoredFlow:
    """The rows as an index task writes them."""
    with ReferenceWriter(str(staging)) as writer:
        writer.add(rows)
    (flow,) = ReferenceReader(str(staging), [writer.result.name], only(FLOW))
    return flow


@pytest.mark.parametrize("files", [1, 3])
def test_a_walk_over_stored_references_sees_what_one_over_all_of_them_sees(
    files: int, tmp_path: Path
) -> None:
    packets = PAGE_ENTRIES * (MAX_PAGES_IN_MEMORY + 2) + 5
    rows = flow_of(packets, files, files)
    (whole,) = sessions_of(rows, open_reader)
    flow = stored(tmp_path, rows)
    assert flow.stored_bytes == packets * 32 > exchange.MAX_HELD_REF_BYTES
    assert flow.held_bytes == exchange.MAX_HELD_REF_BYTES
    assert max(row.packets for row in flow.rows()) > WINDOW_RECORDS
    assert all(row.refs == b"" for row in flow.rows())
    with TempSpool() as spool:
        (session,) = sessions_of(flow.rows(), open_reader, spool=spool.open)
        found = seen(session)
        assert session.scan_packets().packets == packets
        assert seen(session) == found
    assert found == seen(whole)
    assert [path.suffix for path in (tmp_path / "index").iterdir() if path.suffix == ".part"] == []


def test_files_that_overlap_are_merged_whatever_is_in_memory_of_them(tmp_path: Path) -> None:
    rows = flow_of(40_000, 40, 5)
    rng = Random(5)
    late = [
        row._replace(file=f"{row.file} again", refs=row.refs[: 32 * rng.randint(1, row.packets)])
        for row in rows
    ]
    (whole,) = sessions_of([*rows, *late], open_reader)
    given = [
        row._replace(refs=b"", records=row.packets, stored=_reader(row.refs))
        for row in [*rows, *late]
    ]
    (session,) = sessions_of(given, open_reader)
    assert seen(session) == seen(whole)


def test_a_cut_before_a_packet_that_ends_a_part_without_payload_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqs = [(100, SYN, b""), (101, ACK, b"hello"), (106, ACK, b""), (106, ACK, b"world")]
    frames = [
        build.frame(build.ALICE, build.BOB, seq, 0, flags, payload) for seq, flags, payload in seqs
    ]
    packets = [build.Packet(START + n, frame) for n, frame in enumerate(frames)]
    path = tmp_path / "a.pcap"
    path.write_bytes(build.pcap(packets))
    limits = CaptureLimits(
        read_window_bytes=len(build.pcap(packets[:3]))
    )  # it ends behind the third
    monkeypatch.setattr(capture_index, "EMIT_PACKETS", 3)
    monkeypatch.setattr(exchange, "MAX_ROW_REF_BYTES", REF_BYTES * 2)
    with ReferenceWriter(str(tmp_path)) as writer:
        writer.add(index_range(str(path), FileRange(), limits=limits, emit=writer.add).rows)
    (flow,) = writer.result.heavy_flow_costs
    (found,) = ReferenceReader(str(tmp_path), [writer.result.name], only(flow))
    rows = found.rows()
    assert [row.packets for row in rows] == [2, 1, 1]
    with FilePool(limits) as files:
        (session,) = sessions_of(rows, files.reader, limits=limits)
        assert b"".join(piece.data for piece in session.pieces()) == b"helloworld"
    assert session.packets == 4


def _reader(refs: bytes) -> Callable[[int, int], bytes]:
    return lambda start, size: refs[start : start + size]


def test_references_that_are_gone_say_which_file_they_were_in(tmp_path: Path) -> None:
    flow = stored(tmp_path, flow_of(200_000, 1, 1))
    path = flow.locations[0].path
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(PolymuxError, match=f"{path.name}: is shorter"):
        sessions_of(flow.rows(), open_reader)


def test_a_small_flow_is_read_at_once(tmp_path: Path) -> None:
    flow = stored(tmp_path, flow_of(1000, 1, 1))
    assert flow.held_bytes == flow.stored_bytes == 32_000
    assert sum(len(row.refs) for row in flow.rows()) == 32_000
    assert isinstance(flow.locations[0], ReferenceLocation)


def test_an_index_that_hands_rows_on_finds_what_one_that_keeps_them_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = tmp_path / "all.pcapng"
    record([capture], conversations(40, 12))
    whole = index_file(str(capture))
    monkeypatch.setattr(capture_index, "EMIT_PACKETS", 50)
    handed: list[list[FlowRefs]] = []
    limits = CaptureLimits(read_window_bytes=3000)
    rest = index_range(str(capture), FileRange(), limits=limits, emit=handed.append)
    assert rest.summary == whole.summary
    assert len(handed) > 3
    pieces = [row for rows in (*handed, rest.rows) for row in rows]
    for row in whole.rows:
        mine = [each for each in pieces if (each.flow, each.direction) == (row.flow, row.direction)]
        assert b"".join(each.refs for each in mine) == row.refs
        assert [each.start for each in mine] == sorted({each.start for each in mine})
    with FilePool() as files:
        for flow in {row.flow for row in whole.rows}:
            (once,) = sessions_of([row for row in whole.rows if row.flow == flow], files.reader)
            (more,) = sessions_of([row for row in pieces if row.flow == flow], files.reader)
            assert seen(once) == seen(more)
