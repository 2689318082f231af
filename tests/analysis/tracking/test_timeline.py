"""The timeline counts frames, content and blocked time in the right bucket."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import MS, START, Found, Stage, analyse, save

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.schema.tables import TIMELINE_BUCKETS, bucket_of, bucket_width_us
from polymux.testing.simulator import Simulation


def buckets(found: Found) -> dict[tuple[object, object, object], dict[str, object]]:
    rows = found.rows("timeline")
    by_key = {(row["stream"], row["sender"], row["bucket"]): row for row in rows}
    assert len(by_key) == len(rows)
    return by_key


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=3"])
def test_frames_and_bytes_are_those_of_the_frames_table(protocol: str, tmp_path: Path) -> None:
    world = Simulation(protocol, 3)
    world.run(400)
    record = [(side, data, START + at) for side, data, at in world.record]
    path = save(tmp_path / "a.pcapng", record, START + world.now + MS)
    found = analyse(path, plan=AnalysisOptions(protocol))
    session = found.session
    width = bucket_width_us(session.ended_at - session.started_at)
    expected: dict[tuple[object, object, object], int] = defaultdict(int)
    for row in found.rows("frames"):
        assert isinstance(row["time"], datetime)
        since = round(row["time"].timestamp() * 1e6) - session.started_at
        expected[row["stream"], row["sender"], bucket_of(since, width)] += 1
    seen = buckets(found)
    assert {key: row["frames"] for key, row in seen.items() if row["frames"]} == expected
    for stream in found.rows("streams"):
        for side in ("dialer", "acceptor"):
            mine = [r for k, r in seen.items() if k[:2] == (stream["stream"], side)]
            assert sum(int(str(r["bytes"])) for r in mine) == stream[f"bytes_{side}"]
            if stream[f"blocked_us_{side}"] is not None:
                blocked = sum(int(str(r["blocked_us"])) for r in mine)
                assert blocked == stream[f"blocked_us_{side}"]


def test_blocked_time_is_in_every_bucket_it_covers(tmp_path: Path) -> None:
    stage = Stage("nerdbank:version=3")
    stream = stage.open(0, b"starved", window=1000)
    stage.exchange()
    stage.accept(1, window=1000)
    stage.exchange()
    stage.reading = False
    stage.send(0, stream, b"x" * 1500)
    stage.exchange()
    stage.wait(998 * MS)
    stage.ends[1].read(stage.peer_stream(0, stream), 1000)
    stage.exchange()
    found = analyse(stage.save(tmp_path / "a.pcapng"))
    lasted = found.session.ended_at - found.session.started_at
    assert lasted == 1_000_000
    assert bucket_width_us(lasted) == 2000
    seen = buckets(found)
    blocked = [seen["d1", "dialer", bucket]["blocked_us"] for bucket in range(TIMELINE_BUCKETS)]
    assert blocked[0] == 1000
    assert blocked[1:499] == [2000] * 498
    assert blocked[499] == 1000
    assert sum(int(str(each)) for each in blocked) == found.stream("d1")["blocked_us_dialer"]


def test_a_bucket_in_which_nothing_happened_has_no_row(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    stage.wait(900 * MS)
    stage.send(0, stream, b"later")
    stage.exchange()
    assert len(analyse(stage.save(tmp_path / "a.pcapng")).rows("timeline")) == 2


def test_blocked_time_is_null_where_the_protocol_has_no_credit(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stage.open(0, b"x")
    stage.exchange()
    (row,) = analyse(stage.save(tmp_path / "a.pcapng"), plan=AnalysisOptions("mplex")).rows(
        "timeline"
    )
    assert row["blocked_us"] is None


def test_a_clock_that_steps_back_makes_no_bucket_twice(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"x")
    stage.exchange()
    for step in (500, -400, 300, -200, 600):
        stage.wait(step * MS)
        stage.send(0, stream, b"data")
        stage.exchange()
    found = analyse(stage.save(tmp_path / "a.pcapng"), plan=AnalysisOptions("mplex"))
    assert sum(int(str(row["frames"])) for row in buckets(found).values()) == 6
    assert found.stream("d1")["bytes_dialer"] == 20
