"""Lakes whose tables are Iceberg tables, in a SQL catalog.

A version of the lake is one snapshot of every table that it changes. The metadata of all tables is
written to the store first; then one SQL transaction points the catalog to it. So readers of the
catalog see the tables of one version. The positions that the lake records are the locations of the
metadata: a catalog that is lost, or is on another machine, is made again from them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final

from polymux.analysis.output.layout import PARTITION_COLUMNS
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.core.errors import MissingExtra
from polymux.core.urls import without_credentials
from polymux.spark.lake.settings import read_settings
from polymux.spark.lake.storage import Storage, delta_options, one_line
from polymux.spark.lake.store import DataFile, LakeError, LakeVersion
from polymux.spark.lake.table_format import (
    TableFormat,
    is_needed,
    partition_columns,
    unchanged_position,
)

try:
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable, Table, Transaction
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.typedef import Record
    from pyiceberg.types import (
        BinaryType,
        DateType,
        DecimalType,
        IcebergType,
        ListType,
        LongType,
        NestedField,
        StringType,
        TimestamptzType,
    )
    from sqlalchemy import delete, insert, select, update
    from sqlalchemy.exc import IntegrityError, SQLAlchemyError
    from sqlalchemy.orm import Session
except ImportError:
    raise MissingExtra("lake", "a lake of Iceberg tables") from None

log = logging.getLogger("polymux.spark")

NAMESPACE: Final = "polymux"
CATALOG_NAME: Final = "polymux"
CATALOG_FILE: Final = "_lake/catalog.db"
VERSION_KEY: Final = "polymux.version"
LAKE_KEY: Final = "polymux.lake"  # in the namespace: the id of its lake
PUBLISH_ATTEMPTS: Final = 5
SNAPSHOT_AGE: Final = timedelta(days=30)  # older snapshots leave the metadata
_NAME_MAPPING: Final = "schema.name-mapping.default"
_FIRST_PARTITION_FIELD: Final = 1000
_EPOCH: Final = date(1970, 1, 1)


class IcebergFormat(TableFormat):
    """The Iceberg tables of a lake. The position of a table is the location of its metadata.

    Args:
        storage: The lake's.
        catalog: URI of the SQL catalog; "": a SQLite file, see `default_catalog`.
    """

    has_catalog = True

    def __init__(self, storage: Storage, catalog: str = "") -> None:
        self._storage = storage
        self._is_named = bool(catalog)
        self._base = storage.location
        if "://" not in self._base:
            self._base = f"file://{self._base}"
        self.catalog_uri = catalog or default_catalog(storage)
        self._properties = file_properties(storage.url)

    def bring_to(self, version: LakeVersion, former: LakeVersion | None) -> dict[str, str]:
        # A catalog in memory: nothing points to the new metadata until it is recorded.
        with self._explained(), _memory_catalog(self._base, self._properties) as catalog:
            catalog.create_namespace(NAMESPACE)
            positions = {}
            for name in TABLES:
                if is_needed(name, version, former):
                    position = unchanged_position(name, version, former)
                    if not position:
                        table = self._open_table(catalog, name, version, former)
                        self._bring_table(table, name, version.files.get(name, ()), version)
                        position = str(catalog.load_table(table.name()).metadata_location)
                    positions[name] = position
            return positions

    def check(self) -> None:
        with self._explained(), self._catalog() as catalog, Session(catalog.engine) as session:
            self._check_owner(session, _namespace_properties(session))

    def publish(self, number: int, positions: Mapping[str, str]) -> None:
        """Point the catalog to the tables of a version, all in one transaction of SQL.

        Does nothing if the catalog has that version or a newer one.

        Raises:
            LakeError: It is a catalog that was named, and has the tables of another lake.
        """
        with self._explained(), self._catalog() as catalog:
            catalog.create_namespace_if_not_exists(NAMESPACE)
            for _ in range(PUBLISH_ATTEMPTS):
                with Session(catalog.engine) as session:
                    if self._publish_once(session, number, positions):
                        return
            raise LakeError(
                f"{without_credentials(self.catalog_uri)}: other runs change it all the time; run "
                "it again"
            )

    def vacuum(self, limit: datetime, kept: Sequence[Mapping[str, str]]) -> None:
        """Delete metadata older than `limit` that none of the `kept` positions needs.

        Of a table that needs metadata outside the lake none is deleted: the lake was moved, and
        names do not tell which files are those.
        """
        for table in TABLES:
            needed: set[str] = set()
            with self._explained():
                for location in {positions[table] for positions in kept if table in positions}:
                    needed |= _metadata_files(StaticTable.from_metadata(location, self._properties))
            names = {self._name_of(location) for location in needed}
            if None in names:
                outside = min(location for location in needed if self._name_of(location) is None)
                log.warning(
                    "no metadata of %s/%s is deleted: the table needs %s, which is not in the lake",
                    self._base, table, outside,
                )  # fmt: skip
                continue
            self._storage.delete(
                [
                    file.name
                    for file in self._storage.files(f"{table}/metadata")
                    if file.modified <= limit and file.name not in names
                ]
            )

    # Private helpers

    def _publish_once(self, session: Session, number: int, positions: Mapping[str, str]) -> bool:
        """Publish a version; False if another writer has changed the namespace meanwhile."""
        found = _namespace_properties(session)
        if not self._check_owner(session, found):
            _delete_tables(session)
            found = {}
        version = found.get(VERSION_KEY)
        if version is not None and int(version) >= number:
            return True
        try:
            changed = _set_property(session, VERSION_KEY, version, str(number)) and (
                LAKE_KEY in found or _set_property(session, LAKE_KEY, None, self._lake_id())
            )
        except IntegrityError:
            return False
        if changed:
            for table, location in positions.items():
                _point(session, table, location)
            session.commit()
        return changed

    def _check_owner(self, session: Session, found: Mapping[str, str]) -> bool:
        """Whether the tables of the namespace, which has these properties, are of this lake.

        A catalog that was not named belongs to the place of the lake: others are of one that was
        deleted there.

        Raises:
            LakeError: They are of another lake, and the catalog was named.
        """
        if LAKE_KEY in found:
            ours = found[LAKE_KEY] == self._lake_id()
        elif VERSION_KEY in found:  # an older polymux wrote it
            ours = self._lake_id() == self._base and all(
                self._name_of(location) is not None for location in _table_locations(session)
            )
        else:
            ours = True
        if not ours and self._is_named:
            raise LakeError(
                f"{without_credentials(self.catalog_uri)}: its namespace {NAMESPACE} has the "
                f"tables of another lake ({min(_table_locations(session), default='deleted')}), "
                f"not of {self._base}: name another catalog, or drop them from it"
            )
        return ours

    def _lake_id(self) -> str:
        """The id of the lake; of one that an older polymux made, its place."""
        settings = read_settings(self._storage)
        return (settings.id if settings is not None else "") or self._base

    def _name_of(self, location: str) -> str | None:
        """The name in the lake of a file that metadata names; None if it is elsewhere."""
        return self._storage.name_of(location.removeprefix("file://"))

    def _open_table(
        self,
        catalog: InMemoryCatalog,
        name: str,
        version: LakeVersion,
        former: LakeVersion | None,
    ) -> Table:
        """The table at its former metadata, or a new one."""
        identifier = f"{NAMESPACE}.{name}"
        columns = partition_columns(name, version)
        if former is not None and name in former.tables:
            table = catalog.register_table(identifier, former.tables[name])
            if name not in version.files or _is_partitioned_by(table, columns):
                return table
            catalog.drop_table(identifier)  # it had no files, or is written anew
        location = f"{self._base}/{name}"
        spec = _partition_spec(name, columns)
        table = catalog.create_table(identifier, table_schema(name, columns), location, spec)
        with table.transaction() as transaction:
            _map_names(transaction)
        return catalog.load_table(identifier)

    def _bring_table(
        self, table: Table, name: str, files: tuple[DataFile, ...], version: LakeVersion
    ) -> None:
        columns = [field.name for field in table.spec().fields]
        wanted = {f"{self._base}/{file.path}": file for file in files}
        present = _present(table)
        added = [file for path, file in wanted.items() if path not in present]
        removed = [file for path, file in present.items() if path not in wanted]
        if not added and not removed:
            return
        with table.transaction() as transaction:
            schema = table_schema(name, columns)
            if set(schema.column_names) - set(table.schema().column_names):
                with transaction.update_schema() as change:  # an older polymux made the table
                    change.union_by_name(schema)
                _map_names(transaction)
            properties = {VERSION_KEY: str(version.number), "polymux.run": version.run}
            update_snapshot = transaction.update_snapshot(properties)
            snapshot = update_snapshot.overwrite() if removed else update_snapshot.fast_append()
            with snapshot:
                for old in removed:
                    snapshot.delete_data_file(old)
                for new in added:
                    snapshot.append_data_file(self._data_file(table, new, columns))
        limit = version.time - SNAPSHOT_AGE
        if any(each.timestamp_ms < limit.timestamp() * 1000 for each in table.snapshots()):
            table.maintenance.expire_snapshots().older_than(limit).commit()

    def _data_file(self, table: Table, file: DataFile, columns: list[str]) -> IcebergFile:
        values = [_partition_value(name, file.partition[name]) for name in columns]
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._base}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=file.rows,
            file_size_in_bytes=file.size,
            column_sizes={},
            value_counts={},
            null_value_counts={},
            nan_value_counts={},
            lower_bounds={},
            upper_bounds={},
            sort_order_id=None,
            spec_id=table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
        )

    @contextmanager
    def _catalog(self) -> Iterator[SqlCatalog]:
        path = self.catalog_uri.removeprefix("sqlite:///")
        if path != self.catalog_uri:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog(
            CATALOG_NAME, uri=self.catalog_uri, warehouse=self._base, **self._properties
        )
        try:
            yield catalog
        finally:
            catalog.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except LakeError:
            raise
        except (SQLAlchemyError, ImportError) as problem:  # or the database's driver is missing
            place = without_credentials(self.catalog_uri)
            raise LakeError(f"{place}: {one_line(problem)}") from None
        except (OSError, ValueError, RuntimeError) as problem:
            raise LakeError(f"{self._base}: {one_line(problem)}") from None


def default_catalog(storage: Storage) -> str:
    """The URI of the SQLite catalog of a lake for which none is named.

    It is a file in the lake. For one on an object store, where SQLite cannot write, it is below the
    user's data directory (`XDG_DATA_HOME`, by default `~/.local/share`).
    """
    if storage.location == storage.url:
        return f"sqlite:///{storage.location}/{CATALOG_FILE}"
    name = hashlib.sha256(storage.location.encode()).hexdigest()[:16]
    return f"sqlite:///{_data_folder()}/catalogs/{name}.db"


def file_properties(url: str) -> dict[str, str]:
    """What pyiceberg is to be told of an S3 URL with options of `pyarrow.fs`."""
    names = {
        "AWS_ACCESS_KEY_ID": "s3.access-key-id",
        "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
        "AWS_REGION": "s3.region",
        "AWS_ENDPOINT_URL": "s3.endpoint",
    }
    found = delta_options(url)
    return {names[name]: value for name, value in found.items() if name in names}


def table_schema(table: str, partition_columns: list[str]) -> Schema:
    """The Iceberg schema of a table. Its fields are numbered in the order of its columns."""
    columns = TABLES[table].columns
    element = len(columns) + len(PARTITION_COLUMNS) + 1  # ids of elements of lists come last
    fields = []
    for number, column in enumerate(columns, 1):
        if column.type is ColumnType.TEXT_LIST:
            kind: IcebergType = ListType(element, StringType(), element_required=False)
            element += 1
        else:
            kind = _TYPES[column.type]
        fields.append(NestedField(number, column.name, kind, required=not column.nullable))
    known = TABLES[table].column_names()
    for name in partition_columns:
        if name not in known:
            kind = DateType() if name == "date" else StringType()
            fields.append(NestedField(len(fields) + 1, name, kind, required=False))
    return Schema(*fields)


_TYPES: Final[dict[ColumnType, IcebergType]] = {
    ColumnType.TEXT: StringType(),
    ColumnType.INTEGER: LongType(),
    ColumnType.DECIMAL: DecimalType(20, 0),
    ColumnType.TIMESTAMP: TimestamptzType(),
    ColumnType.BINARY: BinaryType(),
}


@contextmanager
def _memory_catalog(base: str, properties: Mapping[str, str]) -> Iterator[InMemoryCatalog]:
    catalog = InMemoryCatalog("staging", base, **properties)
    try:
        yield catalog
    finally:
        catalog.close()


def _partition_spec(table: str, columns: list[str]) -> PartitionSpec:
    schema = table_schema(table, columns)
    return PartitionSpec(
        *(
            PartitionField(
                schema.find_field(name).field_id,
                _FIRST_PARTITION_FIELD + number,
                IdentityTransform(),
                name,
            )
            for number, name in enumerate(columns)
        )
    )


def _is_partitioned_by(table: Table, columns: list[str]) -> bool:
    return [field.name for field in table.spec().fields] == columns


def _map_names(transaction: Transaction) -> None:
    """Say which column of the files is which field: they are written without ids of fields."""
    mapping = transaction.table_metadata.schema().name_mapping
    transaction.set_properties({_NAME_MAPPING: mapping.model_dump_json()})


def _partition_value(name: str, value: str) -> int | str | None:
    if not value:
        return None
    return (date.fromisoformat(value) - _EPOCH).days if name == "date" else value


def _present(table: Table) -> dict[str, IcebergFile]:
    """The data files of the current snapshot, by location."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    entries = (
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    )
    return {str(entry.data_file.file_path): entry.data_file for entry in entries}


