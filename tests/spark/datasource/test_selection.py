"""What a query asks for reaches the reader: the options that select rows, beside `where`."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.parquet import read_table
from polymux.capture import PcapngWriter, TcpConnectionWriter, hint_comment
from polymux.core.errors import PolymuxError
from polymux.spark.datasource.batch_reader import TableReader
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.source import register

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter

START = 1_700_000_000_000_000_000
Row = dict[str, object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captures that share their sessions, and the tables of them beside."""
    folder = tmp_path_factory.mktemp("selection")
    (folder / "captures").mkdir()
    paths = [folder / "captures" / f"{name}.pcapng" for name in "ab"]
    record(paths, conversations(60, 8), seed=3)
    without_spark(paths, folder / "tables")
    return folder


def read(folder: Path, table: str, **options: str) -> list[Row]:
    """The rows of a read with these options, by calling the reader as Spark does."""
    reader = TableReader(SourceOptions.parse({"path": str(folder), "table": table, **options}))
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def in_order(rows: "Iterable[Row]") -> list[str]:
    return sorted(map(str, rows))


def can_be_selected(table: str, options: dict[str, str]) -> bool:
    try:
        SourceOptions.parse({"path": "x", "table": table, **options})
    except PolymuxError:
        return False
    return True


def check_equals_where(folder: Path, condition: str, options: dict[str, str]) -> None:
    """The rows by these options are those of the tables for which the condition holds."""
    import duckdb

    for table in ("frames", "streams", "violations", "stalls", "timeline", "content", "sessions"):
        if not can_be_selected(table, options):
            continue
        found = read(folder / "captures", table, **options)
        rows = read_table(folder / "tables", table)
        sessions = read_table(folder / "tables", "sessions").select(
            ["session_id", "protocol", "sensor", "started_at"]
        )
        with duckdb.connect() as database:
            database.register("rows", rows.append_column("row", pa.array(range(rows.num_rows))))
            database.register("sessions", sessions.rename_columns(["id", "p", "s", "begun"]))
            wanted = database.execute(
                f"select row from rows join sessions on session_id = id where {condition}"
            ).fetchall()
        expected = rows.take(pa.array([row for (row,) in wanted], pa.int64())).to_pylist()
        assert in_order(found) == in_order(expected)
        assert table != "frames" or 0 < len(found) < rows.num_rows


