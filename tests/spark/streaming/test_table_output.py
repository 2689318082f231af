"""The lock of a query's output: given up if the query cannot begin."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from polymux.core.errors import UnreadableInput
from polymux.spark.batch.output_lock import read_lock
from polymux.spark.streaming.query import start_following
from polymux.spark.streaming.table_output import StreamingTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_lock_is_given_up_if_the_tables_cannot_be_prepared(tmp_path: Path) -> None:
    StreamingTables(str(tmp_path), {}).close()
    manifest = (tmp_path / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UnreadableInput):
        StreamingTables(str(tmp_path), {})
    assert read_lock(tmp_path) is None
    (tmp_path / "manifest.json").write_bytes(manifest)
    StreamingTables(str(tmp_path), {}).close()


class NoSources:
    """Refuses to register a data source."""

    def register(self, source: object) -> None:
        raise ConnectionError("the session has ended")


def test_the_lock_is_given_up_if_spark_does_not_start_the_query(tmp_path: Path) -> None:
    out = tmp_path / "out"
    session = SimpleNamespace(
        dataSource=NoSources(), sparkContext=SimpleNamespace(defaultParallelism=1)
    )
    for _ in range(2):  # a lock left by the first would refuse the second
        with pytest.raises(ConnectionError, match="the session has ended"):
            # It stands for a session that ended before the first call.
            start_following(cast("SparkSession", session), tmp_path, out)
        assert read_lock(out) is None
