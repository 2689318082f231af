"""`spark.read.format("polymux")`: the rows of the analysis as DataFrames."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.parquet import read_table
from polymux.analysis.output.table_digest import digest_rows, digest_tables
from polymux.analysis.schema.tables import TABLES
from polymux.core.errors import PolymuxError
from polymux.spark.datasource import batch_reader as source_reader
from polymux.spark.datasource.batch_reader import FlowIndex, TableReader
from polymux.spark.datasource.options import SourceOptions, keep_options, with_kept_options
from polymux.spark.datasource.source import register, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captures that share their sessions, and the tables of them beside."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "captures").mkdir()
    paths = [folder / "captures" / f"{name}.pcapng" for name in "ab"]
    record(paths, conversations(40, 8), seed=2)
    without_spark(paths, folder / "tables")
    return folder


def digest(table: str, rows: "DataFrame") -> str:
    """The digest of a DataFrame, in the schema of the tables."""
    found = rows.toArrow().cast(
        pa.schema([f.with_nullable(True) for f in TABLES[table].to_arrow()])
    )
    return digest_rows(table, found.cast(TABLES[table].to_arrow()).to_batches())


def rows_of(options: dict[str, str]) -> list[dict[str, object]]:
    """What a read gives, by calling the reader as Spark does."""
    reader = TableReader(SourceOptions.parse(options))
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def test_a_data_frame_has_the_rows_of_the_walk(spark: "SparkSession", folder: Path) -> None:
    register(spark)
    rows = spark.read.format("polymux").load(str(folder / "captures"))
    assert rows.schema == spark_schema("frames")
    assert digest("frames", rows) == digest_tables(folder / "tables")["frames"]


@pytest.mark.parametrize("table", sorted(set(TABLES) - {"captures"}))
def test_the_reader_alone_gives_the_same(folder: Path, table: str) -> None:
    found = rows_of(
        {"path": str(folder / "captures"), "table": table, "maxPartitionBytes": "20000"}
    )
    batch = pa.RecordBatch.from_pylist(found, TABLES[table].to_arrow())
    assert digest_rows(table, [batch]) == digest_tables(folder / "tables")[table]


def test_a_query_prunes_joins_and_counts_as_any_other(spark: "SparkSession", folder: Path) -> None:
    register(spark)
    one, two = (str(folder / "captures" / f"{name}.pcapng") for name in "ab")
    read = spark.read.format("polymux").option("columns", "session_id,kind,size")
    frames = read.load([one, two])
    assert frames.columns == ["session_id", "kind", "size"]
    sessions = spark.read.format("polymux").load([one, two], table="sessions")
    table = read_table(folder / "tables", "sessions").to_pylist()
    joined = frames.join(sessions, "session_id").groupBy("protocol").count().collect()
    expected: dict[str, int] = {}
    for row in table:
        expected[row["protocol"]] = expected.get(row["protocol"], 0) + row["frames"]
    assert {row["protocol"]: row["count"] for row in joined} == expected
    # Used twice, a DataFrame must give the same rows: pushed filters would not.
    large = frames.where("size > 100")
    counts = large.union(frames).count(), frames.count()
    assert counts[0] > counts[1] == sum(expected.values())


def test_a_schema_chooses_columns_or_is_refused(spark: "SparkSession", folder: Path) -> None:
    register(spark)
    read = spark.read.format("polymux")
    rows = read.schema("size bigint, session_id string").load(str(folder / "captures"))
    assert rows.columns == ["size", "session_id"]
    whole = spark.read.format("polymux").load(str(folder / "captures"))
    assert rows.groupBy("session_id").sum("size").orderBy("session_id").collect() == (
        whole.groupBy("session_id").sum("size").orderBy("session_id").collect()
    )
    with pytest.raises(Exception, match="frames has no column 'colour'"):
        read.schema("colour string").load(str(folder / "captures")).count()
    with pytest.raises(Exception, match="size of frames is bigint, not string"):
        read.schema("size string").load(str(folder / "captures")).count()


def test_references_that_are_too_many_to_travel_are_found_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"path": str(folder / "captures"), "maxPartitionBytes": "20000"}
    asked = SourceOptions.parse(options)
    expected = sorted(rows_of(options), key=str)
    monkeypatch.setattr(source_reader, "MAX_INLINE_REF_BYTES", 1000)
    shares = [partition.value for partition in TableReader(asked).partitions()]
    assert len(shares) > 1
    assert all(share.spans and not share.flows for share in shares)
    assert sorted(rows_of(options), key=str) == expected


def test_the_captures_themselves_are_a_table(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torn.pcapng").write_bytes((folder / "captures" / "a.pcapng").read_bytes()[:-3])
    (tmp_path / "other.pcapng").write_bytes(b"no capture")
    rows = rows_of({"path": str(tmp_path), "table": "captures"})
    assert {Path(str(row["file"])).name: row["status"] for row in rows} == {
        "torn.pcapng": "truncated", "other.pcapng": "unreadable",
    }  # fmt: skip


def test_only_the_flows_asked_for_are_read(folder: Path) -> None:
    path = str(folder / "captures")
    all_rows = rows_of({"path": path, "table": "sessions"})
    one = rows_of({"path": path, "table": "sessions", "filter": "192.0.2.1:40003"})
    assert len(all_rows) == 8
    assert [row["dialer"] for row in one] == ["192.0.2.1:40003"]
    assert rows_of({"path": path, "table": "sessions", "port": "9001"}) == []
    named = rows_of({"path": path, "table": "sessions", "port": "9000=nerdbank:version=3,window=9"})
    assert {row["protocol"] for row in named} == {"nerdbank"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no path"),
        ({"path": "x", "table": "packets"}, "there are captures, sessions"),
        ({"path": "x", "columns": "session_id,colour"}, "no column 'colour'"),
        ({"path": "x", "columns": "kind,kind"}, "names one twice"),
        ({"path": "x", "port": "mplex"}, "write 9000=mplex"),
        ({"path": "x", "filter": "example"}, "not an IP address"),
        ({"path": "x", "protocol": "smtp"}, "smtp"),
        ({"path": "x", "maxPartitionBytes": "much"}, "not a number"),
        ({"path": "x", "tabel": "frames"}, "'tabel' is not known"),
        ({"paths": "a.pcapng,b.pcapng"}, "not a JSON list"),
        ({"paths": '{"a": 1}', "provider": "polymux"}, "not a JSON list"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_with_what_would_do(
    options: dict[str, str], words: str
) -> None:
    with pytest.raises(PolymuxError, match=words):
        SourceOptions.parse(options)


def test_spark_says_what_was_wrong_before_it_reads(spark: "SparkSession", tmp_path: Path) -> None:
    register(spark)
    read = spark.read.format("polymux")
    with pytest.raises(Exception, match="table 'packets' is not known"):
        read.option("table", "packets").load("x")
    with pytest.raises(Exception, match=r"nowhere\.pcapng: no such file"):
        spark.read.format("polymux").load(str(tmp_path / "nowhere.pcapng")).count()


@given(st.dictionaries(st.binary(min_size=36, max_size=36), st.integers(1, 10**9), max_size=30))
def test_every_flow_is_in_exactly_one_share(weights: dict[bytes, int]) -> None:
    index = FlowIndex(SourceOptions.parse({"path": "x"}))
    index.costs = weights
    index.first_packet_times = dict.fromkeys(weights, 0)
    index.span_numbers = {key: [] for key in weights}
    shared = [key for share in index.partitions() for key in share.flow_keys]
    assert sorted(shared) == sorted(weights)


def test_what_the_catalog_adds_to_the_options_is_left_out() -> None:
    added = {
        "location": "file:/captures", "provider": "polymux", "external": "true", "owner": "me",
        "option.table": "sessions", "option.path": "/captures",
    }  # fmt: skip
    options = SourceOptions.parse(added)
    assert (options.table, options.paths) == ("sessions", ("/captures",))
    del added["option.path"]
    assert SourceOptions.parse(added).paths == ("/captures",)
    added["location"] = "file:/a b/%20*.pcap"  # as Spark writes it: nothing is escaped
    assert SourceOptions.parse(added).paths == ("/a b/%20*.pcap",)
    added["location"] = "captures"
    assert SourceOptions.parse(added).paths == (str(Path("captures").absolute()),)
    added["location"] = "s3://bucket/a%20b?scheme=http"
    assert SourceOptions.parse(added).paths == ("s3://bucket/a%20b?scheme=http",)
    with pytest.raises(PolymuxError, match="'tabel' is not known"):
        SourceOptions.parse({**added, "option.tabel": "frames"})


def test_a_table_of_the_catalog_keeps_absolute_paths_and_key_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    added = {
        "provider": "polymux", "option.keys": "logs/*.keys, /etc/a.keys,../b.keys",
        "option.paths": '["a.pcapng","/captures/","s3://bucket/c.pcapng","file:/d"]',
    }  # fmt: skip
    options = SourceOptions.parse(added)
    assert options.paths == (f"{tmp_path}/a.pcapng", "/captures", "s3://bucket/c.pcapng", "/d")
    assert options.key_files == (
        f"{tmp_path}/logs/*.keys", "/etc/a.keys", f"{tmp_path.parent}/b.keys",
    )  # fmt: skip
    schema = keep_options(spark_schema("frames", ("size",)), added)
    monkeypatch.chdir("/")
    assert SourceOptions.parse(with_kept_options({}, schema)) == options
    # Outside the catalog they stay as they are.
    read = SourceOptions.parse({"paths": '["a.pcapng"]', "keys": "a.keys"})
    assert (read.paths, read.key_files) == (("a.pcapng",), ("a.keys",))


@pytest.mark.parametrize("own", [{"path": "/b.pcapng"}, {"paths": '["/b.pcapng"]'}])
def test_a_read_with_the_schema_of_a_table_has_none_of_its_options(own: dict[str, str]) -> None:
    added = {
        "provider": "polymux", "option.paths": '["/a.pcapng"]', "option.filter": "192.0.2.1:40003",
    }  # fmt: skip
    schema = keep_options(spark_schema("frames", ("size",)), added)
    options = SourceOptions.parse(with_kept_options(own, schema))
    assert (options.paths, options.filters) == (("/b.pcapng",), ())
    kept = SourceOptions.parse(with_kept_options({"maxPartitionBytes": "9"}, schema))
    assert (kept.paths, kept.filters) == (("/a.pcapng",), ("192.0.2.1:40003",))
    assert kept.max_partition_bytes == 9


def test_a_table_of_the_catalog_is_read_with_the_options_it_was_created_with(
    spark: "SparkSession", folder: Path
) -> None:
    register(spark)
    path = folder / "captures"
    expected = digest_tables(folder / "tables")
    forms = {
        "by_path": f"OPTIONS (path '{path}', table 'sessions')",
        "by_location": f"OPTIONS (table 'sessions') LOCATION '{path}'",
    }
    for name, form in forms.items():
        spark.sql(f"CREATE TABLE {name} USING polymux {form}")
        assert digest("sessions", spark.table(name)) == expected["sessions"]
    made = spark.catalog.createTable("made", str(path), "polymux", columns="size,session_id")
    assert made.columns == ["size", "session_id"]
    joined = spark.sql(
        "SELECT sum(size) AS size FROM made JOIN by_path USING (session_id) WHERE protocol > ''"
    )
    whole = spark.read.format("polymux").load(str(path))
    assert joined.first() == whole.agg({"size": "sum"}).toDF("size").first()
    chosen = "SELECT dialer FROM by_path WITH (filter = '192.0.2.1:40003')"
    assert [row[0] for row in spark.sql(chosen).collect()] == ["192.0.2.1:40003"]
    one = str(path / "a.pcapng")
    same = spark.read.format("polymux").option("table", "captures")
    spark.sql(f"CREATE TABLE listing USING polymux OPTIONS (path '{path}', table 'captures')")
    alone = same.schema(spark.table("listing").schema).load([one])
    assert [row["file"] for row in alone.collect()] == [one]
    for name in (*forms, "made", "listing"):
        spark.sql(f"DROP TABLE {name}")
    assert len(list(path.iterdir())) == 2  # the captures stay


def test_a_table_created_with_columns_has_no_options_and_says_what_to_write(
    spark: "SparkSession", folder: Path
) -> None:
    register(spark)
    spark.sql(
        "CREATE TABLE listed (session_id STRING) USING polymux "
        f"OPTIONS (path '{folder / 'captures'}')"
    )
    try:
        with pytest.raises(Exception, match="without a list of columns"):
            spark.table("listed").collect()
    finally:
        spark.sql("DROP TABLE listed")
