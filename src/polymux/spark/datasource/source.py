"""`spark.read.format("polymux")`: any table of any captures as a DataFrame.

What to read is said by options, never by pushed filters: PySpark 4.3 gives wrong rows when a
DataFrame whose source takes filters is used twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polymux.core.errors import MissingExtra

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    raise MissingExtra("spark", "reading captures as DataFrames") from None

from polymux.spark.datasource.batch_reader import TableReader
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from polymux.spark.datasource.stream_reader import TableStreamReader
    from polymux.spark.sink.writers import BatchSink, StreamSink

__all__ = ["NAME", "PolymuxSource", "register", "spark_schema"]

NAME = "polymux"


class PolymuxSource(DataSource):
    """Captures as a table. Options: see `SourceOptions`.

    Made anew for every query, in a process of its own; everything it is told is in the options.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        asked = SourceOptions.parse(self.options)
        return spark_schema(asked.table, asked.columns)

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> TableStreamReader:
        from polymux.spark.datasource.stream_reader import table_stream_reader

        return table_stream_reader(SourceOptions.parse(self.options), self.options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from polymux.spark.sink.writers import batch_sink

        return batch_sink(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from polymux.spark.sink.writers import stream_sink

        return stream_sink(self.options, schema)


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("polymux")` known to this session.

    Where the installed package is on the path of the driver's Python this is done by itself.
    """
    spark.dataSource.register(PolymuxSource)
