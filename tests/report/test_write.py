"""Writing a report: what it shows, what it mentions as left out, which errors it raises."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.report.scenes import crowd, story
from tests.report.table_builder import Play, Stage, write_tables

from polymux.report import ReportError, rows_to_read, write, write_report
from polymux.report.load.timelines import StreamTimeline


def data_of(file: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text())
    assert found is not None
    return dict(json.loads(found[1]))


def test_a_report_is_one_file_and_says_what_was_found(tmp_path: Path) -> None:
    info = write_report(story().write(tmp_path / "tables"), tmp_path / "r.html", title="Night")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "tables"]
    assert info.size_bytes == (tmp_path / "r.html").stat().st_size
    assert (info.sessions, info.sessions_detailed, info.frames, info.frames_shown) == (
        3, 3, 2542, 2542,
    )  # fmt: skip
    assert (info.errors, info.warnings, info.notes, info.stalls) == (3, 2, 1, 5)


def test_progress_counts_the_rows_that_were_announced(tmp_path: Path) -> None:
    tables = story().write(tmp_path / "tables")
    told: list[int] = []
    write_report(tables, tmp_path / "r.html", progress=told.append)
    assert sum(told) == rows_to_read(tables) > 2542


def test_findings_come_in_the_order_a_person_needs(tmp_path: Path) -> None:
    write_report(story().write(tmp_path / "tables"), tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")
    levels = [finding["level"] for finding in data["findings"]]
    assert levels == sorted(levels, key=["error", "warning", "stall", "note"].index)
    texts = [item["text"] for finding in data["findings"] for item in finding["items"]]
    assert "window-limited: 100 KiB window, 80 ms round trip, so at most 10 Mbit/s" in texts
    assert "acceptor did not read d3: dialer waited 5 s (slow-reader)" in texts
    assert (
        "dialer's d5 was head-of-line blocked by d1 (upload/video) for 312 ms (head-of-line)"
        in texts
    )
    assert "acceptor did not answer dialer on d9 for 4 s (no-reply)" in texts
    assert not any("sender-idle" in text for text in texts)


def test_a_violation_leads_to_its_rules_page(tmp_path: Path) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    play.stream("d1", "x")
    play.violation(500, "dialer", "mplex.write-after-close", "d1", detail="3 bytes")
    play.violation(900, "dialer", "mplex.not-a-rule", "d1")
    play.end(1000)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "r.html")
    rules = {rule["name"]: rule for rule in data_of(tmp_path / "r.html")["rules"]}
    known = rules["mplex.write-after-close"]
    assert known["sentence"].endswith(".")
    assert known["section"]
    assert (known["severity"], known["origin"], known["count"]) == ("error", "spec", 1)
    assert rules["mplex.not-a-rule"]["sentence"] is None
    assert rules["mplex.not-a-rule"]["severity"] == "error"


def test_sessions_with_violations_come_before_larger_ones(tmp_path: Path) -> None:
    stage = Stage()
    for number, size in enumerate((10_000, 90_000, 500)):
        play = Play(stage, f"s{number}")
        play.stream("d1")
        play.frame(1, "dialer", "MessageInitiator", "d1", size)
        if number == 2:
            play.violation(5, "dialer", "mplex.bad-flag", None)
        play.end(100)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "r.html")
    ids = [session["id"] for session in data_of(tmp_path / "r.html")["sessions"]]
    assert ids == ["s2", "s1", "s0"]


def test_the_same_rows_give_the_same_report_however_they_are_split(tmp_path: Path) -> None:
    whole = story().write(tmp_path / "whole")
    split = write_tables(tmp_path / "split", {})
    for table in whole.iterdir():
        for file in table.iterdir():
            rows = pq.read_table(file)
            order = list(range(rows.num_rows))[::-1]
            for part in range(3):
                piece = rows.take(pa.array(order[part::3], pa.int64()))
                pq.write_table(piece, split / table.name / f"part-{part}.parquet", row_group_size=7)
    write_report(whole, tmp_path / "a.html")
    write_report(split, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_empty_tables_give_a_report_without_findings(tmp_path: Path) -> None:
    info = write_report(write_tables(tmp_path / "tables", {}), tmp_path / "r.html")
    assert (info.sessions, info.frames, info.errors) == (0, 0, 0)
    assert data_of(tmp_path / "r.html")["findings"] == []


def test_a_missing_table_is_said_on_the_page(tmp_path: Path) -> None:
    tables = story().write(tmp_path / "tables")
    for file in (tables / "stalls").iterdir():
        file.unlink()
    (tables / "stalls").rmdir()
    write_report(tables, tmp_path / "r.html")
    assert data_of(tmp_path / "r.html")["notes"] == [
        "The table stalls is missing, so what it holds is not shown."
    ]


def test_a_folder_without_tables_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no tables here") as caught:
        write_report(tmp_path, tmp_path / "r.html")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all" * 50])
def test_a_damaged_table_file_is_named_and_the_old_report_kept(tmp_path: Path, data: bytes) -> None:
    tables = story().write(tmp_path / "tables")
    (tables / "frames" / "part-1.parquet").write_bytes(data)
    (tmp_path / "r.html").write_text("old")
    with pytest.raises(ReportError, match=r"part-1\.parquet: not a readable table file") as caught:
        write_report(tables, tmp_path / "r.html")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "r.html").read_text() == "old"


def test_a_table_of_another_version_is_refused_by_its_column(tmp_path: Path) -> None:
    tables = story().write(tmp_path / "tables")
    file = tables / "sessions" / "part-0.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["rtt_us"]), file)
    with pytest.raises(ReportError, match="column 'rtt_us' is missing"):
        write_report(tables, tmp_path / "r.html")


def test_tables_from_before_a_column_was_added_are_still_read(tmp_path: Path) -> None:
    tables = story().write(tmp_path / "tables")
    file = tables / "streams" / "part-0.parquet"
    names = [f"{stem}_{side}" for stem in ("hol_blocked_us",) for side in ("dialer", "acceptor")]
    pq.write_table(pq.read_table(file).drop_columns(names), file)
    shutil.rmtree(tables / "requests")
    write_report(tables, tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")
    assert data["notes"] == []
    assert {count for detail in data["details"] for count in detail["streams"]["holBlockedD"]} == {
        None
    }


def test_aborted_streams_are_listed_with_side_and_reason(tmp_path: Path) -> None:
    write_report(story().write(tmp_path / "tables"), tmp_path / "r.html")
    found = {finding["title"]: finding for finding in data_of(tmp_path / "r.html")["findings"]}
    (item,) = found["Streams were reset"]["items"]
    assert (item["text"], item["name"]) == (
        "acceptor reset d5: disk quota exceeded", "thumbnails",
    )  # fmt: skip
    assert (found["Streams were reset"]["level"], item["stream"], item["at"]) == (
        "note", "d5", 7_300_000,
    )  # fmt: skip
    assert found["Offers were not seen to be accepted"]["count"] == 1


def test_other_writers_types_are_read_as_well(tmp_path: Path) -> None:
    tables = story().write(tmp_path / "tables")
    write_report(tables, tmp_path / "a.html")
    for name in ("sessions", "frames", "violations", "stalls", "timeline"):
        file = tables / name / "part-0.parquet"
        rows = pq.read_table(file)
        for place, field in enumerate(rows.schema):
            if pa.types.is_timestamp(field.type):
                column = rows[field.name].cast(pa.timestamp("ns", tz="UTC"))
            elif pa.types.is_string(field.type):
                column = rows[field.name].cast(pa.large_string()).dictionary_encode()
            else:
                continue
            rows = rows.set_column(place, field.name, column)
        pq.write_table(rows, file, use_deprecated_int96_timestamps=name == "frames")
    write_report(tables, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_files_spark_leaves_beside_the_tables_are_no_tables(tmp_path: Path) -> None:
    tables = story().write(tmp_path / "tables")
    (tables / "frames" / "_SUCCESS").write_text("")
    (tables / "frames" / "_temporary").mkdir()
    (tables / "frames" / "_temporary" / "part-9.parquet").write_text("half")
    (tables / "frames" / ".part-0.parquet.crc").write_text("crc")
    assert write_report(tables, tmp_path / "r.html").frames_shown == 2542


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tables = story().write(tmp_path / "tables")
    with pytest.raises(ReportError, match="cannot be written"):
        write_report(tables, tmp_path / "nowhere" / "r.html")


def test_instants_no_calendar_holds_do_no_harm(tmp_path: Path) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    play.started = (1 << 62) + 5
    play.stream("d1", "x")
    play.frame(7, "dialer", "MessageInitiator", "d1", 9)
    play.end(1 << 61)
    write_report(stage.write(tmp_path / "tables"), tmp_path / "r.html")
    assert data_of(tmp_path / "r.html")["sessions"][0]["lasted"] == 1 << 61


def test_of_many_frames_those_around_trouble_are_kept(tmp_path: Path) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    play.stream("d1", "busy")
    play.stream("d3", "quiet")
    for at in range(30_000):
        play.frame(at * 10, "dialer", "MessageInitiator", "d1", 100)
    play.frame(123_456, "dialer", "MessageInitiator", "d3", 1)
    play.violation(200_005, "dialer", "mplex.write-after-close", "d1")
    play.stall(250_000, 40_000, "d1", "dialer", "transport")
    play.end(300_000)
    info = write_report(stage.write(tmp_path / "tables"), tmp_path / "r.html")
    assert 8000 < info.frames_shown <= 9000
    detail = data_of(tmp_path / "r.html")["details"][0]
    assert detail["allFrames"] is False
    shown = set(detail["frames"]["index"])
    broken = detail["marks"][0][4]
    assert {broken + step for step in range(-3, 4)} <= shown
    assert {0, 1, 2, 30_001} <= shown  # the first and the last
    assert 1 in detail["frames"]["stream"]  # the small stream is not left out
    assert detail["frames"]["verdict"].count("2") == 1
    gaps = [b - a for a, b in zip(sorted(shown), sorted(shown)[1:], strict=False)]
    assert max(gaps) < 60  # and an even sample between


def test_lane_texts_keep_bytes_to_half_a_percent() -> None:
    lane = StreamTimeline()
    wanted = [0, -1, 1, 2, 3, 1000, 1024, 65_535, 10**6, 10**9, 1 << 60]
    for bucket, size in enumerate(wanted):
        lane.content_bytes[0][bucket] = max(0, size)
        lane.frames[0][bucket] = 1 if size else 0
    text = lane.encode(0)
    assert len(text) == 1000
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for bucket, size in enumerate(wanted):
        two = text[2 * bucket : 2 * bucket + 2]
        code = alphabet.index(two[0]) * 64 + alphabet.index(two[1])
        if size <= 0:
            assert code == -size
        else:
            assert abs(2 ** ((code - 2) / 64) / size - 1) < 0.006


def test_blocked_times_become_spans() -> None:
    lane = StreamTimeline()
    lane.blocked = [(0, 3, 900), (0, 4, 1000), (0, 6, 400), (1, 4, 1000), (0, 9, 500)]
    assert lane.blocked_spans(1000) == [[0, 3, 4], [0, 9, 9], [1, 4, 4]]


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ("none", None),
        ("hash", "ba7816bf8f01cfea"),
        ("head:2", "6162"),
        ("full", "616263"),
    ],
)
def test_payload_is_shown_only_as_far_as_it_was_asked_for(
    tmp_path: Path, choice: str, shown: str | None
) -> None:
    stage = Stage()
    play = Play(stage, "s1")
    play.stream("d1", "x")
    play.frame(5, "dialer", "NewStream", "d1", 1)
    play.frame(9, "dialer", "MessageInitiator", "d1", 3)
    play.end(100)
    stage.rows["content"].append(
        {
            "session_id": "s1", "stream": "d1", "sender": "dialer", "frame_index": 1,
            "time": play.started + 9, "data": b"abc",
        }
    )  # fmt: skip
    write_report(stage.write(tmp_path / "tables"), tmp_path / "r.html", payload=choice)
    frames = data_of(tmp_path / "r.html")["details"][0]["frames"]
    assert frames.get("data") == (None if shown is None else [None, shown])


def test_payload_without_content_is_said_on_the_page(tmp_path: Path) -> None:
    write_report(story().write(tmp_path / "tables"), tmp_path / "r.html", payload="full")
    assert "there is no content to show" in data_of(tmp_path / "r.html")["notes"][0]


@pytest.mark.parametrize("choice", ["", "all", "head", "head:", "head:0", "head:-1", "head:99999"])
def test_an_unknown_payload_choice_is_refused(tmp_path: Path, choice: str) -> None:
    with pytest.raises(ReportError, match="give none, hash, head:N"):
        write_report(tmp_path, tmp_path / "r.html", payload=choice)


def test_texts_of_any_length_do_not_break_the_size(tmp_path: Path) -> None:
    stage = Stage()
    for number in range(12):
        play = Play(stage, f"s{number}", note="\u202e" * 9000, evidence="\U000e0041" * 9000)
        for stream in range(300):
            play.stream(f"d{stream}", "大" * 900, error="小" * 900)
        for at in range(400):
            play.violation(at, "dialer", f"mplex.rule-{at % 150}-" + "r" * 300, f"d{at % 300}",
                           detail="長" * 900)  # fmt: skip
        play.end(1000)
    info = write_report(stage.write(tmp_path / "tables"), tmp_path / "r.html")
    assert 1_000_000 < info.size_bytes <= 5_000_000
    assert len(data_of(tmp_path / "r.html")["details"]) == 12


def test_a_report_that_would_be_too_large_shows_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = crowd(tmp_path / "tables", 20_000)
    full = write_report(tables, tmp_path / "r.html")
    monkeypatch.setattr(write, "MAX_REPORT_BYTES", 400_000)
    less = write_report(tables, tmp_path / "r.html")
    assert less.size_bytes <= 400_000 < full.size_bytes
    assert 0 < less.frames_shown < full.frames_shown
    assert less.frames == full.frames
    monkeypatch.setattr(write, "MAX_REPORT_BYTES", 1000)
    with pytest.raises(ReportError, match="does not fit into 1,000 bytes"):
        write_report(tables, tmp_path / "r.html")


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    tables = crowd(tmp_path / "tables", 20_000, streams=4000, sessions=50)
    info = write_report(tables, tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")
    assert (info.sessions, info.sessions_detailed) == (50, 40)
    assert len(data["sessions"]) == data["totals"]["sessions"] == 50
    listed = sum(len(detail["streams"]["key"]) for detail in data["details"])
    drawn = sum(len(detail["lanes"]) for detail in data["details"])
    assert listed <= 1500
    assert drawn <= 192
    assert data["sessions"][0]["streams"] == 80 > len(data["details"][0]["streams"]["key"])
