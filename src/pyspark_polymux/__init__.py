"""Registration of the data source: Spark imports packages named `pyspark_*` and registers their
`DefaultSource`.

`spark.read.format("polymux")` therefore works wherever polymux is installed, also with Spark
Connect.
"""

from polymux.spark.datasource.source import PolymuxSource as DefaultSource

__all__ = ["DefaultSource"]
