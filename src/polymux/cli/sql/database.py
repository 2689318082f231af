"""A database in memory that answers queries about given tables, and does nothing else.

It writes nothing, reads no file and opens no connection: DuckDB's external access is turned off
before the first query and its configuration is locked, extensions are neither installed nor loaded,
and only statements that return rows are run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import click
import pyarrow as pa

from polymux.cli.sql.macros import MACROS
from polymux.cli.support.exit_codes import EXIT_LIMIT, EXIT_USAGE
from polymux.core.errors import MissingExtra

try:
    import duckdb
except ImportError:
    raise MissingExtra("sql", "polymux sql") from None

RESULT_BATCH_ROWS: Final = 8192
_SETTINGS: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # a name is a table, never a variable of this program
    # The number of rows of a table is not known before it is read: joins keep the order in which
    # they are written, so that the first table is passed on as it is made.
    "disabled_optimizers": "join_order,build_side_probe_side",
    "temp_directory": "",  # a query that needs more memory fails instead of writing files
}
_REFUSED: Final = "only queries are run: nothing is written, and nothing else is read"


class QueryFailed(click.ClickException):
    """A query is wrong or refused."""

    exit_code = EXIT_USAGE


class QueryTooLarge(QueryFailed):
    """A query needs more memory than it may use."""

    exit_code = EXIT_LIMIT


class Database:
    """Answers queries about `tables`: objects that DuckDB reads Arrow data from, by name.

    `memory` is the most that a query may use, `threads` how many threads it may use (0: one for
    each processor). Close it, or use it as a context manager.

    Raises:
        click.UsageError: `memory` is not a size.
    """

    def __init__(self, tables: Mapping[str, object], memory: str = "1GB", threads: int = 0) -> None:
        if not re.fullmatch(r"\d+ ?[KMGT]i?B", memory, re.ASCII):
            raise click.UsageError(f"--memory {memory}: write a size such as 512MB or 4GB")
        settings: dict[str, str | bool | int | float | list[str]] = {
            **_SETTINGS,
            "memory_limit": memory.replace(" ", ""),
        }
        if threads:
            settings["threads"] = str(threads)
        self._connection = duckdb.connect(":memory:", config=settings)
        self._connection.execute("set TimeZone = 'UTC'")
        for name, table in tables.items():
            self._connection.register(name, table)
        for macro in MACROS:
            self._connection.execute(f"create macro {macro.call} as table {macro.query}")
        self._connection.execute("set lock_configuration = true")

    def query(self, text: str) -> pa.RecordBatchReader:
        """Run one query and return its rows, which are made as they are read.

        Raises:
            QueryFailed: It is no query, or cannot be run. Reading the rows raises it too, if it is
                done inside `explained`.
        """
        with self.explained():
            statements = self._connection.extract_statements(text)
            if len(statements) != 1:
                raise QueryFailed(f"one query at a time, not {len(statements)}")
            kinds = duckdb.StatementType
            if statements[0].type not in (kinds.SELECT, kinds.EXPLAIN):
                raise QueryFailed(f"{statements[0].type.name}: {_REFUSED}")
            rows = self._connection.sql(text)
            return rows.to_arrow_reader(RESULT_BATCH_ROWS)

    def explained(self) -> _Explained:
        """A context in which errors of DuckDB become QueryFailed."""
        return _Explained()

    def close(self) -> None:
        """Release the tables and the memory."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Explained:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, duckdb.PermissionException):
            raise QueryFailed(f"{str(error).splitlines()[0]}: {_REFUSED}") from None
        if isinstance(error, duckdb.OutOfMemoryException):
            raise QueryTooLarge(
                f"{str(error).splitlines()[0]}; give the query more with --memory, or ask for less"
            ) from None
        if isinstance(error, duckdb.Error | pa.ArrowException):
            raise QueryFailed(str(error).strip()) from None
