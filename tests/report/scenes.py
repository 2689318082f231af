"""Constructed tables to report on: one with every kind of finding, and one of any size."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.report.table_builder import START, Play, Stage, write_tables

from polymux.analysis.schema.tables import TABLES, TIMELINE_BUCKETS, bucket_width_us

SECOND = 1_000_000


def story() -> Stage:
    """Three sessions: one with all kinds of findings, one without any, one truncated."""
    stage = Stage()
    stage.capture("demo.pcapng", packets=5210, tcp_packets=5210, bytes=9_114_000)
    stage.capture(
        "night.pcapng", "truncated", error="block of 1,514 bytes has 211", error_offset=88_120
    )
    _busy(stage)
    _calm(stage)
    _cut(stage)
    return stage


def _busy(stage: Stage) -> None:
    chance = random.Random(7)
    play = Play(stage, "5f0c3a7be1d24c88", "nerdbank", version="3", rtt_us=80_000,
                evidence="first bytes are a version 3 offer")  # fmt: skip
    play.stream("s0", None)
    play.stream("d1", "upload/video", at=200_000, ending="clean",
                closed_at=play.started + 9 * SECOND, peak_in_flight_bytes_dialer=102_400,
                credit_granted_dialer=9_400_000, blocked_us_dialer=5_200_000)  # fmt: skip
    play.stream(
        "d3", "logs", at=400_000, peak_in_flight_bytes_dialer=65_536, credit_granted_dialer=700_000
    )
    play.stream("a2", "control", at=450_000, peak_in_flight_bytes_acceptor=9_000)
    play.stream("d5", "thumbnails", at=2 * SECOND, ending="reset", reset_by="acceptor",
                error="disk quota exceeded", closed_at=play.started + 7_300_000)  # fmt: skip
    play.stream("d7", "metrics", at=3 * SECOND, ending="clean", closed_at=play.started + 8 * SECOND)
    play.stream("a4", "notifications", at=3_400_000, ending="half-closed")
    play.stream("d9", "never answered", at=6 * SECOND, ending="never-accepted")
    for at in range(0, 8_800_000, 80_000):
        for n in range(5):
            play.frame(at + 200_000 + n * 900, "dialer", "Content", "d1", 20_480)
        play.frame(at + 280_000, "acceptor", "ContentProcessed", "d1", 4, amount=102_400)
    for at in range(400_000, 10 * SECOND, 37_000):
        if not 3_000_000 < at < 8_000_000:
            play.frame(at, "dialer", "Content", "d3", chance.randrange(100, 9_000))
    for at in range(500_000, 10 * SECOND, 210_000):
        play.frame(at, "acceptor", "Content", "a2", chance.randrange(20, 200))
        play.frame(at + 40_000, "dialer", "Content", "a2", chance.randrange(20, 200))
    for at in range(2 * SECOND, 7_300_000, 11_000):
        if not 4_100_000 < at < 4_412_000 and not 5_600_000 < at < 6_400_000:
            play.frame(at, "dialer", "Content", "d5", chance.randrange(2_000, 16_000))
    for at in range(3 * SECOND, 8 * SECOND, 100_000):
        play.frame(at, "dialer", "Content", "d7", 64)
        play.frame(at + 2_000, "acceptor", "Content", "d7", 900)
    for at in range(3_500_000, 9_500_000, 333_000):
        play.frame(at, "acceptor", "Content", "a4", chance.randrange(500, 60_000))
    play.frame(7_300_000, "acceptor", "ChannelTerminated", "d5", 24)
    play.stall(
        3_000_000, 5_000_000, "d3", "dialer", "slow-reader", detail="65,536 bytes unacknowledged"
    )
    play.stall(4_100_000, 312_000, "d5", "dialer", "head-of-line", culprit="d1")
    play.stall(5_600_000, 800_000, "d5", "dialer", "no-credit")
    play.stall(8_300_000, 450_000, "a4", "acceptor", "transport", detail="3 segments sent twice")
    play.stall(1_000_000, 900_000, "a2", "dialer", "sender-idle")
    play.stall(6_000_000, 4_000_000, "d9", "acceptor", "no-reply",
               detail="the dialer had offered it 4 s before the capture ended")  # fmt: skip
    play.violation(7_360_000, "dialer", "nerdbank.frame-after-termination", "d5",
                   detail="Content of 20 bytes 60 ms after it had read the termination",
                   kind="Content")  # fmt: skip
    play.violation(7_380_000, "dialer", "nerdbank.frame-after-termination", "d5", kind="Content",
                   detail="Content of 20 bytes 80 ms after it read the termination")  # fmt: skip
    play.violation(6_420_000, "dialer", "nerdbank.window-exceeded", "d5", kind="Content",
                   detail="20 bytes past a window of 65,536")  # fmt: skip
    play.violation(9_900_000, "acceptor", "nerdbank.payload-too-long", "a4", "warning",
                   kind="Content", detail="24,000 bytes where 20,480 are agreed")  # fmt: skip
    play.violation(9_950_000, "acceptor", "nerdbank.unknown-code", None, "note", kind="Code9",
                   origin="advice", detail="code 9")  # fmt: skip
    play.end(10 * SECOND)


def _calm(stage: Stage) -> None:
    chance = random.Random(11)
    play = Play(stage, "77aa01c2deadbeef", "mplex", dialer="[2001:db8::7]:40022",
                acceptor="[2001:db8::1]:4001", capture=["demo.pcapng", "night.pcapng"])  # fmt: skip
    for n in range(18):
        key, at = f"d{2 * n + 1}", n * 110_000
        play.stream(key, f"/ipfs/bitswap/{n}", at=at, ending="clean",
                    closed_at=play.started + at + 1_500_000)  # fmt: skip
        play.frame(at, "dialer", "NewStream", key, 12)
        for _ in range(60):
            when = at + chance.randrange(1_400_000)
            sender = chance.choice(("dialer", "acceptor", "acceptor"))
            kind = "MessageInitiator" if sender == "dialer" else "MessageReceiver"
            play.frame(when, sender, kind, key, chance.randrange(1, 4_000))
        play.frame(at + 1_500_000, "dialer", "CloseInitiator", key)
    play.end(3_600_000, rtt_us=1_900)


def _cut(stage: Stage) -> None:
    play = Play(stage, "0badcafe00000001", "streamux", acceptor="10.0.0.9:7100")
    play.requests("dialer", 31, 30, 1_200, 4_000, 9_100, 12_345)
    play.frame(0, "dialer", "Initiator")
    play.frame(900, "acceptor", "Initiator")
    play.stream("d0", at=2_000, ending="half-closed")
    for n in range(40):
        play.frame(2_000 + n * 800, "dialer", "Request", "d0", 1_200)
    play.violation(40_000, "dialer", "streamux.truncated", "d0", "warning", kind="Request",
                   detail="88 of 1,204 bytes of a frame", certainty="possible")  # fmt: skip
    play.end(41_000, ending="truncated", missing_bytes_acceptor=4_380, note="the file ends here")


def crowd(folder: Path, frames: int, streams: int = 240, sessions: int = 6) -> Path:
    """`frames` frames in equal sessions and streams, written in row groups."""
    write_tables(folder, {})
    each = frames // sessions
    rows: dict[str, list[dict[str, object]]] = {"captures": [], "sessions": [], "streams": []}
    lasted = 60 * SECOND
    per_session = streams // sessions
    with (
        pq.ParquetWriter(folder / "frames" / "part-0.parquet", TABLES["frames"].to_arrow()) as out,
        pq.ParquetWriter(
            folder / "timeline" / "part-0.parquet", TABLES["timeline"].to_arrow()
        ) as line,
    ):
        for number in range(sessions):
            id = f"{number:016x}"
            for part in _parts(id, each, per_session, lasted):
                out.write_table(part)
            line.write_table(_evenly(id, each, per_session, lasted))
            rows["sessions"].append(_crowd_session(id, each, per_session, lasted))
            rows["streams"] += [
                _crowd_stream(id, n, each // per_session) for n in range(per_session)
            ]
    for name in ("sessions", "streams"):
        write_tables(folder, {name: rows[name]})
    return folder


def _ones(rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(1, pa.int64()), rows)


def _parts(id: str, frames: int, streams: int, lasted: int) -> list[pa.Table]:
    """The frames of one session in parts of at most 100,000."""
    schema = TABLES["frames"].to_arrow()
    parts = []
    for first in range(0, frames, 100_000):
        rows = min(100_000, frames - first)
        place = pc.add(pc.cumulative_sum(_ones(rows)), first - 1)
        scattered = pc.bit_wise_and(pc.multiply(place, 2654435761), 0xFFFF)
        stream = pc.subtract(place, pc.multiply(pc.divide(place, streams), streams))
        stamp = pc.add(pc.divide(pc.multiply(place, lasted), frames), START)
        columns = {
            "session_id": pa.repeat(id, rows),
            "sender": pa.repeat("dialer", rows),
            "frame_index": place,
            "time": stamp.cast(pa.timestamp("us", tz="UTC")),
            "byte_offset": pc.multiply(place, 1004),
            "size": _ones(rows),
            "kind": pa.repeat("MessageInitiator", rows),
            "stream": pc.binary_join_element_wise("d", stream.cast(pa.string()), ""),
            "amount": pa.nulls(rows, pa.int64()),
            "payload_bytes": scattered,
            "verdict": pa.repeat("clean", rows),
        }
        typed = [columns[field.name].cast(field.type) for field in schema]
        parts.append(pa.table(typed, schema=schema))
    return parts


def _evenly(id: str, frames: int, streams: int, lasted: int) -> pa.Table:
    """A timeline in which every stream has content in every bucket."""
    assert bucket_width_us(lasted) * TIMELINE_BUCKETS == lasted
    rows = streams * TIMELINE_BUCKETS
    place = pc.subtract(pc.cumulative_sum(_ones(rows)), 1)
    number = pc.divide(place, TIMELINE_BUCKETS)
    share = max(1, frames // rows)
    columns = {
        "session_id": pa.repeat(id, rows),
        "stream": pc.binary_join_element_wise("d", number.cast(pa.string()), ""),
        "sender": pa.repeat("dialer", rows),
        "bucket": pc.subtract(place, pc.multiply(number, TIMELINE_BUCKETS)),
        "frames": pc.multiply(_ones(rows), share),
        "bytes": pc.add(pc.bit_wise_and(pc.multiply(place, 2654435761), 0x1FFF), share * 32_000),
        "blocked_us": pc.multiply(_ones(rows), 0),
    }
    schema = TABLES["timeline"].to_arrow()
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _crowd_session(id: str, frames: int, streams: int, lasted: int) -> dict[str, object]:
    row: dict[str, object] = {
        "session_id": id, "capture": ["crowd.pcapng"], "protocol": "mplex", "vantage": "middle",
        "dialer": "10.0.0.1:1", "acceptor": "10.0.0.2:2", "started_at": START,
        "ended_at": START + lasted, "frames": frames, "streams": streams, "violations": 0,
        "ending": "clean", "sensor": "default",
    }  # fmt: skip
    for side in ("dialer", "acceptor"):
        sent = frames * 1004 if side == "dialer" else 0
        row |= {f"bytes_{side}": sent, f"payload_bytes_{side}": sent}
        row |= {
            f"{stem}_{side}": 0 for stem in ("missing_bytes", "undecoded_bytes", "overhead_bytes")
        }
    return row


def _crowd_stream(id: str, number: int, frames: int) -> dict[str, object]:
    return {
        "session_id": id, "stream": f"d{number}", "opener": "dialer", "stream_id": number,
        "incarnation": 1, "name": f"stream {number}", "opened_at": START, "ending": "open",
        "bytes_dialer": frames * 1000, "bytes_acceptor": 0, "units_dialer": frames * 1000,
        "units_acceptor": 0, "frames_dialer": frames, "frames_acceptor": 0,
        "stalled_us_dialer": 0, "stalled_us_acceptor": 0, "hol_blocked_us_dialer": 0,
        "hol_blocked_us_acceptor": 0,
    }  # fmt: skip
