"""The demo finds the faults that were planted, and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polymux.analysis.tables import TABLES
from polymux.analysis.tables_out import read_table


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-c", "from polymux.cli import main; main()", "demo"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(out / "tables", table).to_pylist()
    return found


def test_the_only_violation_is_the_planted_one(demo: tuple[Path, str]) -> None:
    out, _ = demo
    found = [row for row in rows(out, "violations") if row["severity"] != "note"]
    assert [(row["rule"], row["stream"], row["sender"], row["certainty"]) for row in found] == [
        ("mplex.write-after-close", "d1", "dialer", "certain")
    ]


def test_the_only_stall_is_the_starved_channel_and_its_time_is_right(
    demo: tuple[Path, str],
) -> None:
    out, _ = demo
    (stall,) = [row for row in rows(out, "stalls") if row["cause"] != "sender-idle"]
    assert (stall["cause"], stall["stream"], stall["sender"]) == ("no-credit", "d1", "dialer")
    assert 500_000 < stall["lasted_us"] < 2_000_000
    (stream,) = [row for row in rows(out, "streams") if row["name"] == "starved"]
    assert stream["blocked_us_dialer"] >= stall["lasted_us"]
    assert stream["octets_dialer"] == 60_000


def test_streams_have_the_octets_the_applications_counted(demo: tuple[Path, str]) -> None:
    out, _ = demo
    endings = [row["ending"] for row in rows(out, "streams")]
    assert sorted(ending for ending in endings if ending != "clean") == ["cancelled", "reset"]
    by_name = {row["name"]: row["ending"] for row in rows(out, "streams")}
    assert by_name["given up"] == "reset"
    named = [row for row in rows(out, "streams") if row["name"] is not None]
    questions = [row for row in named if row["name"].startswith("question")]
    assert len(questions) == 15
    for row in questions:
        assert (row["octets_dialer"], row["octets_acceptor"]) == (52_000, 52_000)
    messages = [row for row in named if row["name"].startswith('{"part"')]
    assert [row["units_dialer"] for row in messages] == [50] * 4


def test_every_request_is_an_exchange_with_its_reply(demo: tuple[Path, str]) -> None:
    out, _ = demo
    (session,) = [row for row in rows(out, "sessions") if row["protocol"] == "streamux"]
    calls = [row for row in rows(out, "streams") if row["session_id"] == session["session_id"]]
    answered = [row for row in calls if row["ending"] == "clean"]
    assert len(answered) == 30
    assert {(row["octets_dialer"], row["octets_acceptor"]) for row in answered} == {(1300, 1300)}


def test_every_table_is_there_and_every_session_ended_clean(demo: tuple[Path, str]) -> None:
    out, said = demo
    for table in TABLES:
        if table != "content":
            assert (out / "tables" / table).is_dir()
    assert {row["ending"] for row in rows(out, "sessions")} == {"clean"}
    assert "every octet of every session is accounted for" in said
    assert (out / "tables" / "report.html").stat().st_size < 5_000_000


def test_the_recording_opens_in_tshark_without_a_malformed_packet(demo: tuple[Path, str]) -> None:
    out, _ = demo
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    bad = "_ws.malformed || tcp.checksum.status == 0 || tcp.analysis.flags"
    done = subprocess.run(
        ["tshark", "-r", str(out / "demo.pcapng"), "-o", "tcp.check_checksum:TRUE", "-Y", bad],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
