"""The demo finds the six faults that were planted, and nothing else."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polymux.aio import Session
from polymux.analysis.output.parquet import read_table
from polymux.analysis.schema.tables import TABLES
from polymux.cli.demo import peers as peers
from polymux.cli.demo.peers import MachineTooSlow
from polymux.cli.demo.scenes import Scene, play_scene, record_scene
from polymux.cli.demo.throttled_relay import MemoryCapture
from polymux.report import write_report

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-c", "from polymux.cli import main; main()", "demo"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=110,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def rows(out: Path, table: str) -> Rows:
    found: Rows = read_table(out / "tables", table).to_pylist()
    return found


def named(out: Path) -> dict[tuple[str, str], str]:
    """(session, stream) of every stream, to its name."""
    return {
        (row["session_id"], row["stream"]): row["name"] or row["stream"]
        for row in rows(out, "streams")
    }


def test_the_six_faults_are_found_and_nothing_else_is(demo: tuple[Path, str]) -> None:
    out, _ = demo
    names = named(out)
    found = {
        (names[row["session_id"], row["stream"]], row["sender"], row["rule"])
        for row in rows(out, "violations")
    }
    found |= {
        (names[row["session_id"], row["stream"]], row["sender"], row["cause"])
        for row in rows(out, "stalls")
        if row["cause"] != "sender-idle"
    }
    found |= {
        (row["name"], row["reset_by"], row["ending"])
        for row in rows(out, "streams")
        if row["ending"] != "clean"
    }
    assert found == {
        ("s0", "dialer", "slow-reader"),
        ("starved", "dialer", "no-credit"),
        ("given up", "dialer", "reset"),
        ("liar", "dialer", "mplex.write-after-close"),
        ("chat", "dialer", "head-of-line"),
        ("d1", "dialer", "no-credit"),
    }


def test_each_fault_has_the_measure_that_was_planted(demo: tuple[Path, str]) -> None:
    out, _ = demo
    names = named(out)
    stalls = [row for row in rows(out, "stalls") if row["cause"] != "sender-idle"]
    by_cause: dict[str, Rows] = {}
    for row in stalls:
        by_cause.setdefault(row["cause"], []).append(row)
    (unread,) = by_cause["slow-reader"]
    assert unread["duration_us"] >= 800_000
    assert len(by_cause["no-credit"]) >= 5
    assert all(row["duration_us"] >= 140_000 for row in by_cause["no-credit"])
    (held_up,) = by_cause["head-of-line"]
    assert held_up["duration_us"] >= 700_000
    assert names[held_up["session_id"], held_up["blocking_stream"]] == "backup"
    chat = next(row for row in rows(out, "streams") if row["name"] == "chat")
    assert chat["hol_blocked_us_dialer"] == held_up["duration_us"]
    starved = next(row for row in rows(out, "streams") if row["name"] == "starved")
    waits: dict[str, int] = {}
    for row in by_cause["no-credit"]:
        waits[row["session_id"]] = waits.get(row["session_id"], 0) + row["duration_us"]
    assert starved["blocked_us_dialer"] >= waits[starved["session_id"]]
    assert (starved["bytes_dialer"], starved["window_bytes_dialer"]) == (6 * 4096, 4096)
    limited = next(row for row in rows(out, "streams") if row["bytes_dialer"] == 4 * 262144)
    assert (limited["window_bytes_dialer"], limited["stream"]) == (262144, "d1")
    assert limited["blocked_us_dialer"] >= waits[limited["session_id"]] >= 400_000
    (lie,) = rows(out, "violations")
    assert (lie["severity"], lie["certainty"]) == ("error", "certain")


def test_the_findings_are_printed_with_their_streams(demo: tuple[Path, str]) -> None:
    out, said = demo
    words = " ".join(said.split())
    for part in (
        "liar dialer broke mplex.write-after-close on d",
        "acceptor did not read s0: dialer waited",
        "starved acceptor granted no credit on d",
        "acceptor granted no credit on d1",
        "chat dialer's d",
        "was head-of-line blocked by d",
        "(backup) for ",
        "given up dialer reset d",
    ):
        assert part in words
    assert " times, " in words
    stalls = [row for row in rows(out, "stalls") if row["cause"] != "sender-idle"]
    assert f"1 violation, {len(stalls)} stalls" in words


def test_ls_the_summary_and_the_report_say_and_count_the_same(
    demo: tuple[Path, str], tmp_path: Path
) -> None:
    out, said = demo
    command = [sys.executable, "-c", "from polymux.cli import main; main()", "ls", "--json"]
    done = subprocess.run([*command, str(out / "demo.pcapng")], capture_output=True, text=True)
    listed = [json.loads(line) for line in done.stdout.splitlines()]
    sessions = [row for row in listed if row["table"] == "sessions"]
    stalls = sum(row["stalls"] for row in sessions)
    violations = sum(row["findings"] for row in sessions) - stalls
    assert f"{violations} violation, {stalls} stalls" in said
    info = write_report(out / "tables", tmp_path / "report.html")
    assert (info.errors + info.warnings, info.stalls) == (violations, stalls)
    page = (tmp_path / "report.html").read_text()
    reasons = [row["why"] for row in listed if row["table"] == "streams"]
    told = [why.partition(" (and ")[0] for why in reasons if not why.startswith("carried")]
    assert len(told) == 6
    for sentence in told:
        if "head-of-line" not in sentence:  # ls does not know the culprit's name
            assert sentence in page
            assert sentence in " ".join(said.split())


def test_all_six_protocols_were_spoken(demo: tuple[Path, str]) -> None:
    out, _ = demo
    spoken = {(row["protocol"], row["version"]) for row in rows(out, "sessions")}
    assert {name for name, _ in spoken} == {
        "mplex", "nerdbank", "omnistreams", "streamux", "minmux", "yamux",
    }  # fmt: skip
    assert {version for name, version in spoken if name == "nerdbank"} == {"1", "2", "3"}


def test_streams_have_the_bytes_the_applications_counted(demo: tuple[Path, str]) -> None:
    out, _ = demo
    streams = rows(out, "streams")
    questions = [row for row in streams if (row["name"] or "").startswith("question")]
    assert len(questions) == 10
    for row in questions:
        assert (row["bytes_dialer"], row["bytes_acceptor"]) == (5_200, 5_200)
    messages = [row for row in streams if (row["name"] or "").startswith('{"part"')]
    assert [row["units_dialer"] for row in messages] == [50] * 4
    (minmux,) = [row for row in rows(out, "sessions") if row["protocol"] == "minmux"]
    items = [row for row in streams if row["session_id"] == minmux["session_id"]]
    assert [row["units_dialer"] for row in items] == [4_000] * 3


def test_every_request_is_an_exchange_with_its_reply(demo: tuple[Path, str]) -> None:
    out, _ = demo
    (session,) = [row for row in rows(out, "sessions") if row["protocol"] == "streamux"]
    calls = [row for row in rows(out, "streams") if row["session_id"] == session["session_id"]]
    assert {(row["bytes_dialer"], row["bytes_acceptor"]) for row in calls} == {(1300, 1300)}
    (asked,) = rows(out, "requests")
    assert (asked["session_id"], asked["opener"]) == (session["session_id"], "dialer")
    assert (asked["requests"], asked["answered"]) == (30, 30)
    assert 0 < asked["latency_p50_us"] <= asked["latency_p99_us"] <= asked["latency_max_us"]


def test_every_table_is_there_and_every_session_ended_clean(demo: tuple[Path, str]) -> None:
    out, said = demo
    for table in TABLES:
        if table != "content":
            assert (out / "tables" / table).is_dir()
    assert {row["ending"] for row in rows(out, "sessions")} == {"clean"}
    assert "every byte of every session is accounted for" in said
    assert (out / "tables" / "report.html").stat().st_size < 5_000_000


def test_the_recording_opens_in_tshark_without_a_malformed_packet(demo: tuple[Path, str]) -> None:
    out, _ = demo
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    # Above TCP everything is ours: tshark would only guess, and guesses wrong now and then.
    only = ["-d", "tcp.port==1-65535,data"]
    bad = "_ws.malformed || tcp.checksum.status == 0 || tcp.analysis.flags"
    done = subprocess.run(
        ["tshark", "-r", str(out / "demo.pcapng"), *only, "-o", "tcp.check_checksum:TRUE",
         "-Y", bad], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_a_scene_that_the_machine_disturbed_is_played_again() -> None:
    played: list[int] = []

    async def wait(session: Session) -> None:
        await session.wait_closed()

    async def disturbed_once(session: Session) -> None:
        played.append(len(played))
        await session.open("told apart by its size" * len(played))
        if len(played) == 1:
            raise MachineTooSlow

    tape = MemoryCapture()
    scene = Scene("mplex", "a pause of the machine", wait, disturbed_once)
    assert record_scene(scene, tape) == 2
    assert played == [0, 1]


def test_leave_that_comes_late_disturbs_a_scene() -> None:
    async def sleep_first(session: Session) -> None:
        await asyncio.sleep(0.1)
        await peers.take_messages(session)

    scene = Scene("omnistreams", "late", sleep_first, peers.send_messages, "ws://127.0.0.1:0/x")
    with pytest.raises(MachineTooSlow):
        asyncio.run(play_scene(scene, MemoryCapture()))
