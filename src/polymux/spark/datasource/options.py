"""The options of `format("polymux")`, validated before any work."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polymux.analysis.options import AnalysisOptions, parse_ports
from polymux.analysis.schema.tables import TABLES
from polymux.analysis.tls.key_files import read_key_option
from polymux.capture import FlowFilter, SensorNaming
from polymux.capture.io.paths import is_url
from polymux.core.errors import PolymuxError
from polymux.spark.datasource.selection import OPTION_NAMES as SELECTION_OPTIONS
from polymux.spark.datasource.selection import RowSelection

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_OPTIONS = (
    "path",
    "paths",
    "protocol",
    "table",
    "columns",
    "port",
    "filter",
    "keys",
    "sensor",
    "sensorfrom",
    "maxpartitionbytes",
    *(name.lower() for name in SELECTION_OPTIONS),
)
STREAM_OPTIONS = (  # only for readStream
    "sessiongrace", "sessiontimeout", "idletimeout", "dedupwindow", "maxbytespertrigger",
)  # fmt: skip


# Properties that Spark's catalog adds to the options of a table.
CATALOG_PROPERTIES = frozenset((
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
    "serialization.format",
))  # fmt: skip
CATALOG_OPTION_PREFIX = "option."
CATALOG_MARK = "provider"  # a property that only the catalog sets
OPTIONS_METADATA = "polymux.options"  # of the first column of a table in the catalog
LOCATION_SCHEME = "file:"  # that the catalog puts before an absolute local path, unescaped


class BadOption(PolymuxError):
    """An option of the data source is invalid; the message names it and what is valid."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read.

    Lists are separated by commas: `port` "9000=mplex,9001", `filter` "192.0.2.1:9000,:9001",
    `columns` "session_id,kind", `keys` "logs/,extra.keys". `max_partition_bytes` is 0 if it was not
    given. The key logs are not read here: a query parses its options several times.
    """

    paths: tuple[str, ...]
    table: str
    columns: tuple[str, ...]
    analysis_options: AnalysisOptions
    filters: tuple[str, ...]
    selection: RowSelection
    max_partition_bytes: int = 0
    key_files: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options, whose names are case-insensitive.

        Raises:
            BadOption: An option is unknown or invalid.
            BadProtocolString: `protocol` or a protocol in `port` is invalid.
        """
        values = without_catalog_properties(options)
        unknown = sorted(set(values) - set(BATCH_OPTIONS) - set(STREAM_OPTIONS))
        if unknown:
            raise BadOption(
                f"option {unknown[0]!r} is not known; there are path, protocol, table, columns, "
                "port, filter, keys, sensor, sensorFrom, maxPartitionBytes, "
                f"{', '.join(SELECTION_OPTIONS)}; for streams also sessionGrace, sessionTimeout, "
                "idleTimeout, dedupWindow and maxBytesPerTrigger"
            )
        table = values.get("table", "frames")
        if table not in TABLES:
            raise BadOption(f"table {table!r} is not known; there are {', '.join(TABLES)}")
        columns = _split_list(values.get("columns", "")) or TABLES[table].column_names()
        for name in columns:
            if name not in TABLES[table].column_names():
                known = ", ".join(TABLES[table].column_names())
                raise BadOption(f"columns: {table} has no column {name!r}; it has {known}")
        if len(set(columns)) != len(columns):
            raise BadOption(f"columns: {', '.join(columns)} names one twice")
        filters = _split_list(values.get("filter", ""))
        max_bytes = values.get("maxpartitionbytes", "0")
        if not max_bytes.isdecimal():
            raise BadOption(f"maxPartitionBytes {max_bytes!r} is not a number of bytes")
        try:
            ports = parse_ports(_ports(values.get("port", "")))
            FlowFilter(ports, filters)
            sensors = SensorNaming(values.get("sensor", ""), values.get("sensorfrom", ""))
            selection = RowSelection.parse(table, values)
        except ValueError as problem:
            raise BadOption(str(problem)) from None
        analysis = AnalysisOptions(
            values.get("protocol", "auto"),
            ports,
            frozenset({table}),
            sensors=sensors,
            only_protocols=selection.protocols,
        )
        keys = _split_list(values.get("keys", ""))
        return cls(
            _paths(values), table, columns, analysis, filters, selection, int(max_bytes), keys
        )

    def with_keys(self) -> SourceOptions:
        """Return the same options with the key logs read.

        Raises:
            BadKeyLog: One of them cannot be used.
            MissingExtra: There are some, and what opens TLS is not installed.
        """
        keys = read_key_option(self.key_files)
        return replace(self, analysis_options=replace(self.analysis_options, keys=keys))

    def with_schema(self, schema: StructType) -> SourceOptions:
        """Return the options for a read with a schema of the caller: its columns, in its order.

        Raises:
            BadOption: The table has no such column, or the column has another type.
        """
        from polymux.spark.datasource.types import spark_type

        if not schema.fields:
            return self
        for given in schema.fields:
            if given.name not in TABLES[self.table].column_names():
                known = ", ".join(TABLES[self.table].column_names())
                raise BadOption(
                    f"schema: {self.table} has no column {given.name!r}; it has {known}"
                )
            expected = spark_type(self.table, given.name)
            if given.dataType != expected:
                raise BadOption(
                    f"schema: {given.name} of {self.table} is {expected.simpleString()}, not "
                    f"{given.dataType.simpleString()}; read it so and cast it in the query"
                )
        if len({given.name for given in schema.fields}) != len(schema.fields):
            raise BadOption("schema: it names a column twice")
        return replace(self, columns=tuple(schema.names))


