"""What a reader of `format("polymux")` may say, checked before any work."""

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
STREAM_OPTIONS = (  # of a stream alone
    "sessiongrace", "sessiontimeout", "idletimeout", "dedupwindow", "maxbytespertrigger",
)  # fmt: skip


class BadOption(PolymuxError):
    """An option of the data source cannot be used; says which, and what would do."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read. Lists are written with commas: `port` "9000=mplex,9001", `filter`
    "192.0.2.1:9000,:9001", `columns` "session_id,kind".
    """

    paths: tuple[str, ...]
    table: str
    columns: tuple[str, ...]
    analysis_options: AnalysisOptions
    filters: tuple[str, ...]
    max_partition_bytes: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read them; BadOption, or BadProtocolString, says what is wrong."""
        said = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(said) - set(BATCH_OPTIONS) - set(STREAM_OPTIONS))
        if unknown:
            raise BadOption(
                f"option {unknown[0]!r} is not known; there are path, protocol, table, columns, "
                "port, filter and maxPartitionBytes"
            )
        table = said.get("table", "frames")
        if table not in TABLES:
            raise BadOption(f"table {table!r} is not known; there are {', '.join(TABLES)}")
        columns = _split_list(said.get("columns", "")) or TABLES[table].column_names()
        for name in columns:
            if name not in TABLES[table].column_names():
                has = ", ".join(TABLES[table].column_names())
                raise BadOption(f"columns: {table} has no column {name!r}; it has {has}")
        if len(set(columns)) != len(columns):
            raise BadOption(f"columns: {', '.join(columns)} names one twice")
        filters = _split_list(said.get("filter", ""))
        data = said.get("maxpartitionbytes", "0")
        if not data.isdecimal():
            raise BadOption(f"maxPartitionBytes {data!r} is no number of bytes")
        try:
            ports = parse_ports(_ports(said.get("port", "")))
            FlowFilter(ports, filters)
        except ValueError as problem:
            raise BadOption(str(problem)) from None
        plan = AnalysisOptions(said.get("protocol", "auto"), ports, frozenset({table}))
        return cls(_paths(said), table, columns, plan, filters, int(data))


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _ports(text: str) -> list[str]:
    """The pairs of a `port` option. A protocol string has commas of its own: what does not begin
    with a number goes on with the pair before it."""
    pairs: list[str] = []
    for part in _split_list(text):
        if pairs and not part.partition("=")[0].isdecimal():
            pairs[-1] += f",{part}"
        else:
            pairs.append(part)
    return pairs


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """`load("one")` comes as `path`, `load(["one", "two"])` as JSON in `paths`."""
    paths = json.loads(options["paths"]) if options.get("paths") else []
    if options.get("path"):
        paths.append(options["path"])
    if not paths:
        raise BadOption("no path: write load('captures/'), or load() with a list of paths")
    return tuple(paths)
