"""A DataFrame sent over multiplexed streams to a collector, and read back from its tables."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import PolymuxError
from polymux.spark.datasource.source import register
from polymux.spark.sink.readback import read_back, split_prefixed
from polymux.spark.sink.stream_labels import (
    StreamLabel,
    decode_commit,
    encode_commit,
    length_prefixed,
)
from polymux.spark.sink.writers import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A driver whose tasks are retried. One task fails after it has sent some of its rows; then a
# stream is written, and its last batch is run again.
PROGRAM = """
import json, sys, time
from collections import Counter
from pathlib import Path
from polymux.analysis.output.parquet import read_table
from polymux.spark import analyze, spark_session
from polymux.spark.sink.readback import read_back
from polymux.spark.datasource.source import register

url, captures, folder, rows = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])


def fail_once(batches):
    from pyspark import TaskContext
    context = TaskContext.get()
    for number, batch in enumerate(batches):
        if context.partitionId() == 1 and context.attemptNumber() == 0 and number == 3:
            raise RuntimeError("this task was made to fail")
        yield batch


with spark_session("local[2,3]") as spark:
    register(spark)
    sent = spark.range(0, rows, 1, 4).selectExpr(
        "concat('part ', id % 3) as stream", "concat('row ', id, ' ', repeat('x', id % 50)) as data"
    )
    failing = sent.mapInArrow(fail_once, sent.schema)
    to = dict(url=url, protocol="mplex")
    failing.write.format("polymux").options(**to, job="batch").mode("append").save()

    texts = folder / "texts"
    texts.mkdir()

    def run(text):
        (texts / f"{text}.txt").write_text(f"{text} 1\\n{text} 2\\n")
        query = (
            spark.readStream.text(str(texts)).selectExpr("value as data").writeStream
            .format("polymux").options(**to)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True).start()
        )
        query.awaitTermination(60)
        assert query.exception() is None, query.exception()

    run("one")
    run("two")
    newest = max((folder / "checkpoint/commits").glob("[0-9]*"), key=lambda p: int(p.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    run("three")

    Path(captures, "enough").touch()  # the collector publishes what it has
    while not Path(captures, "published").exists():
        time.sleep(0.05)
    analyze(spark, [captures], str(folder / "tables"), content=True)
    back = read_back(spark, str(folder / "tables")).collect()

expected = Counter((f"part {n % 3}", f"row {n} " + "x" * (n % 50)) for n in range(rows))
found = Counter((r["stream"], bytes(r["data"]).decode()) for r in back if r["job"] == "batch")
names = read_table(folder / "tables", "streams")["name"].to_pylist()
print(json.dumps({
    "back": found.total(),
    "too much": (found - expected).total(),
    "missing": (expected - found).total(),
    "attempts": sorted({name.partition("attempt=")[2][:1] for name in names}),
    "streamed": sorted(bytes(r["data"]).decode() for r in back if r["job"] != "batch"),
    "epochs": sum(name.startswith("rows?") for name in names),
}))
"""


class Collecting(threading.Thread):
    """A collector in another process; one file tells it to stop, and it reports by another."""

    def __init__(self, folder: Path, protocols: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.protocols = protocols
        self.urls: dict[str, str] = {}
        self.ready = threading.Event()
        folder.mkdir()
        self.start()
        assert self.ready.wait(20)

    def run(self) -> None:
        from polymux.record import Collector

        async def collect() -> None:
            async with Collector(str(self.folder), rotate_seconds=2) as collector:
                for protocol, url in self.protocols.items():
                    self.urls[protocol] = await collector.listen(url, protocol)
                self.ready.set()
                while not (self.folder / "enough").exists():
                    await asyncio.sleep(0.05)

        asyncio.run(collect())
        (self.folder / "enough").unlink()
        (self.folder / "published").touch()

    def finish(self) -> None:
        (self.folder / "enough").touch()
        self.join(30)
        (self.folder / "published").unlink(missing_ok=True)


@pytest.mark.timeout(300)
def test_200000_rows_come_back_once_though_a_task_failed_and_a_batch_was_replayed(
    tmp_path: Path,
) -> None:
    collecting = Collecting(tmp_path / "captures", {"mplex": "tcp://127.0.0.1:0"})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, collecting.urls["mplex"], str(collecting.folder),
         str(tmp_path), "200000"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "this task was made to fail" in done.stderr
    told = json.loads(done.stdout)
    assert told["back"] == 200_000
    assert (told["too much"], told["missing"]) == (0, 0)
    assert told["attempts"] == ["0", "1"], "no task was retried"
    assert told["streamed"] == ["one 1", "one 2", "three 1", "three 2", "two 1", "two 2"]
    assert told["epochs"] > 3, "no batch was replayed"


@pytest.fixture(scope="module")
def collecting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collecting]:
    collector = Collecting(
        tmp_path_factory.mktemp("sink") / "captures",
        {
            "nerdbank": "tcp://127.0.0.1:0", "streamux": "tcp://127.0.0.1:0",
            "minmux": "tcp://127.0.0.1:0", "omnistreams": "ws://127.0.0.1:0",
        },
    )  # fmt: skip
    yield collector
    collector.finish()


def test_rows_of_any_size_come_back_over_every_other_protocol(
    spark: SparkSession, collecting: Collecting, tmp_path: Path
) -> None:
    from polymux.spark import analyze

    register(spark)
    rows = [(None, b""), ("a", bytes(200_000)), ("a", b"\x00\xff"), ("b?x=1&y", b"row")]
    sent = spark.createDataFrame(rows * 5, "stream string, data binary").repartition(3)
    for protocol, url in collecting.urls.items():
        options = {"url": url, "protocol": protocol, "job": protocol}
        sent.write.format("polymux").options(**options).mode("append").save()
    collecting.finish()
    analyze(spark, [str(collecting.folder)], str(tmp_path / "tables"), content=True)
    wanted = sorted((name or "rows", data) for name, data in rows * 5)
    back = read_back(spark, str(tmp_path / "tables")).collect()
    for protocol in collecting.urls:
        found = [(row["stream"], bytes(row["data"])) for row in back if row["job"] == protocol]
        assert sorted(found) == wanted, protocol
    one = read_back(spark, str(tmp_path / "tables"), job="minmux")
    assert {row["job"] for row in one.select("job").distinct().collect()} == {"minmux"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"protocol": "mplex"}, "no url"),
        ({"url": "tcp://localhost:1"}, "no protocol"),
        ({"url": "nowhere", "protocol": "mplex"}, "a URL begins with"),
        ({"url": "tcp://localhost:1", "protocol": "nosuch"}, "nosuch"),
        ({"url": "tcp://localhost:1", "protocol": "mplex", "framing": "csv"}, "framing 'csv'"),
        ({"url": "tcp://localhost:1", "protocol": "mplex", "colour": "red"}, "colour"),
        ({"url": "tcp://localhost:1", "protocol": "mplex", "timeout": "soon"}, "timeout 'soon'"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_sent(
    options: dict[str, str], text: str
) -> None:
    with pytest.raises(PolymuxError, match=text):
        SinkOptions.parse(options, streaming=False)


@given(
    st.builds(
        StreamLabel, st.text(max_size=20), st.text("abc-/?&=", min_size=1), st.integers(0, 9),
        st.integers(-1, 99), st.integers(0, 9), st.text("0123456789abcdef", min_size=1),
        st.sampled_from(["raw", "prefixed", "messages"]), st.integers(1, 3),
    )
)  # fmt: skip
def test_a_label_is_read_back_from_the_name_of_its_stream(label: StreamLabel) -> None:
    assert StreamLabel.parse(str(label)) == label


@given(st.text())
def test_names_of_others_are_no_labels(name: str) -> None:
    assert StreamLabel.parse(name) is None or "?" in name


@given(st.lists(st.binary(max_size=40)), st.data())
def test_rows_are_told_apart_wherever_the_stream_was_cut(
    rows: list[bytes], data: st.DataObject
) -> None:
    raw = b"".join(map(length_prefixed, rows))
    found: list[bytes] = []
    rest = b""
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        more, rest = split_prefixed(rest + raw[:size])
        found += more
        raw = raw[size:]
    assert found == rows
    assert rest == b""


def test_a_commit_that_is_not_whole_commits_nobody() -> None:
    whole = encode_commit(["b", "a"])
    assert decode_commit(whole) == ["a", "b"]
    assert all(decode_commit(whole[:size]) == [] for size in range(len(whole)))
