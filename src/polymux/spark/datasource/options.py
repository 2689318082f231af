"""The options of `format("polymux")`, validated before any work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from polymux.analysis.options import AnalysisOptions, parse_ports
from polymux.analysis.schema.tables import TABLES
from polymux.capture import FlowFilter
from polymux.core.errors import PolymuxError

BATCH_OPTIONS = (
    "path",
    "paths",
    "protocol",
    "table",
    "columns",
    "port",
    "filter",
    "maxpartitionbytes",
)
STREAM_OPTIONS = (  # only for readStream
    "sessiongrace", "sessiontimeout", "idletimeout", "dedupwindow", "maxbytespertrigger",
)  # fmt: skip


class BadOption(PolymuxError):
    """An option of the data source is invalid; the message names it and what is valid."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read.

    Lists are separated by commas: `port` "9000=mplex,9001", `filter` "192.0.2.1:9000,:9001",
    `columns` "session_id,kind". `max_partition_bytes` is 0 if it was not given.
    """

    paths: tuple[str, ...]
    table: str
    columns: tuple[str, ...]
    analysis_options: AnalysisOptions
    filters: tuple[str, ...]
    max_partition_bytes: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options, whose names are case-insensitive.

        Raises:
            BadOption: An option is unknown or invalid.
            BadProtocolString: `protocol` or a protocol in `port` is invalid.
        """
        values = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(values) - set(BATCH_OPTIONS) - set(STREAM_OPTIONS))
        if unknown:
            raise BadOption(
                f"option {unknown[0]!r} is not known; there are path, protocol, table, columns, "
                "port, filter and maxPartitionBytes; for streams also sessionGrace, "
                "sessionTimeout, idleTimeout, dedupWindow and maxBytesPerTrigger"
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
        except ValueError as problem:
            raise BadOption(str(problem)) from None
        analysis = AnalysisOptions(values.get("protocol", "auto"), ports, frozenset({table}))
        return cls(_paths(values), table, columns, analysis, filters, int(max_bytes))


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


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths: Spark passes `load("one")` as `path`, `load([...])` as JSON in `paths`."""
    paths = json.loads(options["paths"]) if options.get("paths") else []
    if options.get("path"):
        paths.append(options["path"])
    if not paths:
        raise BadOption("no path: write load('captures/'), or load() with a list of paths")
    return tuple(paths)
