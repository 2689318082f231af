"""`polymux analyze`: what it says before Spark starts, and what it shows while Spark works."""

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from tests.command_runner import invoke
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.parquet import write_empty_tables
from polymux.analysis.schema.tables import TABLES
from polymux.capture import FileSummary, PcapngWriter, TcpConnectionWriter
from polymux.cli import exit_code_for
from polymux.cli.commands.analyze import analyze, exit_code, print_summary, stage_progress
from polymux.cli.commands.report import report
from polymux.core.errors import CaptureUnavailable, PolymuxError
from polymux.report import write_report
from polymux.spark.batch import pipeline
from polymux.spark.batch.analyze_stage import StageResult
from polymux.spark.lake.lake import open_lake
from polymux.spark.runtime import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def capture(tmp_path: Path) -> str:
    path = tmp_path / "all.pcapng"
    record([path], conversations(61, 4))
    return str(path)


def refused(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What the command says when it ends without having started Spark."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "spark_session", started)
    done = invoke(analyze, list(arguments))
    assert done.exit_code != 0
    if isinstance(done.exception, PolymuxError):
        return str(done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    return done.output


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--conf", "spark.driver.memory"], "write spark.name=value"),
        (["--conf", "executor.memory=1g"], "write spark.name=value"),
        (["--conf", "spark.master=local[2]"], "write --master local[2]"),
        (["--filter", "nobody"], "not an IP address"),
        (["--port", "mplex"], "write 9000=mplex"),
        (["--protocol", "smtp"], "smtp"),
        (["nowhere.pcap"], "nowhere.pcap: no such file"),
    ],
)
def test_what_can_be_known_is_said_before_spark_starts(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: list[str], words: str
) -> None:
    said = refused(monkeypatch, capture, "--out", str(tmp_path / "t"), *extra)
    assert words in said
    assert not (tmp_path / "t").exists()


