"""Table schemas: columns with their types, allowed values and descriptions.

pyarrow is imported only when an Arrow schema is requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from polymux.core.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa


class ColumnType(Enum):
    """The type of a column; the value is its name in the documentation."""

    TEXT = "text"
    TEXT_LIST = "list of text"
    INTEGER = "integer"
    DECIMAL = "decimal(20,0)"
    TIMESTAMP = "timestamp"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `allowed_values`, if any, are all values it can have besides null."""

    name: str
    type: ColumnType
    description: str
    nullable: bool = False
    allowed_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One table: a folder of Parquet files called `name`.

    `one_row_per` says what a row describes; the columns in `key` identify a row.
    """

    name: str
    one_row_per: str
    description: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def column_names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column called `name`; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_arrow(self) -> pa.Schema:
        """The pyarrow schema; MissingExtra if pyarrow is not installed."""
        types = _arrow_types()
        import pyarrow as pa

        return pa.schema(
            [pa.field(c.name, types[c.type], nullable=c.nullable) for c in self.columns]
        )


def _arrow_types() -> dict[ColumnType, pa.DataType]:
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("captures", "reading or writing tables") from None
    return {
        ColumnType.TEXT: pa.string(),
        ColumnType.TEXT_LIST: pa.list_(pa.string()),
        ColumnType.INTEGER: pa.int64(),
        ColumnType.DECIMAL: pa.decimal128(20, 0),
        ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
        ColumnType.BINARY: pa.binary(),
    }