def test_the_rows_selected_by_options_are_those_of_where(folder: Path) -> None:
    sessions = read_table(folder / "tables", "sessions").to_pylist()
    frames = read_table(folder / "tables", "frames").to_pylist()
    one, two = sessions[2]["session_id"], sessions[5]["session_id"]
    times = sorted(row["time"] for row in frames)
    since, until = times[len(times) // 3], times[len(times) // 2]
    stream = next(row["stream"] for row in frames if row["stream"])
    cases = [
        (f"session_id in ('{one}', '{two}')", {"onlySessions": f"{one}, {two}"}),
        ("p = 'mplex'", {"onlyProtocols": "mplex"}),
        (f"stream = '{stream}'", {"onlyStreams": str(stream)}),
        ("sender = 'acceptor'", {"onlySenders": "acceptor"}),
        ("kind in ('Content', 'MessageInitiator')", {"onlyKinds": "Content,MessageInitiator"}),
        ("verdict <> 'clean'", {"onlyVerdicts": "crossed,violation"}),
        ("p = 'nerdbank' and sender = 'dialer' and kind = 'Content'",
         {"onlyProtocols": "nerdbank", "onlySenders": "dialer", "onlyKinds": "Content"}),
    ]  # fmt: skip
    for condition, options in cases:
        check_equals_where(folder, condition, options)
    for table, column in (("frames", "time"), ("streams", "opened_at"), ("sessions", "started_at")):
        rows = read_table(folder / "tables", table).to_pylist()
        expected = [row for row in rows if row[column] and since <= row[column] < until]
        given = {"since": str(since), "until": until.isoformat()}
        assert in_order(read(folder / "captures", table, **given)) == in_order(expected)


def test_columns_that_select_rows_need_not_be_read(folder: Path) -> None:
    rows = read(folder / "captures", "frames", columns="size", onlySenders="dialer")
    frames = read_table(folder / "tables", "frames").to_pylist()
    assert sorted(row["size"] for row in rows) == sorted(  # type: ignore[type-var]  # integers
        row["size"] for row in frames if row["sender"] == "dialer"
    )
    assert rows[0].keys() == {"size"}


def test_only_the_sensors_asked_for_are_read(tmp_path: Path, folder: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        record([tmp_path / name / "a.pcapng"], conversations(10, 1))
    by_path = {"sensorFrom": "{sensor}/*.pcapng"}
    both = read(tmp_path, "sessions", **by_path)
    right = read(tmp_path, "sessions", onlySensors="right", **by_path)
    assert sorted(str(row["sensor"]) for row in both) == ["left", "right"]
    assert right == [row for row in both if row["sensor"] == "right"]
    assert read(tmp_path, "frames", onlySensors="middle", **by_path) == []
    files = read(tmp_path, "captures", onlySensors="left", **by_path)
    assert [Path(str(row["file"])).parent.name for row in files] == ["left"]


def test_one_session_of_many_costs_the_payload_of_one(tmp_path: Path) -> None:
    path = tmp_path / "many.pcapng"
    with PcapngWriter(str(path), sync="none") as writer:
        talks = [
            TcpConnectionWriter(
                writer, ("192.0.2.1", 20_000 + n), ("198.51.100.2", 9000), START + n,
                comment=hint_comment("mplex", "middle"),
            )
            for n in range(200)
        ]  # fmt: skip
        for turn in range(3):
            for n, talk in enumerate(talks):
                frame = b"\x02\xe4\x0f" + bytes(2020) if turn else b"\x00\x01a"
                talk.data(0, frame, START + 1000 * turn + n)
        for talk in talks:
            talk.close(START + 5000)
    options = {"path": str(path), "columns": "session_id,frame_index,size"}

    def rows_and_bytes(**given: str) -> tuple[list[Row], int]:
        reader = TableReader(SourceOptions.parse(options | given))
        rows = [
            row
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]
        return rows, reader.read_bytes

    everything, all_bytes = rows_and_bytes()
    assert all_bytes >= 200 * 4000
    wanted = str(everything[77]["session_id"])
    found, read_bytes = rows_and_bytes(onlySessions=wanted)
    assert found == [row for row in everything if row["session_id"] == wanted]
    assert 4000 <= read_bytes <= all_bytes * 0.05
    assert rows_and_bytes(protocol="mplex", onlyProtocols="yamux") == ([], 0)
    assert rows_and_bytes(since="2030-01-01") == ([], 0)


def test_sessions_of_other_protocols_have_no_rows_though_they_were_looked_at(folder: Path) -> None:
    rows = read(folder / "captures", "sessions", onlyProtocols="yamux,mplex")
    assert {row["protocol"] for row in rows} == {"mplex"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"onlySessions": "d1"}, "'d1' is not a session_id"),
        ({"onlyProtocols": "smtp"}, "'smtp' is not known; there are mplex"),
        ({"onlySenders": "server"}, "there are dialer, acceptor"),
        ({"onlyVerdicts": "bad"}, "there are clean, crossed, violation"),
        ({"onlyKinds": " ,"}, "it is empty"),
        ({"table": "sessions", "onlyKinds": "Data"}, "but those of frames"),
        ({"table": "timeline", "since": "2026-01-01"}, "but those of frames, violations"),
        ({"table": "captures", "onlySessions": "0" * 16}, "rows of captures"),
        ({"until": "yesterday"}, "'yesterday' is not a time; write 2026-11-03"),
    ],
)
def test_a_selection_that_cannot_be_made_is_refused_with_what_would_do(
    options: dict[str, str], words: str
) -> None:
    with pytest.raises(PolymuxError, match=words):
        SourceOptions.parse({"path": "x", **options})


class TenRows(DataSource):
    """A source of ten numbers that accepts pushed filters, as PySpark documents it."""

    @classmethod
    def name(cls) -> str:
        return "ten_rows"

    def schema(self) -> str:
        return "number int, parity string"

    def reader(self, schema: object) -> "DataSourceReader":
        return TenRowsReader()


class TenRowsReader(DataSourceReader):
    def __init__(self) -> None:
        self.kept: list[EqualTo] = []

    def pushFilters(self, filters: "list[Filter]") -> "Iterator[Filter]":
        for one in filters:
            if isinstance(one, EqualTo):
                self.kept.append(one)
            else:
                yield one

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> "Iterator[tuple[int, str]]":
        for number in range(10):
            row = {"number": number, "parity": "odd" if number % 2 else "even"}
            if all(row[one.attribute[0]] == one.value for one in self.kept):
                yield number, str(row["parity"])


def test_pushed_filters_of_spark_cannot_be_used_instead(spark: "SparkSession") -> None:
    """Where this fails, PySpark has mended it: the options could be joined by pushed filters."""
    spark.dataSource.register(TenRows)
    rows = spark.read.format("ten_rows").load()
    with pytest.raises(Exception, match="Failed to initialize Python data source reader"):
        rows.count()  # a reader that can take filters fails as long as they are off
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        rows = spark.read.format("ten_rows").load()
        even = rows.where("parity = 'even'")
        assert (rows.count(), even.count()) == (10, 5)
        assert rows.count() == 5, "the filter of one query stays in the next"
    finally:
        spark.conf.unset(setting)


def test_a_data_frame_of_selected_rows_can_be_used_twice(
    spark: "SparkSession", folder: Path
) -> None:
    register(spark)
    rows = spark.read.format("polymux").option("onlySenders", "dialer")
    frames = rows.load(str(folder / "captures"))
    expected = read_table(folder / "tables", "frames").to_pylist()
    count = sum(row["sender"] == "dialer" for row in expected)
    content = sum(row["sender"] == "dialer" and row["kind"] == "Content" for row in expected)
    assert frames.where("kind = 'Content'").count() == content
    assert (frames.count(), frames.union(frames).count()) == (count, 2 * count)