def test_an_output_that_cannot_be_written_is_said_before_spark_starts(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(monkeypatch, capture, "--out", str(tmp_path / "file"))
    below = str(tmp_path / "file" / "t")
    assert "cannot be written" in refused(monkeypatch, capture, "--out", below)
    assert "a directory that" in refused(monkeypatch, capture, "--out", "s3://bucket/tables")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        locked = str(tmp_path / "locked" / "t")
        assert "cannot be written" in refused(monkeypatch, capture, "--out", locked)


def test_settings_master_and_memory_reach_the_session(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    class Enough(Exception):
        pass

    def started(master: str, **options: object) -> None:
        given.update(options, master=master)
        raise Enough

    monkeypatch.setattr(session, "spark_session", started)
    done = invoke(
        analyze,
        [capture, "--out", str(tmp_path / "t"), "--master", "spark://head:7077", "--memory", "2g",
         "--conf", "spark.executor.memory=3g", "--conf", "spark.a=b=c"],
    )  # fmt: skip
    assert isinstance(done.exception, Enough)
    assert given["master"] == "spark://head:7077"
    assert given["memory"] == "2g"
    assert given["conf"] == {"spark.executor.memory": "3g", "spark.a": "b=c"}


def test_no_name_of_a_file_is_obeyed_by_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "\x1b[2J[red]tables"
    out.mkdir()
    write_empty_tables(out)
    unread = FileSummary(
        "/caps/\x1b]0;mine\x07x.pcap", None, "unreadable", error="not a capture", error_offset=0
    )
    monkeypatch.chdir(tmp_path)
    print_summary(pipeline.Analysis(str(out), [unread], StageResult()), "")
    said = capsys.readouterr()
    assert "\x1b" not in said.err + said.out
    assert said.err == ("/caps/\\u001b]0;mine\\u0007x.pcap: unreadable at byte 0: not a capture\n")
    assert "tables: \\u001b[2J[red]tables\n" in said.out


def test_the_command_uses_the_running_session_and_leaves_it_running(
    spark: "SparkSession", capture: str, tmp_path: Path
) -> None:
    done = invoke(analyze, [capture, "--out", str(tmp_path / "t"), "--no-report"])
    assert done.exit_code == 0, done.output
    assert "conservation: every byte of every session is accounted for" in done.output
    assert "4 sessions" in done.output
    assert spark.range(3).count() == 3


def test_the_report_is_that_of_the_captures_without_spark_which_the_command_mentions(
    spark: "SparkSession", capture: str, tmp_path: Path
) -> None:
    done = invoke(analyze, [capture, "--out", str(tmp_path / "t")])
    assert done.exit_code == 0, done.output
    assert f"are quick without Spark: polymux report {capture}\n" in done.stderr
    page = tmp_path / "page.html"
    assert invoke(report, [capture, "-o", str(page)]).exit_code == 0
    assert page.read_bytes() == (tmp_path / "t" / "report.html").read_bytes()


def test_the_command_adds_to_a_lake_and_follows_a_directory_into_it(
    spark: "SparkSession", capture: str, tmp_path: Path
) -> None:
    inbox, lake = tmp_path / "inbox", tmp_path / "lake"
    inbox.mkdir()
    shutil.copy(capture, inbox / "one.pcapng")
    asked = [str(inbox), "--out", str(lake), "--append"]
    done = invoke(analyze, asked)
    assert done.exit_code == 0, done.output
    assert "1 capture read, 0 as before; 0 sessions replaced, 4 not over" in done.stdout
    assert done.stdout.endswith("lake, version 1\n")
    assert not (lake / "report.html").exists()
    again = invoke(analyze, asked)
    assert "nothing new: 1 capture as before" in again.stdout
    record([inbox / "two.pcapng"], conversations(71, 3), port=50_000)
    followed = invoke(analyze, [*asked, "--watch", "--available-now"])
    assert followed.exit_code == 0, followed.output
    assert "version 2: 1 capture read, 1 as before; 0 sessions replaced" in followed.stderr
    now = open_lake(str(lake)).current()
    assert now is not None
    assert (now.number, sum(file.rows for file in now.files_of("sessions"))) == (2, 7)


def test_forget_needs_the_day_of_the_captures(tmp_path: Path) -> None:
    words = [str(tmp_path), "--out", str(tmp_path / "lake"), "--append", "--forget"]
    ran = invoke(analyze, words)
    assert ran.exit_code == 2
    assert "--forget: name the day, with --reprocess DATE" in ran.output


def test_packets_that_were_left_out_of_a_lake_are_input_that_was_not_read() -> None:
    for left_out, code in ((0, 0), (1, 3)):
        done = pipeline.Analysis(
            "lake", [], StageResult(), lake=pipeline.LakeRun(2, 0, 0, 0, 1, left_out, ("a",))
        )
        assert exit_code(done, None) == code


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--format", "delta"], "give --append"),
        (["--append", "--reprocess", "2026-11-03"], "--reprocess: with --watch"),
        (["--append", "--idle-timeout", "9"], "--idle-timeout: not with a lake"),
        (["--append", "--session-grace", "1"], "--session-grace: not with a lake"),
    ],
)
def test_options_that_do_not_go_with_following_into_a_lake_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: list[str], words: str
) -> None:
    asked = [str(tmp_path), "--out", str(tmp_path / "lake"), "--watch", *extra]
    assert words in refused(monkeypatch, *asked)
    assert not (tmp_path / "lake").exists()