def _metadata_files(table: Table) -> set[str]:
    """The locations of everything that a table's metadata needs, itself included."""
    found = {str(table.metadata_location)}
    for snapshot in table.metadata.snapshots:
        found.add(str(snapshot.manifest_list))
        found |= {str(manifest.manifest_path) for manifest in snapshot.manifests(table.io)}
    return found


def _namespace_properties(session: Session) -> dict[str, str]:
    row = IcebergNamespaceProperties
    where = row.catalog_name == CATALOG_NAME, row.namespace == NAMESPACE
    found = session.execute(select(row.property_key, row.property_value).where(*where))
    return {str(name): str(value) for name, value in found}


def _set_property(session: Session, name: str, before: str | None, value: str) -> bool:
    """Set a property of the namespace that was `before`, None: that it did not have. Return False,
    or raise IntegrityError, if that is not so any more."""
    keys = {"catalog_name": CATALOG_NAME, "namespace": NAMESPACE, "property_key": name}
    if before is None:
        session.execute(insert(IcebergNamespaceProperties).values(**keys, property_value=value))
        return True
    row = IcebergNamespaceProperties
    where = [getattr(row, key) == wanted for key, wanted in keys.items()]
    change = update(row).where(*where, row.property_value == before).values(property_value=value)
    return int(session.connection().execute(change).rowcount) == 1


