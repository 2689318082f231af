"""Captures as tables that a database reads: made when a query scans them, and never written.

DuckDB asks each table that a query names for its schema, then for a stream of Arrow batches for
each scan. A scan of a large table (`frames`, `timeline`, `content`) is a pass of the analysis that
makes this table only, so memory does not grow with it. The other tables that the query names are
made in one pass and kept for later scans and queries, up to `MAX_KEPT_BYTES`; beyond that, they are
made again for each scan too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
import pyarrow as pa

from polymux.analysis.output.arrow_batches import (
    SCHEMAS,
    captures_batch,
    decode_dictionaries,
)
from polymux.analysis.output.row_batcher import RowBatcher
from polymux.analysis.schema.tables import TABLES
from polymux.capture.io.sources import STDIN
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_tables import with_absolute_paths
from polymux.cli.support.capture_walk import CaptureRun

MAX_KEPT_BYTES: Final = 64 << 20
STREAMED_TABLES: Final = frozenset({"frames", "timeline", "content"})


class CaptureSource:
    """The tables of captures. `tables` are the objects to register with a database, by name.

    `failure` is what ended a scan: DuckDB passes on only the text of an exception. `exit_code` is
    that of reading the captures; warnings are printed by the first pass only.

    Raises:
        click.UsageError: --port is malformed, or standard input is named.
        CaptureError: A capture cannot be found.
    """

    def __init__(self, request: CaptureRequest) -> None:
        if STDIN in request.files:
            raise click.UsageError("-: captures are read more than once; save it to a file first")
        self.request = with_absolute_paths(request)
        self.request.analysis_options("sessions")  # validates the options
        self.tables = {name: TableStream(name, self) for name in TABLES}
        self.passes = 0
        self.exit_code = 0
        self.failure: BaseException | None = None
        self._named: set[str] = set()
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._too_large: set[str] = set(STREAMED_TABLES)

    def begin_query(self) -> None:
        """Forget the tables that the last query named, and its failure."""
        self._named.clear()
        self.failure = None

    def add_named(self, table: str) -> None:
        """Note that the query names a table; called before any of its tables is read."""
        self._named.add(table)

    def batches(self, table: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table."""
        try:
            if table not in self._too_large and table not in self._kept:
                self._keep_named(table)
            if table in self._kept:
                yield from self._kept[table]
            else:
                for _, batch in self._read(frozenset({table})):
                    yield batch
        except GeneratorExit:  # the query needs no more rows
            raise
        except BaseException as failure:
            self.failure = failure
            raise

    def _keep_named(self, table: str) -> None:
        """Make the named tables that are not kept yet, in one pass, as far as they are small."""
        wanted = ((self._named | {table}) - self._too_large) - set(self._kept)
        made: dict[str, list[pa.RecordBatch]] = {name: [] for name in wanted}
        size = sum(batch.nbytes for kept in self._kept.values() for batch in kept)
        for name, batch in self._read(frozenset(wanted)):
            if name not in made:
                continue
            made[name].append(batch)
            size += batch.nbytes
            while size > MAX_KEPT_BYTES and made:
                largest = max(made, key=lambda name: sum(part.nbytes for part in made[name]))
                size -= sum(part.nbytes for part in made.pop(largest))
                self._too_large.add(largest)
            if not made:
                return
        self._kept.update(made)

    def _read(self, tables: frozenset[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Analyze the captures once and yield the rows of these tables, in their exact schemas."""
        pending: list[tuple[str, pa.RecordBatch]] = []

        def emit(table: str, batch: pa.RecordBatch) -> None:
            pending.append((table, decode_dictionaries(table, batch)))

        def taken() -> list[tuple[str, pa.RecordBatch]]:
            done = pending[:]
            pending.clear()
            return done

        self.passes += 1
        options = self.request.analysis_options(*tables)
        batcher = RowBatcher(emit)
        with CaptureRun(self.request, options, quiet=self.passes > 1) as run:
            try:
                if "captures" in tables:
                    yield "captures", captures_batch(run.files)
                if tables - {"captures"}:
                    for session in run.sessions():
                        for _ in run.analyze_steps(session, options, emit, batcher=batcher):
                            yield from taken()
                    batcher.flush()
                    yield from taken()
            finally:  # also if the query wants no more rows
                self.exit_code = max(self.exit_code, run.exit_code)


class TableStream:
    """One table, in the form in which DuckDB reads Arrow data (the PyCapsule interface)."""

    def __init__(self, name: str, source: CaptureSource) -> None:
        self._name = name
        self._source = source

    def __arrow_c_schema__(self) -> object:
        self._source.add_named(self._name)
        return SCHEMAS[self._name].__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(
            SCHEMAS[self._name], self._source.batches(self._name)
        )
        return reader.__arrow_c_stream__(requested_schema)
