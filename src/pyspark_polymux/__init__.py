"""Spark finds packages called `pyspark_...` by itself and registers their `DefaultSource`.

So `spark.read.format("polymux")` works wherever polymux is installed, over Spark Connect too.
"""

from polymux.spark.datasource.source import PolymuxSource as DefaultSource

__all__ = ["DefaultSource"]
