"""The schemas of the tables as Spark types."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from polymux.analysis.schema.tables import TABLES, ColumnType

_TYPES: dict[ColumnType, DataType] = {
    ColumnType.TEXT: StringType(),
    ColumnType.TEXT_LIST: ArrayType(StringType()),
    ColumnType.INTEGER: LongType(),
    ColumnType.DECIMAL: DecimalType(20, 0),
    ColumnType.TIMESTAMP: TimestampType(),
    ColumnType.BINARY: BinaryType(),
}


def spark_type(table: str, column: str) -> DataType:
    """Return the Spark type of a column."""
    return _TYPES[TABLES[table].column(column).type]


def spark_schema(table: str, columns: Sequence[str] = ()) -> StructType:
    """Return the Spark schema of a table, with all columns or those named.

    All columns are nullable: Spark ignores a data source's declaration that they are not.
    """
    names = columns or TABLES[table].column_names()
    return StructType([StructField(name, spark_type(table, name)) for name in names])