def _delete_tables(session: Session) -> None:
    """Delete the entries of all tables of the namespace, and which lake and version they are of."""
    row, table = IcebergNamespaceProperties, IcebergTables
    keys = row.property_key.in_([VERSION_KEY, LAKE_KEY])
    session.execute(
        delete(row).where(row.catalog_name == CATALOG_NAME, row.namespace == NAMESPACE, keys)
    )
    session.execute(
        delete(table).where(table.catalog_name == CATALOG_NAME, table.table_namespace == NAMESPACE)
    )


def _table_locations(session: Session) -> list[str]:
    """Where the metadata of the tables of the namespace is."""
    table = IcebergTables
    where = table.catalog_name == CATALOG_NAME, table.table_namespace == NAMESPACE
    return [str(found) for found in session.scalars(select(table.metadata_location).where(*where))]


def _point(session: Session, table: str, location: str) -> None:
    """Point the catalog's entry of a table to its metadata."""
    keys = {"catalog_name": CATALOG_NAME, "table_namespace": NAMESPACE, "table_name": table}
    where = [getattr(IcebergTables, name) == value for name, value in keys.items()]
    former = session.scalar(select(IcebergTables.metadata_location).where(*where))
    values = {"metadata_location": location, "previous_metadata_location": former}
    if former is None:
        session.execute(insert(IcebergTables).values(**keys, **values))
    elif former != location:
        session.execute(update(IcebergTables).where(*where).values(**values))


def _data_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "polymux"
    standard = os.environ.get("XDG_DATA_HOME", "")
    base = Path(standard) if os.path.isabs(standard) else Path.home() / ".local" / "share"
    return base / "polymux"
