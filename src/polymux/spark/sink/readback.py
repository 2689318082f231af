"""Reading back what a sink sent, from the tables of a collector: every row exactly once.

A retried task or a replayed micro-batch sends its rows again. Only tasks that the sender's driver
has committed count. If an epoch was committed twice, because the driver was killed in between, the
commit that was recorded first counts.
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
INLINE_NAME_PROTOCOLS = ("streamux", "minmux")  # without stream names: the data begins with it
MAX_NAME_BYTES = 8192  # longest name at the beginning of a stream
MAX_ROW_BYTES = 1 << 30  # a longer row means that the stream is not length-prefixed


def read_back(spark: SparkSession, tables: AnyPath, job: str = "") -> DataFrame:
    """Return the rows that sinks have sent and committed.

    Args:
        spark: The session.
        tables: The output directory of `polymux analyze --content`, with or without --watch.
        job: Only rows of this job; by default of all jobs.

    Returns:
        A DataFrame with the columns job, epoch, partition, stream and data.
    """
    from pyspark.sql import functions as f

    tables = one_path(tables)
    content = spark.read.parquet(f"{tables}/content").where("sender = 'dialer'")
    streams = spark.read.parquet(f"{tables}/streams").select("session_id", "stream", "name")
    sessions = spark.read.parquet(f"{tables}/sessions").select(
        "session_id", "protocol", "started_at"
    )
    candidates = streams.join(sessions, "session_id")
    named_inline = sessions.where(f.col("protocol").isin(*INLINE_NAME_PROTOCOLS)).select(
        "session_id"
    )
    if named_inline.isEmpty():
        candidates = candidates.withColumn("head", f.lit(None).cast("binary"))
    else:
        firsts = content.join(f.broadcast(named_inline), "session_id")
        heads = firsts.groupBy("session_id", "stream").agg(
            f.min_by("data", "frame_index").alias("head")
        )
        candidates = candidates.join(heads, ["session_id", "stream"], "left")
    labels: dict[tuple[str, str], tuple[StreamLabel, object, int]] = {}
    for row in candidates.collect():
        name, skip = row["name"] or "", 0
        if row["head"] is not None:
            line = bytes(row["head"])[:MAX_NAME_BYTES].partition(b"\n")[0]
            name, skip = line.decode("utf-8", "replace"), len(line) + 1
        label = StreamLabel.parse(name)
        if label is not None and (not job or label.job == job):
            labels[row["session_id"], row["stream"]] = (label, row["started_at"], skip)
    committed = committed_streams(spark, content, labels)
    if not committed:
        return spark.createDataFrame([], COLUMNS)
    selection = spark.createDataFrame(
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
            for (session, stream), (label, skip) in committed.items()
        ],
        "session_id string, stream string, job string, epoch long, partition int, label string, "
        "framing string, skip long",
    )
    pieces = (
        content.select("session_id", "stream", "frame_index", "data")
        .join(f.broadcast(selection), ["session_id", "stream"])
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
    """Return the streams of committed tasks, each with its label and the bytes of its inline name.

    `labels` has, by session and stream, the label, the start of the session and those bytes.
    """
    from pyspark.sql import functions as f

    commits = [key for key, (label, _, _) in labels.items() if label.is_commit]
    if not commits:
        return {}
    commit_streams = spark.createDataFrame(commits, "session_id string, stream string")
    pieces: dict[tuple[str, str], list[bytes]] = {}
    rows = content.join(f.broadcast(commit_streams), ["session_id", "stream"])
    rows = rows.orderBy("frame_index").select("session_id", "stream", "data")
    for row in rows.collect():
        pieces.setdefault((row[0], row[1]), []).append(bytes(row[2]))
    first_commits: dict[tuple[str, int], tuple[object, str, set[str]]] = {}
    for key, parts in pieces.items():
        label, started_at, skip = labels[key]
        tasks = set(decode_commit(b"".join(parts)[skip:]))
        epoch = (label.job, label.epoch)
        order = (started_at, label.task)
        if tasks and (epoch not in first_commits or order < first_commits[epoch][:2]):
            first_commits[epoch] = (started_at, label.task, tasks)
    return {
        key: (label, skip)
        for key, (label, _, skip) in labels.items()
        if not label.is_commit
        and (label.job, label.epoch) in first_commits
        and label.task in first_commits[label.job, label.epoch][2]
    }


def split_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert content frames, in order and stream by stream, to the rows that were sent."""
    import pyarrow as pa

    current: tuple[str, str] | None = None
    rest = b""
    for batch in batches:
        out: dict[str, list[object]] = {
            name: [] for name in ("job", "epoch", "partition", "stream", "data")
        }
        for row in batch.to_pylist():
            key = (row["session_id"], row["stream"])
            if key != current:
                current, rest, skip = key, b"", row["skip"]
            data = row["data"]
            if skip:
                data, skip = data[skip:], max(0, skip - len(data))
            rows = [data] if row["framing"] in (MESSAGES, RAW) else []
            if row["framing"] == PREFIXED:
                rows, rest = split_prefixed(rest + data)
            for sent in rows:
                out["data"].append(sent)
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
    """Split length-prefixed rows. Return the complete rows and the incomplete rest.

    Raises:
        PolymuxError: A length exceeds `MAX_ROW_BYTES`.
    """
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