def test_a_bar_shows_every_stage(spark: "SparkSession", capture: str, tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with stage_progress(spark, console) as tell:
        pipeline.analyze(spark, [capture], str(tmp_path / "t"), on_stage=tell)
    shown = screen.getvalue()
    assert all(stage in shown for stage in ("index", "analyze", "publish"))
    assert "━" in shown


def test_content_is_its_owners_alone_and_findings_fail_if_asked(
    spark: "SparkSession", tmp_path: Path
) -> None:
    path = tmp_path / "broken.pcapng"
    with PcapngWriter(path, sync="none") as writer:
        scribe = TcpConnectionWriter(writer, ("192.0.2.1", 40000), ("192.0.2.2", 9000), 10**18)
        for at, data in enumerate((b"\x08\x04good", b"\x0c\x00", b"\x0a\x04late")):
            scribe.data(0, data, 10**18 + at)
        scribe.close(10**18 + 9)
    former = os.umask(0o022)
    try:
        out = str(tmp_path / "t")
        asked = [str(path), "--out", out, "--content", "--no-report", "--protocol", "mplex"]
        assert invoke(analyze, asked).exit_code == 0
        done = invoke(analyze, [*asked, "--fail-on", "violations"])
    finally:
        os.umask(former)
    assert done.exit_code == 1, done.output
    modes = {
        table.name: {file.stat().st_mode & 0o777 for file in table.glob("*.parquet")}
        for table in (tmp_path / "t").iterdir()
    }
    assert modes["content"] == {0o600}
    assert modes["frames"] == {0o644}


def test_a_report_with_payload_is_its_owners_alone(capture: str, tmp_path: Path) -> None:
    without_spark([Path(capture)], tmp_path / "tables")
    page = tmp_path / "report.html"
    former = os.umask(0o022)
    try:
        write_report(tmp_path / "tables", page)
        assert page.stat().st_mode & 0o777 == 0o644
        write_report(tmp_path / "tables", page, payload="head:16")
        assert page.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(former)


@pytest.mark.parametrize("wait", [0.5, 2.5])
def test_ctrl_c_in_the_first_seconds_is_one_line_and_130(
    wait: float, capture: str, tmp_path: Path
) -> None:
    code = "from polymux.cli import main; print('ready', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "analyze", capture, "--out", str(tmp_path / "t")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(wait)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Java gets it too
    _, err = process.communicate(timeout=200)
    hint = f"KiB are quick without Spark: polymux report {capture}\n"  # printed before Spark starts
    _, told, rest = err.rpartition(hint)
    assert (process.returncode, rest) == (130, "polymux: interrupted\n")
    assert err.count("\n") == (2 if told else 1)
    published = {path.name for path in (tmp_path / "t").glob("[!_]*") if path.is_dir()}
    # After 2.5 s a quick machine may have published every table; never some of them.
    whole = [set(TABLES) - {"content"}] if wait > 1 else []
    assert published in [set(), *whole]


def published(monkeypatch: pytest.MonkeyPatch, out: Path) -> pipeline.Analysis:
    """Let the analysis do nothing, without Spark, and return this."""
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: nullcontext())
    write_empty_tables(out)
    done = pipeline.Analysis(str(out), [], StageResult())
    monkeypatch.setattr(pipeline, "analyze", lambda *_, **__: done)
    return done


def test_a_run_that_does_not_balance_is_3_and_says_so(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = published(monkeypatch, tmp_path / "t")
    arguments = [capture, "--out", "t", "--no-report"]
    assert invoke(analyze, arguments).exit_code == 0
    done.total.unbalanced_count, done.total.unbalanced = 1, ["a session"]
    ran = invoke(analyze, arguments)
    assert ran.exit_code == 3
    assert "bytes are unaccounted for in 1 session: a session" in ran.output
    assert "this is a bug in polymux" in ran.output
    done.total.unbalanced_count, done.indexed_packets = 0, 7
    assert invoke(analyze, arguments).exit_code == 3


def test_a_damaged_capture_is_3_with_new_tables_and_a_lost_one_3_with_those_of_before(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = published(monkeypatch, tmp_path / "t")
    done.captures.append(FileSummary(capture, "pcapng", "truncated", error="ends inside a block"))
    arguments = [capture, "--out", "t", "--no-report"]
    ran = invoke(analyze, arguments)
    assert (ran.exit_code, "those of before" in ran.output) == (3, False)

    def lose(*_: object, **__: object) -> None:
        raise CaptureUnavailable("has changed since it was indexed", capture)

    monkeypatch.setattr(pipeline, "analyze", lose)
    ran = invoke(analyze, arguments)
    assert isinstance(ran.exception, CaptureUnavailable)
    assert exit_code_for(ran.exception) == 3
    assert "nothing was published: the tables in t are those of before" in ran.output
    ran = invoke(analyze, [str(tmp_path / "gone.pcapng"), "--out", "t"])
    assert "the tables in t are those of before" in ran.output
    shutil.rmtree(tmp_path / "t")
    assert "those of before" not in invoke(analyze, arguments).output
