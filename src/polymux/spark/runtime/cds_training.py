"""The training session for class data sharing: one small Spark job of each kind polymux runs.

`class_data_sharing` runs this module as a program, with the Java options that dump the loaded
classes at exit.
"""

import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from polymux.spark.runtime.session import spark_session
from polymux.spark.runtime.settings import join_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def run_training_jobs(spark: "SparkSession", folder: str) -> None:
    """Run the jobs for the classes they load; their results are discarded."""
    from pyspark.sql import functions
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0), InputPartition(1)]

        def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
            import pyarrow as pa

            yield pa.RecordBatch.from_pydict({"key": [partition.value, 2], "bytes": [b"a", b"b"]})

    class TrainingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "polymux-training"

        def schema(self) -> str:
            return "key bigint, bytes binary"

        def reader(self, schema: object) -> Reader:
            return Reader()

    def identity_batches(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        yield from batches

    def identity_table(table: "pa.Table") -> "pa.Table":
        return table

    spark.sparkContext.parallelize(range(4), 2).map(str).collect()
    spark.dataSource.register(TrainingSource)
    rows = spark.read.format("polymux-training").load()
    mapped = rows.mapInArrow(identity_batches, rows.schema)
    mapped.groupBy("key").applyInArrow(identity_table, rows.schema).toArrow()
    rows.write.parquet(f"{folder}/rows")
    read = spark.read.parquet(f"{folder}/rows")
    read.groupBy("key").agg(functions.count("*").alias("rows")).orderBy("rows").collect()
    read.join(rows, "key").filter("key > 0").limit(3).collect()


def main(java_options: list[str]) -> None:
    conf = {"spark.driver.extraJavaOptions": join_options(java_options, "")}
    with tempfile.TemporaryDirectory() as folder, spark_session("local[2]", conf=conf) as spark:
        run_training_jobs(spark, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
