"""The columns of the tables as Spark types."""

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


def spark_schema(table: str, columns: Sequence[str] = ()) -> StructType:
    """The columns of a table, or those named, as Spark has them. All may be null: Spark does not
    keep the promise of a data source that they are not."""
    wanted = columns or TABLES[table].column_names()
    return StructType(
        [StructField(name, _TYPES[TABLES[table].column(name).type]) for name in wanted]
    )
