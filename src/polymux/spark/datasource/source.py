"""`spark.read.format("polymux")`: a table of captures as a DataFrame.

What to read is chosen by options, rows too (`selection`). The source does not accept pushed
filters: with them, PySpark 4.3 gives wrong rows when a DataFrame is used twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polymux.core.errors import MissingExtra

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    raise MissingExtra("spark", "reading captures as DataFrames") from None

from polymux.spark.datasource.batch_reader import TableReader
from polymux.spark.datasource.options import SourceOptions, keep_options, with_kept_options
from polymux.spark.datasource.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from polymux.spark.datasource.stream_reader import TableStreamReader
    from polymux.spark.sink.writers import BatchSink, StreamSink

__all__ = ["NAME", "PolymuxSource", "register", "spark_schema"]

NAME = "polymux"


class PolymuxSource(DataSource):
    """The data source: batch and stream reader (`SourceOptions`), batch and stream writer
    (`SinkOptions`).

    Spark creates an instance for every query, in a separate process of the driver; its only input
    is the options.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        return keep_options(spark_schema(options.table, options.columns), self.options)

    def reader(self, schema: StructType) -> TableReader:
        options = SourceOptions.parse(with_kept_options(self.options, schema))
        return TableReader(options.with_schema(schema).with_keys())

    def streamReader(self, schema: StructType) -> TableStreamReader:
        from polymux.spark.datasource.stream_reader import table_stream_reader

        given = with_kept_options(self.options, schema)
        return table_stream_reader(SourceOptions.parse(given).with_schema(schema), given)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from polymux.spark.sink.writers import batch_sink

        return batch_sink(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from polymux.spark.sink.writers import stream_sink

        return stream_sink(self.options, schema)


def register(spark: SparkSession) -> None:
    """Register `format("polymux")` with this session.

    Not needed where `pyspark_polymux` is installed for the driver's Python: Spark then registers it
    by itself.
    """
    spark.dataSource.register(PolymuxSource)
