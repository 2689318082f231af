"""Captures added to a lake day by day: the rows of one analysis of all of them.

With POLYMUX_SOAK 30 days of about 100 MB each, which takes half an hour with compiled modules.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.capture import capture_builder as build
from tests.spark.incremental.daily_captures import (
    FIRST_DAY,
    deliver,
    differences,
    rows_of_lake,
    rows_of_tables,
    talks,
    write_days,
)
from tests.spark.lake.test_formats import read_as_format

from polymux.analysis.output.parquet import read_batches
from polymux.capture import SensorNaming
from polymux.cli.commands.analyze_lake import lake_text, warn_about_kept
from polymux.core.errors import PolymuxError
from polymux.spark import Analysis, LakeOptions, LakeRun, analyze
from polymux.spark.batch.analyze_stage import StageResult
from polymux.spark.batch.output_lock import read_lock
from polymux.spark.incremental.append import MissingCaptures
from polymux.spark.incremental.ledger import (
    ChangedCaptures,
    OtherSettings,
    ReadCapture,
    newest_packets,
)
from polymux.spark.lake.lake import open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
HOUR = 3600 * 1_000_000_000
DAYS, TALKS, STEPS = (30, 2400, 4000) if SOAK else (4, 24, 60)
KINDS = 50  # of conversations in each protocol, in the soak
# With it, packets of a session that is over lie in the second half of the first day, which is late.
LATE_SEED = 8
OTHER = build.End("192.0.2.7", 1)
SENSORS = SensorNaming(pattern="captures/{sensor}/*.pcapng")
pytestmark = pytest.mark.timeout(3000 if SOAK else 300)


def day(number: int) -> date:
    return (datetime.fromtimestamp(FIRST_DAY / 1e9, UTC) + timedelta(days=number)).date()


def append(spark: SparkSession, captures: Path, lake: Path, *reprocess: date) -> Analysis:
    how = LakeOptions(reprocess=reprocess)
    return analyze(spark, captures, lake, sensors=SENSORS, lake=how, append=True)


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*.parquet")}


def test_daily_appends_have_the_rows_of_one_analysis_of_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = Random(3)
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    kinds = KINDS if SOAK else 1 << 30
    of_days = write_days(made, talks(LATE_SEED, DAYS, TALKS, STEPS, kinds), DAYS)
    late, grown, wrong = of_days[0][1], of_days[1][0], of_days[1][3]
    replaced = 0
    for number, paths in enumerate(of_days):
        deliver([path for path in paths if path != late], made, captures)
        if number == 1:  # one ends early, and another has the packets of another half day
            part = captures / grown.relative_to(made)
            part.write_bytes(part.read_bytes()[: part.stat().st_size * 2 // 3])
            shutil.copy(of_days[1][2], captures / wrong.relative_to(made))
        if number == 2:
            deliver([late, grown, wrong], made, captures)
            with pytest.raises(ChangedCaptures, match="--reprocess"):
                append(spark, captures, lake)
        elif SOAK and number > 3 and rng.random() < 0.3:  # a half day arrives on the next day
            (captures / paths[0].relative_to(made)).unlink()
            of_days[min(number + 1, DAYS - 1)].append(paths[0])
        done = append(spark, captures, lake, *([day(1)] if number == 2 else []))
        assert done.conserved
        assert done.lake is not None
        assert done.lake.version == number + 1
        replaced += done.lake.replaced
    deliver([path for paths in of_days for path in paths], made, captures)
    append(spark, captures, lake)
    assert replaced
    before = files_below(lake)
    again = append(spark, captures, lake)
    assert again.lake is not None
    assert again.lake.skipped == len(set().union(*of_days))
    assert not again.captures
    assert files_below(lake) == before
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_the_captures_of_sessions_that_go_on_are_not_needed_any_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    of_days = write_days(made, talks(8, 3, 12), 3)
    carried = 0
    for paths in of_days:
        shutil.rmtree(captures, ignore_errors=True)
        deliver(paths, made, captures)
        done = append(spark, captures, lake)
        assert done.lake is not None
        carried += done.lake.open
    assert carried
    deliver([path for paths in of_days for path in paths], made, captures)
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_sessions_stay_as_they_were_written_if_late_packets_touch_them_and_captures_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    of_days = write_days(made, talks(LATE_SEED, 3, 18), 3)
    late = of_days[0][1]
    for paths in of_days:
        deliver([path for path in paths if path != late], made, captures)
    append(spark, captures, lake)
    before = finished_sessions(lake)
    shutil.rmtree(captures)
    deliver([late], made, captures)
    done = append(spark, captures, lake)
    assert done.conserved
    assert done.lake is not None
    assert (done.lake.kept, done.lake.left_out) > (0, 0)
    assert done.lake.gone
    after = finished_sessions(lake)
    assert before.items() <= after.items()
    assert len(session_ids(lake)) == len(set(session_ids(lake)))
    again = append(spark, captures, lake)
    assert (again.captures, finished_sessions(lake)) == ([], after)


def test_captures_that_were_moved_double_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    for paths in write_days(made, talks(LATE_SEED, 2, 12), 2):
        deliver(paths, made, captures)
    how = LakeOptions(carry_days=0)
    analyze(spark, captures, lake, sensors=SENSORS, lake=how, append=True)
    before, ids = finished_sessions(lake), session_ids(lake)
    moved = tmp_path / "archive" / "captures"
    moved.parent.mkdir()
    captures.rename(moved)
    done = analyze(spark, moved, lake, sensors=SENSORS, lake=how, append=True)
    assert done.lake is not None
    assert done.lake.left_out
    assert before.items() <= finished_sessions(lake).items()
    assert sorted(session_ids(lake)) == sorted(ids)


def test_a_session_that_goes_on_after_its_captures_are_gone_begins_in_the_middle(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    lines = [(0, bytes([0, len(text)]) + text) for text in [b"stream-%d" % n for n in range(9)]]
    first, rest = parted(build.talk(*lines, close=False), 9)
    more, last = parted(rest, 4)
    ends = (build.End("192.0.2.7", 1), build.BOB)
    other = build.talk((0, b"\x00\x01a"), start=build.START + HOUR, ends=ends)

    def added(**files: list[build.Packet]) -> Analysis:
        shutil.rmtree(captures)
        captures.mkdir()
        for name, packets in files.items():
            (captures / f"{name}.pcap").write_bytes(build.pcap(packets, nano=True))
        return analyze(spark, captures, lake, lake=LakeOptions(carry_days=0.01), append=True)

    added(first=first, other=other)
    before = finished_sessions(lake)
    assert before
    done = added(more=later(more, 2 * HOUR))
    assert done.conserved
    assert done.lake is not None
    assert (done.lake.kept, done.lake.left_out, done.lake.open) == (1, 0, 1)
    assert done.lake.gone == (str(captures / "first.pcap"),)
    ids = session_ids(lake)
    assert (len(ids), len(set(ids))) == (3, 3)
    done = added(last=later(last, 2 * HOUR))
    assert done.lake is not None
    assert (done.lake.kept, done.lake.left_out) == (0, 0)  # it is carried as any other
    assert sorted(session_ids(lake)) == sorted(ids)
    assert before.items() <= finished_sessions(lake).items()
    assert added(last=later(last, 2 * HOUR)).captures == []


def test_a_capture_that_grows_does_not_double_sessions_that_began_in_one_that_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    lines = ((0, b"\x00\x01a"), (0, b"\x02\x01x"))
    begun, ended = parted(build.talk(*lines), 4)
    ends = (build.End("192.0.2.7", 1), build.BOB)
    grows = [*ended, *build.talk(*lines, start=build.START + HOUR, ends=ends)]
    (captures / "begun.pcap").write_bytes(build.pcap(begun, nano=True))
    (captures / "grows.pcap").write_bytes(build.pcap(grows, nano=True))
    append(spark, captures, lake)
    before = finished_sessions(lake)
    (captures / "begun.pcap").unlink()
    grows += build.talk(*lines, start=build.START + 2 * HOUR, isn=(1 << 28, 2 << 28))
    (captures / "grows.pcap").write_bytes(build.pcap(grows, nano=True))
    done = append(spark, captures, lake)
    assert done.conserved
    assert done.lake is not None
    assert (done.lake.kept, done.lake.left_out) == (1, len(ended))
    assert before.items() <= finished_sessions(lake).items()
    assert len(set(session_ids(lake))) == len(session_ids(lake)) == 3


def test_sessions_that_stay_are_said_once_with_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    run = LakeRun(2, 0, 0, 0, 3, 1, ("a.pcap", "b.pcap"))
    warn_about_kept(Analysis("lake", [], StageResult(), lake=run))
    (line,) = capsys.readouterr().err.splitlines()
    assert "3 sessions not replaced: a.pcap and 1 more gone or changed" in line
    assert "1 packet of their time left out" in line


def parted(packets: list[build.Packet], at: int) -> tuple[list[build.Packet], list[build.Packet]]:
    return packets[:at], packets[at:]


def later(packets: list[build.Packet], nanoseconds: int) -> list[build.Packet]:
    return [replace(packet, at=packet.at + nanoseconds) for packet in packets]


def finished_sessions(lake: Path) -> dict[str, str]:
    """The rows of the sessions that are over, as texts, by id."""
    opened = open_lake(str(lake))
    version = opened.current()
    assert version is not None
    files = [file for file in version.files_of("sessions") if not file.provisional]
    rows = [row for batch in opened.batches(files) for row in batch.to_pylist()]
    return {row["session_id"]: repr(row) for row in rows}


def session_ids(lake: Path) -> list[str]:
    opened = open_lake(str(lake))
    version = opened.current()
    assert version is not None
    batches = opened.batches(version.files_of("sessions"), ["session_id"])
    return [name for batch in batches for name in batch["session_id"].to_pylist()]


def test_each_file_says_which_run_and_which_options_made_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    for paths in write_days(made, talks(5, 2, 4), 2):
        deliver(paths, made, captures)
        analyze(spark, captures, lake, sensors=SENSORS, append=True)
    opened = open_lake(str(lake))
    version = opened.current()
    assert version is not None
    runs = {each.run: each for each in opened.history()}
    assert len({file.run for file in version.all_files()}) == 2
    joined = opened.compact()
    assert joined.added
    for file in [*version.all_files(), *joined.added]:
        told = pq.read_metadata(lake / file.path).metadata
        assert told[b"polymux.run"].decode() == file.run
        assert told[b"polymux.version"].decode() == opened.history()[-1].polymux_version
        assert json.loads(told[b"polymux.options"])["sensor_from"] == SENSORS.pattern
    for run in runs.values():
        assert run.options["sensor-from"] == SENSORS.pattern


def test_a_capture_that_is_gone_is_not_taken_for_one_that_its_name_matches_as_a_pattern(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    first, second = write_days(made, talks(5, 2, 12), 2)
    captures.mkdir()
    shutil.copy(max(first, key=os.path.getsize), captures / "day[1].pcapng")
    append(spark, captures, lake)
    before = rows_of_lake(lake)
    (captures / "day[1].pcapng").unlink()
    shutil.copy(second[0], captures / "day1.pcapng")
    with pytest.raises(MissingCaptures, match=r"day\[1\]\.pcapng: gone"):
        append(spark, captures, lake, day(0))
    assert rows_of_lake(lake) == before


def test_a_wrong_capture_is_dropped_with_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    first, _ = write_days(made, talks(5, 2, 12), 2)
    deliver(first, made, captures)
    wrong = captures / max(first, key=os.path.getsize).relative_to(made)
    append(spark, captures, lake)
    wrong.unlink()
    with pytest.raises(MissingCaptures, match="--forget"):
        append(spark, captures, lake, day(0))
    how = LakeOptions(reprocess=(day(0),), forget=True)
    done = analyze(spark, captures, lake, sensors=SENSORS, lake=how, append=True)
    assert done.lake is not None
    assert (done.lake.forgotten, done.lake.kept) == (1, 0)
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_a_capture_is_forgotten_also_if_there_is_none_to_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    for name, ends in (("a.pcap", (build.ALICE, build.BOB)), ("b.pcap", (OTHER, build.BOB))):
        shift = 0 if name == "a.pcap" else 48 * HOUR
        talk = build.talk((0, b"\x00\x01a"), ends=ends, start=build.START + shift)
        (captures / name).write_bytes(build.pcap(talk))
    append(spark, captures, lake)
    (captures / "a.pcap").unlink()
    of_a = datetime.fromtimestamp(build.START / 1e9, UTC).date()
    how = LakeOptions(reprocess=(of_a,), forget=True)
    done = analyze(spark, captures, lake, sensors=SENSORS, lake=how, append=True)
    assert done.lake is not None
    assert (done.captures, done.lake.forgotten, done.lake.version) == ([], 1, 2)
    assert "1 forgotten" in lake_text(done)
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_sessions_of_overlapping_captures_are_not_doubled_when_one_is_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    lines = ((0, b"\x00\x01a"), (0, b"\x02\x01x"))
    first = build.talk(*lines)
    second = build.talk(*lines, start=build.START + HOUR, isn=(1 << 28, 2 << 28))
    ends = (build.End("192.0.2.7", 40_000), build.BOB)
    repeated = replace(second[3], at=second[3].at + 10)
    files = {
        "a.pcap": first,
        "b.pcap": [*first, *second],  # names the second only: the first is in a.pcap
        "c.pcap": build.talk(*lines, start=build.START + 2 * HOUR, ends=ends),
    }
    for name, packets in files.items():
        (captures / name).write_bytes(build.pcap(packets, nano=True))
    append(spark, captures, lake)
    (captures / "late.pcap").write_bytes(build.pcap([repeated], nano=True))
    done = append(spark, captures, lake)
    assert done.lake is not None
    assert done.lake.replaced == 2
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_sessions_of_a_sensor_that_is_not_heard_any_more_are_not_carried_for_ever(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures, lake, now = tmp_path / "captures", tmp_path / "lake", time.time_ns()

    def capture(sensor: str, number: int) -> None:
        (captures / sensor).mkdir(parents=True, exist_ok=True)
        talk = build.talk((0, b"\x00\x01a"), close=False, start=build.START + number * HOUR)
        (captures / sensor / f"{number}.pcapng").write_bytes(build.pcapng(talk))

    def still_open(days: int) -> int:
        monkeypatch.setattr(time, "time_ns", lambda: now + 24 * days * HOUR)
        done = append(spark, captures, lake)
        assert done.lake is not None
        return done.lake.open

    capture("gone", 0)
    capture("here", 0)
    assert still_open(0) == 2
    capture("here", 1)
    assert still_open(6) == 2
    capture("here", 2)
    assert still_open(8) == 1
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_a_packet_from_the_future_does_not_end_the_sessions_of_its_sensor(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures, lake, whole = tmp_path / "captures", tmp_path / "lake", tmp_path / "whole"
    begun, ended = parted(build.talk((0, b"\x00\x01a"), (0, b"\x02\x01x")), 4)
    ends = (build.End("192.0.2.7", 1), build.BOB)
    stray = build.talk((0, b"\x00\x01a"), start=build.START + 12 * 8766 * HOUR, ends=ends)[3]
    days = [[*begun, stray], later(ended, 24 * HOUR)]
    whole.mkdir()
    monkeypatch.setattr(time, "time_ns", lambda: build.START + 30 * HOUR)
    for number, packets in enumerate(days):
        shutil.rmtree(captures, ignore_errors=True)
        captures.mkdir()
        for folder in (captures, whole):
            (folder / f"{number}.pcap").write_bytes(build.pcap(packets, nano=True))
        done = append(spark, captures, lake)
        assert done.lake is not None
        assert (done.lake.open, done.lake.kept) == (2 - number, 0)
    analyze(spark, whole, tmp_path / "tables", sensors=SENSORS)
    ids = [row["session_id"] for batch in read_batches(tmp_path / "tables", "sessions")
           for row in batch.to_pylist()]  # fmt: skip
    assert sorted(session_ids(lake)) == sorted(ids)


@pytest.mark.parametrize(
    ("ends", "newest"),
    [
        ([(1, 5), (4, 3000)], 100),  # one packet
        ([(1, 5), (2000, 3000)], 5),  # all packets of one capture
        ([(2000, 2100), (2000, 3000)], 3000),  # its clock is wrong, or that of this machine
        ([(1, 101)], 101),  # clocks differ
        ([(-1, -1)], -1),
    ],
)
def test_how_far_a_sensor_was_captured_is_told_without_packets_from_the_future(
    ends: list[tuple[int, int]], newest: int
) -> None:
    day = 24 * HOUR
    captures = [
        ReadCapture(str(n), 0, "", "whole", "web", max(-1, first * day), max(-1, last * day))
        for n, (first, last) in enumerate(ends)
    ]
    assert newest_packets(captures, 100 * day) == {"web": max(-1, newest * day)}


def test_late_packets_over_a_long_time_touch_the_session_after_the_last_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    lines = ((0, b"\x00\x01a"), (0, b"\x02\x01x"))
    first = build.talk(*lines, close=False)
    goes_on = build.talk(*lines, start=build.START + 22 * HOUR, isn=(1 << 20, 2 << 20))[3:]
    files = {
        "first.pcap": first,
        "another.pcap": build.talk(*lines, start=build.START + 5 * HOUR, isn=(7 << 28, 9 << 28)),
        "goes-on.pcap": goes_on,  # of the first, or of what the late packets are of
        "later.pcap": build.talk(
            *lines, start=build.START + 30 * HOUR, ends=(build.End("192.0.2.7", 1), build.BOB)
        ),
    }
    for name, packets in files.items():
        (captures / name).write_bytes(build.pcap(packets, nano=True))
    append(spark, captures, lake)
    late = [replace(first[-1], at=build.START + hours * HOUR) for hours in (1, 20)]
    (captures / "late.pcap").write_bytes(build.pcap(late, nano=True))
    append(spark, captures, lake)
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_an_answer_to_a_syn_that_was_silent_for_too_long_belongs_to_its_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    dialed, *rest = build.talk((0, b"\x00\x01a"))
    ends = (build.End("192.0.2.7", 1), build.BOB)
    other = build.talk((0, b"\x00\x01a"), start=build.START + HOUR, ends=ends)
    answered = [replace(packet, at=packet.at + 2 * HOUR) for packet in rest]
    for name, packets in {"a.pcap": [dialed], "b.pcap": other, "c.pcap": answered}.items():
        (captures / name).write_bytes(build.pcap(packets, nano=True))
        how = LakeOptions(carry_days=0.01)
        done = analyze(spark, captures, lake, lake=how, append=True)
    assert done.lake is not None
    assert done.lake.replaced == 1
    analyze(spark, captures, tmp_path / "tables")
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


@pytest.mark.parametrize("name", ["ü" * 100, "a=b/c d%20", "__HIVE_DEFAULT_PARTITION__"])
def test_tables_are_divided_by_sensors_of_any_name(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    capture, url = tmp_path / "a.pcap", tmp_path / "lake"
    capture.write_bytes(build.pcap(build.talk((0, b"\x00\x01a"))))
    how = LakeOptions("delta", by_sensor=True)
    analyze(spark, capture, url, sensors=SensorNaming(name), lake=how)
    lake = open_lake(str(url))
    version = lake.current()
    assert version is not None
    assert version.files_of("sessions", sensor=name) == version.files_of("sessions")
    assert read_as_format(lake, version, "sessions")["sensor"].to_pylist() == [name]


def test_a_lake_in_the_directory_of_its_captures_does_not_read_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    capture, lake = tmp_path / "a.pcapng", tmp_path / "lake"
    capture.write_bytes(build.pcapng(build.talk((0, b"\x00\x01a"), close=False)))
    append(spark, tmp_path, lake)
    again = append(spark, tmp_path, lake)
    assert again.lake is not None
    assert (again.captures, again.lake.version) == ([], 1)


def test_a_lake_that_is_named_in_another_way_does_not_read_itself(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    capture = tmp_path / "a.pcapng"
    capture.write_bytes(build.pcapng(build.talk((0, b"\x00\x01a"), close=False)))
    for _ in range(2):
        done = append(spark, tmp_path, Path("../lake"))
    assert done.lake is not None
    assert (done.captures, done.lake.version) == ([], 1)


def test_a_lake_of_key_logs_is_not_added_to_without_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake, keys = tmp_path / "captures", tmp_path / "lake", tmp_path / "keys.log"
    captures.mkdir()
    keys.write_text(f"CLIENT_RANDOM {'ab' * 32} {'cd' * 48}\n")
    for number, named in enumerate(["", str(keys), ""]):
        talk = build.talk((0, b"\x00\x01a"), start=build.START + number * HOUR)
        (captures / f"{number}.pcap").write_bytes(build.pcap(talk))
        if number < 2:  # key logs that have come later
            analyze(spark, captures, lake, keys=named or (), append=True)
        else:
            with pytest.raises(OtherSettings, match="--keys"):
                analyze(spark, captures, lake, append=True)


def test_a_run_that_finds_nothing_new_does_not_list_the_lake(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, place = tmp_path / "a.pcap", tmp_path / "lake"
    capture.write_bytes(build.pcap(build.talk((0, b"\x00\x01a"))))
    append(spark, capture, place)
    listed: list[str] = []
    opened = open_lake(str(place))
    monkeypatch.setattr(type(opened.storage), "files", lambda storage, name: listed.append(name))
    done = append(spark, capture, place)
    assert done.lake is not None
    assert (done.lake.version, done.lake.skipped, listed) == (1, 1, [])
    assert read_lock(place) is None


def test_a_lake_is_only_added_to_and_with_the_options_it_was_made_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    write_days(captures, talks(5, 1, 2), 1)
    analyze(spark, captures, lake, lake=LakeOptions("parquet"))
    with pytest.raises(PolymuxError, match="--append"):
        analyze(spark, captures, lake, lake=LakeOptions("parquet"))
    with pytest.raises(OtherSettings, match="protocol"):
        analyze(spark, captures, lake, protocol="mplex", append=True)
    assert rows_of_lake(lake)["sessions"]
