"""Following with Spark: micro-batches, checkpoints, replays, and what a stream gives."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.spark.random_captures import START, conversations, record, without_spark

from polymux.analysis.output.parquet import read_table
from polymux.analysis.output.table_digest import digest_tables
from polymux.capture import PcapngWriter, SensorNaming, TcpConnectionWriter, hint_comment
from polymux.cli.commands import analyze_watch as analyze_follow
from polymux.core.errors import PolymuxError
from polymux.spark.datasource.source import register
from polymux.spark.runtime.run_counters import run_counters
from polymux.spark.streaming.capture_folder import MIN_PARALLEL_BYTES
from polymux.spark.streaming.open_sessions import SessionTimeouts
from polymux.spark.streaming.query import BatchReport, start_following

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 4
WAITS = SessionTimeouts(session_grace=0.2, session_timeout=3000, idle_timeout=6000)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], dict[str, str]]:
    folder = tmp_path_factory.mktemp("following")
    paths = [folder / f"talk-{number:05}.pcapng" for number in range(1, FILES + 1)]
    record(paths, conversations(50, 5), seed=5)
    without_spark(paths, folder / "once")
    return paths, digest_tables(folder / "once")


def run_once(spark: SparkSession, inbox: Path, out: Path) -> list[BatchReport]:
    """Follow the existing files to their end."""
    done: list[BatchReport] = []
    query = start_following(
        spark, str(inbox), str(out), content=True, timeouts=WAITS, available_now=True,
        on_batch=done.append,
    )  # fmt: skip
    query.awaitTermination(250)
    assert not query.isActive
    assert query.exception() is None
    return done


def until(truth: Callable[[], bool], seconds: float = 250) -> None:
    limit = time.monotonic() + seconds
    while not truth():
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_scheduled_runs_go_on_where_the_last_one_ended(
    spark: SparkSession, material: tuple[list[Path], dict[str, str]], tmp_path: Path
) -> None:
    paths, expected = material
    inbox, out = tmp_path / "inbox", tmp_path / "out"
    inbox.mkdir()
    for path in reversed(paths):  # in the wrong order
        shutil.copy(path, inbox)
        done = run_once(spark, inbox, out)
        assert sum(batch.files for batch in done) == 1
        if path != paths[0]:
            assert pq.read_table(out / "open_sessions").num_rows > 0
    time.sleep(0.3)
    run_once(spark, inbox, out)
    assert digest_tables(out) == expected
    assert pq.read_table(out / "open_sessions").num_rows == 0
    assert run_once(spark, inbox, out) == []
    batches = len(list(out.glob("*/batch-*.parquet")))

    # The newest entry of the commit log is lost: the batch is run again, and changes nothing.
    commits = out / "_follow" / "checkpoint" / "commits"
    newest = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    assert [batch.batch_id for batch in run_once(spark, inbox, out)] == [int(newest.name)]
    assert digest_tables(out) == expected
    assert len(list(out.glob("*/batch-*.parquet"))) == batches


def test_a_running_query_gives_out_sessions_as_they_end(
    spark: SparkSession, material: tuple[list[Path], dict[str, str]], tmp_path: Path
) -> None:
    paths, expected = material
    inbox, out = tmp_path / "inbox", tmp_path / "out"
    inbox.mkdir()
    done: list[BatchReport] = []
    query = start_following(
        spark,
        str(inbox),
        str(out),
        content=True,
        timeouts=WAITS,
        interval=0.1,
        on_batch=done.append,
    )
    try:
        for path in paths:
            shutil.copy(path, inbox / f".{path.name}")
            (inbox / f".{path.name}").rename(inbox / path.name)
            time.sleep(0.2)
        until(lambda: sum(batch.sessions for batch in done) == 5)
    finally:
        query.stop()
    assert query.exception() is None
    assert digest_tables(out) == expected
    assert sum(batch.capture_bytes for batch in done) == sum(path.stat().st_size for path in paths)


def test_read_stream_gives_the_rows_of_a_table_once(
    spark: SparkSession, material: tuple[list[Path], dict[str, str]], tmp_path: Path
) -> None:
    paths, _ = material
    register(spark)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    rows: list[tuple[str, str]] = []
    for path in paths:
        shutil.copy(path, inbox)
    time.sleep(1.1)
    stream = (
        spark.readStream.format("polymux").option("table", "streams")
        .option("columns", "session_id,stream").option("sessionGrace", "0.5").load(str(inbox))
    )  # fmt: skip
    for _ in range(2):
        query = (
            stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda batch, number: rows.extend(map(tuple, batch.collect())))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(60)
        assert query.exception() is None
    batch = spark.read.format("polymux").option("table", "streams").load(str(inbox))
    assert sorted(rows) == sorted(map(tuple, batch.select("session_id", "stream").collect()))
    assert rows


def test_an_output_is_followed_with_the_options_it_was_begun_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox, out = tmp_path / "inbox", tmp_path / "out"
    with pytest.raises(PolymuxError, match="no such directory"):
        start_following(spark, str(inbox), str(out))
    inbox.mkdir()
    run_once(spark, inbox, out)
    with pytest.raises(PolymuxError, match="content='true'"):
        start_following(spark, str(inbox), str(out))
    with pytest.raises(PolymuxError, match="sessionTimeout='3000', not '5'"):
        start_following(
            spark, str(inbox), str(out), content=True, timeouts=SessionTimeouts(0.2, 5, 600)
        )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(PolymuxError, match="choose another"):
        start_following(spark, str(inbox), str(tmp_path / "mine"))
    with pytest.raises(PolymuxError, match="nosuch"):
        start_following(spark, str(inbox), str(tmp_path / "new"), protocol="nosuch")


def test_a_signal_that_comes_as_it_says_what_it_follows_ends_it_in_good_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        signal.raise_signal(signal.SIGTERM)

    def unheard(number: int, frame: object) -> None:
        raise AssertionError("nobody took the signal")

    former = signal.signal(signal.SIGTERM, unheard)
    monkeypatch.setattr(analyze_follow, "warn", say)
    try:
        analyze_follow.run_watch(
            spark, str(tmp_path), str(tmp_path / "out"), protocol="mplex", ports=(), filters=(),
            content=False, available_now=False, interval=0.1, timeouts=(0.2, 60, 600, 600),
            keys=(), sensors=SensorNaming(),
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, former)
    assert said == [f"watching {tmp_path}, tables in {tmp_path / 'out'}"]
    assert spark.streams.active == []


def test_a_backlog_is_indexed_by_tasks_and_the_counters_are_in_the_metrics_of_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    frames, content = 700, bytes(100_000)
    for number in range(2):
        with PcapngWriter(str(inbox / f"bulk-{number}.pcapng"), sync="none") as writer:
            talk = TcpConnectionWriter(
                writer, ("192.0.2.1", 40000 + number), ("198.51.100.2", 9000), START,
                comment=hint_comment("mplex", "acceptor"),
            )  # fmt: skip
            talk.data(0, bytes.fromhex("000161"), START + 1)
            for frame in range(frames):
                # Header and length, both as varints: a message of the dialer on stream 0.
                talk.data(0, bytes.fromhex("02 a08d06") + content, START + 2 + frame)
            talk.close(START + 1000)
    assert sum(path.stat().st_size for path in inbox.iterdir()) > MIN_PARALLEL_BYTES
    before = run_counters(spark).metrics()
    batches = run_once(spark, inbox, tmp_path / "out")
    after = run_counters(spark).metrics()
    assert [(batch.files, batch.rows) for batch in batches][:1] == [(0, 0)]
    assert sum(batch.files for batch in batches) == 2
    assert sum(batch.sessions for batch in batches) == 2
    found = {name: after[name] - before[name] for name in ("sessions", "frames", "violations")}
    violations = read_table(tmp_path / "out", "violations").num_rows
    assert found == {"sessions": 2, "frames": 2 * (frames + 1), "violations": violations}
    assert after["input_bytes"] - before["input_bytes"] >= 2 * frames * len(content)
    assert after["output_rows"] - before["output_rows"] == sum(batch.rows for batch in batches)
    assert list((tmp_path / "out" / "_follow" / "indexes").iterdir()) == []
