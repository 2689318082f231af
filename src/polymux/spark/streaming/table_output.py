"""Tables that micro-batches write into: each batch has its own place in them, and overwrites it.

A batch that is run again replaces what it wrote before, so every row is there once, whatever was
killed when. What is still open stands in a snapshot that each batch replaces.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from polymux.analysis.arrow.batches import SCHEMAS
from polymux.analysis.output.parquet import write_empty_tables
from polymux.capture.io.atomic_write import write_atomically
from polymux.core.errors import MissingExtra, PolymuxError, UnwritableOutput
from polymux.spark.datasource.stream_reader import TaskReport

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

STATE_FOLDER = "_follow"  # names that begin so are no tables to Spark or to us
SNAPSHOT_TABLES = ("sessions", "streams")


class StreamingTables:
    """An output directory that a following query writes into, again and again."""

    def __init__(self, out: str, settings: dict[str, str]) -> None:
        self.out = Path(out).absolute()
        self.state_folder = self.out / STATE_FOLDER
        self.checkpoint = self.state_folder / "checkpoint"
        self.staging = self.state_folder / "staging"
        self._check(out, settings)
        try:
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)
            kept = self.state_folder / "settings.json"
            if not kept.exists():
                write_atomically(kept, json.dumps(settings, indent=1).encode(), hidden=True)
        except OSError as problem:
            raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None
        write_empty_tables(self.out)
        if settings.get("content") == "true":
            write_empty_tables(self.out, ["content"])
        for table in SNAPSHOT_TABLES:
            if not self._snapshot(table).exists():
                self._write_snapshot(table, SCHEMAS[table].empty_table())

    def _check(self, out: str, settings: dict[str, str]) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise PolymuxError(f"{out}: is a file; --out names a directory")
        kept = self.state_folder / "settings.json"
        if not kept.exists():
            if self.out.is_dir() and any(self.out.iterdir()):
                raise PolymuxError(
                    f"{out}: holds something that was not made by following; choose another"
                )
            return
        before = json.loads(kept.read_text())
        for name, value in settings.items():
            if before.get(name) != value:
                raise PolymuxError(
                    f"{out}: was begun with {name}={before.get(name)!r}, not {value!r}: say the "
                    "same again, or choose another directory"
                )
        if any(self.out.glob("*/batch-*.parquet")) and not self.checkpoint.exists():
            raise PolymuxError(f"{out}: has tables but its checkpoint is gone; choose another")

    def publish(self, batch_id: int, reports: Iterable[TaskReport]) -> None:
        """Put the files of a batch in its place, instead of any that it wrote before."""
        parts = list(reports)
        for path in self.out.glob(f"*/batch-{batch_id:08}-*.parquet"):
            path.unlink()
        folders = set()
        for number, part in enumerate(parts):
            for table in part.tables:
                source = self.staging / part.folder / table / "part.parquet"
                target = self.out / table / f"batch-{batch_id:08}-{number:04}.parquet"
                target.parent.mkdir(exist_ok=True)
                fsync_path(source)
                os.replace(source, target)
                folders.add(target.parent)
        for folder in folders:
            fsync_path(folder)
        unchanged = {name for part in parts for name in part.unchanged}
        for table in SNAPSHOT_TABLES:
            self._update_snapshot(table, parts, unchanged)
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(exist_ok=True)

    def _update_snapshot(self, table: str, reports: list[TaskReport], unchanged: set[str]) -> None:
        """The rows of sessions that have grown, and those of the others as they were."""
        path = self._snapshot(table)
        before = pq.read_table(path).cast(SCHEMAS[table])
        wanted = pa.array(sorted(unchanged), pa.string())
        pieces = [before.filter(pc.is_in(before["session_id"], value_set=wanted))]
        for part in reports:
            if table in part.open_tables:
                walked = self.staging / part.folder / "open" / table / "part.parquet"
                pieces.append(pq.read_table(walked).cast(SCHEMAS[table]))
        self._write_snapshot(table, pa.concat_tables(pieces))

    def _snapshot(self, table: str) -> Path:
        return self.out / f"open_{table}" / "snapshot.parquet"

    def _write_snapshot(self, table: str, rows: pa.Table) -> None:
        path = self._snapshot(table)
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.part")
        pq.write_table(rows, hidden, compression="zstd", store_schema=False)
        fsync_path(hidden)
        os.replace(hidden, path)


def fsync_path(path: Path) -> None:
    """What is there outlives a power cut before anybody relies on it."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
