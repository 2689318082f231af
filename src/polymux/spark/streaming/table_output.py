"""Tables that micro-batches write: each batch has its own files, and replaces them if repeated.

Every row is therefore present exactly once, whichever process was killed at any time. Open sessions
are in a snapshot that each batch replaces (`open_sessions`, `open_streams`).
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

STATE_FOLDER = "_follow"  # Spark and polymux ignore names that begin with an underscore
SNAPSHOT_TABLES = ("sessions", "streams")


class StreamingTables:
    """The output directory of a query that follows a folder.

    Raises:
        PolymuxError: The directory contains something else, or was created with other settings.
        UnwritableOutput: It cannot be written.
    """

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
                    f"{out}: holds files that `analyze --watch` did not write; choose another"
                )
            return
        before = json.loads(kept.read_text())
        for name, value in settings.items():
            if before.get(name) != value:
                raise PolymuxError(
                    f"{out}: was created with {name}={before.get(name)!r}, not {value!r}: use the "
                    "same options, or choose another directory"
                )
        if any(self.out.glob("*/batch-*.parquet")) and not self.checkpoint.exists():
            raise PolymuxError(f"{out}: has tables but its checkpoint is gone; choose another")

    def publish(self, batch_id: int, reports: Iterable[TaskReport]) -> None:
        """Publish the files of a micro-batch, replacing those of an earlier attempt at it."""
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
        """Replace the rows of sessions that have grown, and keep those of unchanged ones."""
        path = self._snapshot(table)
        before = pq.read_table(path).cast(SCHEMAS[table])
        session_ids = pa.array(sorted(unchanged), pa.string())
        pieces = [before.filter(pc.is_in(before["session_id"], value_set=session_ids))]
        for part in reports:
            if table in part.open_tables:
                path_of_part = self.staging / part.folder / "open" / table / "part.parquet"
                pieces.append(pq.read_table(path_of_part).cast(SCHEMAS[table]))
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
    """Sync a file or directory to disk, so that it survives a power loss."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