def without_catalog_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by lower-case name, without what Spark's catalog adds.

    For `CREATE TABLE` the catalog passes its own properties, the options as `option.NAME`, and the
    path as `location`. Paths, also of key logs, are made absolute then: the table may be read from
    anywhere.

    Raises:
        BadOption: `paths` is not a JSON list.
    """
    values: dict[str, str] = {}
    given = {name.lower(): value for name, value in options.items()}
    for name, value in given.items():
        if name.startswith(CATALOG_OPTION_PREFIX):
            values.setdefault(name.removeprefix(CATALOG_OPTION_PREFIX), value)
        elif name not in CATALOG_PROPERTIES:
            values[name] = value
    if "location" in given and not values.get("path") and not values.get("paths"):
        values["path"] = given["location"]
    if CATALOG_MARK in given:
        if values.get("path"):
            values["path"] = _absolute(values["path"])
        if values.get("paths"):
            values["paths"] = json.dumps([_absolute(path) for path in _path_list(values["paths"])])
        if values.get("keys"):
            values["keys"] = ",".join(_absolute(name) for name in _split_list(values["keys"]))
    return values


def keep_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table that is being created in Spark's catalog, with its options.

    Spark asks a Python data source for the schema with the options of the table, but reads the
    table without them; the schema is all that the catalog gives back. Outside the catalog the
    schema is returned as it is.
    """
    from pyspark.sql.types import StructField, StructType

    if CATALOG_MARK not in {name.lower() for name in options}:
        return schema
    first, *others = schema.fields
    metadata = {OPTIONS_METADATA: json.dumps(without_catalog_properties(options))}
    return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])


def with_kept_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: those of a table in the catalog (`keep_options`), and those of
    the query itself, which win.

    A query that says which captures to read has only its own options: it reads no table, but has
    the schema of one.
    """
    given = {name.lower(): value for name, value in options.items()}
    if given.get("path") or given.get("paths"):
        return given
    values: dict[str, str] = {}
    for column in schema.fields:
        values |= json.loads((column.metadata or {}).get(OPTIONS_METADATA, "{}"))
    return values | given


def _absolute(path: str) -> str:
    return path if is_url(path) else os.path.abspath(path.removeprefix(LOCATION_SCHEME))


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _ports(text: str) -> list[str]:
    """Split a `port` option into pairs.

    A protocol string may contain commas: a part that does not begin with a number continues the
    pair before it.
    """
    pairs: list[str] = []
    for part in _split_list(text):
        if pairs and not part.partition("=")[0].isdecimal():
            pairs[-1] += f",{part}"
        else:
            pairs.append(part)
    return pairs


def _path_list(text: str) -> list[str]:
    """Parse the option `paths`."""
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise BadOption(f'paths {text!r} is not a JSON list, such as ["a.pcapng","b/"]')
    return paths


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths: Spark passes `load("one")` as `path`, `load([...])` as JSON in `paths`."""
    paths = _path_list(options["paths"]) if options.get("paths") else []
    if options.get("path"):
        paths.append(options["path"])
    if not paths:
        raise BadOption(
            "no path: write load('captures/'), or load() with a list of paths; for a table in the "
            "catalog, CREATE TABLE t USING polymux OPTIONS (path '...') without a list of columns"
        )
    return tuple(paths)
