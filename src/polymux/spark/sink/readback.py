"""What a sink sent, read back from the tables of a collector: every row once.

Only tasks that the sender's driver has committed count; of a job's epoch that was committed twice
(its driver was killed in between) the commit that was recorded first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from polymux.capture.io.paths import AnyPath, one_path
from polymux.core.errors import PolymuxError
from polymux.spark.sink.stream_labels import MESSAGES, PREFIXED, RAW, StreamLabel, decode_commit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "job string, epoch long, partition int, stream string, data binary"
INLINE_NAME_PROTOCOLS = ("streamux", "minmux")  # protocols whose streams begin with their name
MAX_NAME_BYTES = 8192
MAX_ROW_BYTES = 1 << 30


def read_back(spark: SparkSession, tables: AnyPath, job: str = "") -> DataFrame:
    """The rows that sinks have sent and committed: job, epoch, partition, stream, data.

    `tables` is an output of `analyze --content`, following or not. With `job`, only that one's.
    """
    from pyspark.sql import functions as f

    tables = one_path(tables)
    content = spark.read.parquet(f"{tables}/content").where("sender = 'dialer'")
    streams = spark.read.parquet(f"{tables}/streams").select("session_id", "stream", "name")
    sessions = spark.read.parquet(f"{tables}/sessions").select(
        "session_id", "protocol", "started_at"
    )
    places = streams.join(sessions, "session_id")
    named_inside = sessions.where(f.col("protocol").isin(*INLINE_NAME_PROTOCOLS)).select(
        "session_id"
    )
    if named_inside.isEmpty():
        places = places.withColumn("head", f.lit(None).cast("binary"))
    else:
        firsts = content.join(f.broadcast(named_inside), "session_id")
        heads = firsts.groupBy("session_id", "stream").agg(
            f.min_by("data", "frame_index").alias("head")
        )
        places = places.join(heads, ["session_id", "stream"], "left")
    labels: dict[tuple[str, str], tuple[StreamLabel, object, int]] = {}
    for row in places.collect():
        name, skip = row["name"] or "", 0
        if row["head"] is not None:
            line = bytes(row["head"])[:MAX_NAME_BYTES].partition(b"\n")[0]
            name, skip = line.decode("utf-8", "replace"), len(line) + 1
        label = StreamLabel.parse(name)
        if label is not None and (not job or label.job == job):
            labels[row["session_id"], row["stream"]] = (label, row["started_at"], skip)
    wanted = committed_streams(spark, content, labels)
    if not wanted:
        return spark.createDataFrame([], COLUMNS)
    chosen = spark.createDataFrame(
        [
            (
                session,
                stream,
                label.job,
                label.epoch,
                label.partition,
                label.stream,
                label.framing,
                skip,
            )
            for (session, stream), (label, skip) in wanted.items()
        ],
        "session_id string, stream string, job string, epoch long, partition int, label string, "
        "framing string, skip long",
    )
    pieces = (
        content.select("session_id", "stream", "frame_index", "data")
        .join(f.broadcast(chosen), ["session_id", "stream"])
        .repartition("session_id", "stream")
        .sortWithinPartitions("session_id", "stream", "frame_index")
        .select(
            "session_id", "stream", "job", "epoch", "partition", "label", "framing", "skip", "data"
        )
    )
    return pieces.mapInArrow(split_rows, COLUMNS)


def committed_streams(
    spark: SparkSession,
    content: DataFrame,
    labels: dict[tuple[str, str], tuple[StreamLabel, object, int]],
) -> dict[tuple[str, str], tuple[StreamLabel, int]]:
    """The streams of the tasks that count."""
    from pyspark.sql import functions as f

    commits = [place for place, (label, _, _) in labels.items() if label.is_commit]
    if not commits:
        return {}
    places = spark.createDataFrame(commits, "session_id string, stream string")
    pieces: dict[tuple[str, str], list[bytes]] = {}
    told = content.join(f.broadcast(places), ["session_id", "stream"]).orderBy("frame_index")
    for row in told.select("session_id", "stream", "data").collect():
        pieces.setdefault((row[0], row[1]), []).append(bytes(row[2]))
    said: dict[tuple[str, int], tuple[object, str, set[str]]] = {}
    for place, parts in pieces.items():
        label, at, skip = labels[place]
        tasks = set(decode_commit(b"".join(parts)[skip:]))
        key = (label.job, label.epoch)
        if tasks and (key not in said or (at, label.task) < said[key][:2]):
            said[key] = (at, label.task, tasks)
    return {
        place: (label, skip)
        for place, (label, _, skip) in labels.items()
        if not label.is_commit
        and (label.job, label.epoch) in said
        and label.task in said[label.job, label.epoch][2]
    }


def split_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Content frames, stream by stream and in order, to the rows that were sent."""
    import pyarrow as pa

    place: tuple[str, str] | None = None
    rest = b""
    for batch in batches:
        out: dict[str, list[object]] = {
            name: [] for name in ("job", "epoch", "partition", "stream", "data")
        }
        for row in batch.to_pylist():
            here = (row["session_id"], row["stream"])
            if here != place:
                place, rest, skip = here, b"", row["skip"]
            data = row["data"]
            if skip:
                data, skip = data[skip:], max(0, skip - len(data))
            rows = [data] if row["framing"] in (MESSAGES, RAW) else []
            if row["framing"] == PREFIXED:
                rows, rest = split_prefixed(rest + data)
            for each in rows:
                out["data"].append(each)
                for name, column in (("job", "job"), ("epoch", "epoch"), ("stream", "label")):
                    out[name].append(row[column])
                out["partition"].append(row["partition"])
        yield pa.record_batch(
            [
                pa.array(out["job"], pa.string()), pa.array(out["epoch"], pa.int64()),
                pa.array(out["partition"], pa.int32()), pa.array(out["stream"], pa.string()),
                pa.array(out["data"], pa.binary()),
            ],
            ["job", "epoch", "partition", "stream", "data"],
        )  # fmt: skip


def split_prefixed(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole rows out of prefixed ones, and what is left."""
    rows = []
    start = 0
    while len(data) - start >= 4:
        size = int.from_bytes(data[start : start + 4], "big")
        if size > MAX_ROW_BYTES:
            raise PolymuxError(f"a row of {size} bytes: this stream does not hold prefixed rows")
        if size > len(data) - start - 4:
            break
        rows.append(data[start + 4 : start + 4 + size])
        start += 4 + size
    return rows, data[start:]
