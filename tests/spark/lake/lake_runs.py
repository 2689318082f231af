"""Runs that write a lake: rows made up of a seed, without captures or Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.spark.lake.lake import Lake
from polymux.spark.lake.store import DataFile, LakeVersion

ROWS = 10
SOME_TABLES = ("captures", "frames", "sessions")


def made_up_rows(table: str, seed: int, count: int = ROWS) -> pa.Table:
    """Rows of a table with values of their own for each seed, not sorted."""
    columns = []
    for column in TABLES[table].columns:
        kind = SCHEMAS[table].field(column.name).type
        numbers = [seed * 1000 + (row * 7) % count for row in range(count)]
        values: list[object]
        if column.allowed_values:
            values = [column.allowed_values[0]] * count
        elif column.type is ColumnType.TEXT:
            values = [f"{number:08}" for number in numbers]
        elif column.type is ColumnType.TEXT_LIST:
            values = [[f"{number}.pcap", "b.pcap"] for number in numbers]
        elif column.type is ColumnType.BINARY:
            values = [number.to_bytes(4, "big") for number in numbers]
        else:
            values = list(numbers)
        columns.append(
            pa.array(values, kind)
            if isinstance(values[0], list | str | bytes)
            else pa.array(values, pa.int64()).cast(kind)
        )
    return pa.Table.from_arrays(columns, schema=SCHEMAS[table])


def append(
    lake: Lake,
    seed: int,
    days: Sequence[str],
    *,
    removed: Iterable[DataFile] = (),
    provisional: bool = False,
    tables: Sequence[str] = SOME_TABLES,
    sensor: str = "",
) -> LakeVersion:
    """A whole run, which adds `ROWS` rows of each table to each day."""
    staging = lake.begin()
    added = []
    with staging.output.folder() as folder:
        for number, day in enumerate(days):
            for table in tables:
                place = folder / table
                if table != "captures":
                    place /= f"date={day}"
                    if sensor:
                        place /= f"sensor={sensor}"
                place.mkdir(parents=True, exist_ok=True)
                rows = made_up_rows(table, 100 * seed + number)
                pq.write_table(rows, place / f"{number}.parquet", store_schema=False)
        added = staging.output.store(folder, provisional=provisional)
    state = [staging.output.store_state("ledger", f"seed {seed}".encode())]
    options = {"seed": str(seed)}
    return lake.commit(staging, added=added, removed=removed, state=state, options=options)


def sorted_rows(lake: Lake, version: LakeVersion, table: str) -> list[dict[str, object]]:
    """All rows of a table, in an order of their own."""
    return in_order(
        pa.Table.from_batches(list(lake.batches(version.files_of(table))), SCHEMAS[table])
    )


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    """Rows as dictionaries, sorted, without partition columns that were not written."""
    kept = [name for name in rows.schema.names if name != "date"]
    return sorted(rows.select(kept).to_pylist(), key=repr)
