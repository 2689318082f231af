"""Lakes whose tables are Delta tables: `LAKE/TABLE` is one, read by anything that reads Delta.

Each version of the lake is one transaction of every table that it changes. The transaction carries
the number of the version, under the application id `polymux`, so it is made once. Between the
transactions of two tables, a reader of plain Delta tables may see one of the new version and one of
the former; one that takes the Delta versions that a version of the lake names sees all of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Literal
from urllib.parse import unquote

from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.analysis.schema.tables import TABLES
from polymux.core.errors import MissingExtra
from polymux.spark.lake.storage import Storage, delta_options, one_line
from polymux.spark.lake.store import DataFile, LakeError, LakeVersion
from polymux.spark.lake.table_format import (
    TableFormat,
    TablesMovedOn,
    is_needed,
    partition_columns,
    unchanged_position,
)

try:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError:
    raise MissingExtra("lake", "a lake of Delta tables") from None

APPLICATION: Final = "polymux"


class DeltaFormat(TableFormat):
    """The Delta tables of a lake. The position of a table is its Delta version."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._options = delta_options(storage.url)

    def bring_to(self, version: LakeVersion, former: LakeVersion | None) -> dict[str, str]:
        positions = {}
        for table in TABLES:
            if is_needed(table, version, former):
                with self._explained(table):
                    positions[table] = unchanged_position(table, version, former) or str(
                        self._bring_table(table, version.files.get(table, ()), version)
                    )
        return positions

    def publish(self, number: int, positions: Mapping[str, str]) -> None:
        """Nothing to do: the transaction of a table shows it."""

    def vacuum(self, limit: datetime, kept: Sequence[Mapping[str, str]]) -> None:
        """Remove logs that a checkpoint replaces and that are older than the tables' own setting
        (`delta.logRetentionDuration`, 30 days)."""
        for table in TABLES:
            with self._explained(table):
                if DeltaTable.is_deltatable(self._uri(table), self._options):
                    self._open(table).cleanup_metadata()

    # Private helpers

    def _bring_table(self, table: str, files: tuple[DataFile, ...], version: LakeVersion) -> int:
        """Make the transaction of a version, if it has not been made. Return the Delta version."""
        columns = partition_columns(table, version)
        if not DeltaTable.is_deltatable(self._uri(table), self._options):
            self._create(table, columns, "ignore")
        delta = self._open(table)
        made = _position_of(delta, version)
        if made is not None:
            return made
        wanted = {file.path.partition("/")[2]: file for file in files}
        if wanted and delta.metadata().partition_columns != columns:
            self._create(table, columns, "overwrite")  # it had no files, or is written anew
            delta = self._open(table)
        present = self._present(delta)
        milliseconds = int(version.time.timestamp() * 1000)
        change = version.operation != "compact"
        added = [
            AddAction(
                path,
                file.size,
                {name: file.partition[name] or None for name in columns},
                milliseconds,
                change,
                json.dumps({"numRecords": file.rows}),
            )
            for path, file in wanted.items()
            if path not in present
        ]
        removed = [
            RemoveAction(path, change, milliseconds, size, partition)
            for path, (size, partition) in present.items()
            if path not in wanted
        ]
        if not added and not removed:
            return int(delta.version())
        schema = _schema(table, columns)
        known = {field.name for field in delta.schema().fields}
        missing = [field for field in schema if field.name not in known]
        if missing:  # an older polymux made the table
            delta.alter.add_columns(_delta_fields(missing))
            delta = self._open(table)
        try:
            delta.create_write_transaction(
                [*added, *removed],
                "append",
                schema,
                columns,
                commit_properties=CommitProperties(
                    {"polymux.version": version.number, "polymux.run": version.run},
                    max_commit_retries=0,
                    app_transactions=[Transaction(APPLICATION, version.number)],
                ),
            )
        except DeltaError:
            made = _position_of(self._open(table), version)
            if made is None:
                raise
            return made  # another writer, which completes this version too, was faster
        return int(delta.version()) + 1  # it was not tried again

    def _create(self, table: str, columns: list[str], mode: Literal["ignore", "overwrite"]) -> None:
        DeltaTable.create(
            self._uri(table),
            _schema(table, columns),
            mode=mode,
            partition_by=columns,
            name=table,
            description=TABLES[table].description,
            storage_options=self._options,
        )

    def _present(self, delta: DeltaTable) -> dict[str, tuple[int, dict[str, str | None]]]:
        """The files of a table by path: their sizes and partition values."""
        actions = pa.table(delta.get_add_actions(flatten=False)).to_pylist()
        found = {}
        for action in actions:
            partition = {
                name: None if value is None else str(value)
                for name, value in (action.get("partition") or {}).items()
            }
            found[unquote(action["path"])] = (int(action["size_bytes"]), partition)
        return found

    def _open(self, table: str) -> DeltaTable:
        return DeltaTable(self._uri(table), storage_options=self._options)

    def _uri(self, table: str) -> str:
        return f"{self._storage.location}/{table}"

    @contextmanager
    def _explained(self, table: str) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as problem:
            raise LakeError(f"{self._uri(table)}: {one_line(problem)}") from None


def _position_of(delta: DeltaTable, version: LakeVersion) -> int | None:
    """The Delta version of a table that has a version of the lake; None if it is still older.

    Raises:
        TablesMovedOn: It has a newer one.
    """
    made = delta.transaction_version(APPLICATION) or 0
    if made > version.number:
        raise TablesMovedOn(f"{delta.table_uri}: has version {made} of the lake already")
    return int(delta.version()) if made == version.number else None


def _schema(table: str, partition_columns: list[str]) -> pa.Schema:
    """The schema of a table with its partition columns; `sensor` may be one of its own."""
    schema = SCHEMAS[table]
    for name in partition_columns:
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.date32() if name == "date" else pa.string()))
    return schema


def _delta_fields(fields: list[pa.Field]) -> list[Field]:
    """New columns of a table: null in the rows that it has."""
    nullable = [field.with_nullable(True) for field in fields]
    return list(Schema.from_arrow(pa.schema(nullable)).fields)
