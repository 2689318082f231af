"""Tables that micro-batches write: each batch has its own files, and replaces them if repeated.

No two attempts at a batch share the name of a file, and no file that the manifest names is removed
before the manifest that names others has taken its place. After a kill, the files that the manifest
does not name are removed when the query is started again.

Every row is therefore present exactly once, whichever process was killed at any time. Open sessions
are in a snapshot that each batch replaces (`open_sessions`, `open_streams`). The manifest names the
files of all batches that are complete, and is replaced when a batch is; see `analysis` manifests.

A batch may be small, and a query may run for months: when a table has `COMPACT_FILES` small files
of batches that Spark has committed, they are merged into one, `batches-FIRST-LAST-....parquet`.
While captures wait to be read, that is put off until there are `MAX_SMALL_FILES`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.analysis.output.manifest import (
    MANIFEST_NAME,
    Manifest,
    TableFile,
    read_manifest,
)
from polymux.analysis.output.parquet import (
    make_table_folder,
    merge_files,
    write_empty_tables,
)
from polymux.analysis.schema.tables import TABLES
from polymux.capture.io.atomic_write import write_atomically
from polymux.core.errors import MissingExtra, PolymuxError, UnwritableOutput
from polymux.spark.batch.output_lock import LOCK_NAME, OutputLock, refuse_if_busy
from polymux.spark.datasource.stream_reader import TaskReport

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

STATE_FOLDER = "_follow"  # Spark and polymux ignore names that begin with an underscore
SNAPSHOT_TABLES = ("sessions", "streams")
COMPACT_FILES = 8  # small files of a table that are merged into one
MAX_SMALL_FILES = 64  # as many are merged even if captures wait to be read
MAX_COMPACT_BYTES = 32 << 20  # a larger file is not merged again
_BATCH_FILE = re.compile(r"(batch-\d{8}-\d{4,}(-[0-9a-f]{8})?|batches-\d{8}-\d{8}-\d{8})\.parquet")
COMPACTION_NOTE = "compaction.json"


class StreamingTables:
    """The output directory of a query that follows a folder, which holds its lock.

    Raises:
        PolymuxError: The directory contains something else, or was created with other settings.
        OutputBusy: Another query writes to it.
        UnwritableOutput: It cannot be written.
    """

    def __init__(self, out: str, settings: dict[str, str]) -> None:
        self.out = Path(out).absolute()
        self.state_folder = self.out / STATE_FOLDER
        self.checkpoint = self.state_folder / "checkpoint"
        self.staging = self.state_folder / "staging"
        self.index_folder = self.state_folder / "indexes"
        self._rows: dict[tuple[str, int], int] = {}  # of files, by name and size
        self._check(out, settings)
        try:
            self.state_folder.mkdir(parents=True, exist_ok=True)
            self._lock = OutputLock(self.out, "")
        except OSError as problem:
            raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None
        try:
            self._prepare(out, settings)
        except BaseException:
            self.close()
            raise

    def _prepare(self, out: str, settings: dict[str, str]) -> None:
        """Finish what a query that was killed has left, and create what is missing."""
        try:
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)
            shutil.rmtree(self.index_folder, ignore_errors=True)
            kept = self.state_folder / "settings.json"
            if not kept.exists():
                write_atomically(kept, json.dumps(settings, indent=1).encode())
            self._finish_compaction()
        except OSError as problem:
            raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None
        write_empty_tables(self.out)
        if settings.get("content") == "true":
            write_empty_tables(self.out, ["content"])
        for table in SNAPSHOT_TABLES:
            if not self._snapshot(table).exists():
                self._write_snapshot(table, SCHEMAS[table].empty_table())
        self._remove_unnamed()

    def _check(self, out: str, settings: dict[str, str]) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise PolymuxError(f"{out}: is a file; --out names a directory")
        if self.out.is_dir():
            refuse_if_busy(self.out)
        kept = self.state_folder / "settings.json"
        if not kept.exists():
            known = {LOCK_NAME, STATE_FOLDER}
            if self.out.is_dir() and any(path.name not in known for path in self.out.iterdir()):
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
        if any(self.out.glob("*/batch*-*.parquet")) and not self.checkpoint.exists():
            raise PolymuxError(f"{out}: has tables but its checkpoint is gone; choose another")

    def publish(
        self, batch_id: int, reports: Iterable[TaskReport], more_waits: bool = False
    ) -> None:
        """Publish the files of a micro-batch, replacing those of an earlier attempt at it.

        Args:
            batch_id: Its number.
            reports: What its tasks have written.
            more_waits: Captures wait to be read: merging small files can wait.

        Raises:
            PolymuxError: Another query has taken the lock over; nothing was published.
        """
        if not self._lock.is_held():
            raise PolymuxError(
                f"{self.out}: another run has taken its lock ({LOCK_NAME}) over; do not run two at "
                "once with the same --out"
            )
        parts = list(reports)
        former = self._manifest_files()
        new = self._take_in(batch_id, parts)
        kept = [path for path in former if _batches(path) != (batch_id, batch_id)]
        self._write_manifest([*kept, *new])
        _unlink(set(former) - set(kept))
        self._compact(batch_id, MAX_SMALL_FILES if more_waits else COMPACT_FILES)
        unchanged = {name for part in parts for name in part.unchanged}
        for table in SNAPSHOT_TABLES:
            self._update_snapshot(table, parts, unchanged)
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(exist_ok=True)

    def close(self) -> None:
        """Give the lock up."""
        self._lock.release()

    def _take_in(self, batch_id: int, parts: list[TaskReport]) -> list[Path]:
        """Move the files of this attempt to the tables. Return where they are."""
        attempt = secrets.token_hex(4)
        new = []
        for number, part in enumerate(parts):
            for table in part.tables:
                source = self.staging / part.folder / table / "part.parquet"
                name = f"batch-{batch_id:08}-{number:04}-{attempt}.parquet"
                target = self.out / table / name
                make_table_folder(target.parent)
                fsync_path(source)
                os.replace(source, target)
                new.append(target)
        for folder in {path.parent for path in new}:
            fsync_path(folder)
        return new

    def _manifest_files(self) -> list[Path]:
        """Return the files of batches that the manifest names; all if there is none."""
        manifest = read_manifest(self.out)
        if manifest is None:
            paths = [path for table in TABLES for path in (self.out / table).glob("*.parquet")]
        else:
            files = manifest.tables.values()
            paths = [self.out / file.path for table in files for file in table]
        return [path for path in paths if _BATCH_FILE.fullmatch(path.name)]

    def _remove_unnamed(self) -> None:
        """Remove what attempts that were killed have left in the tables."""
        named = self._manifest_files()
        if not (self.out / MANIFEST_NAME).exists():
            self._write_manifest(named)
        for table in TABLES:
            found = set((self.out / table).glob("*.parquet")) - set(named)
            _unlink(path for path in found if _BATCH_FILE.fullmatch(path.name))
            _unlink((self.out / table).glob(".batches-*"))  # not merged to the end

    def _write_manifest(self, files: Iterable[Path]) -> None:
        """Name these files of batches, and an empty one where a table has none."""
        by_table: dict[str, list[Path]] = {}
        for path in sorted(files):
            by_table.setdefault(path.parent.name, []).append(path)
        tables = {}
        for table in TABLES:
            paths = by_table.get(table) or sorted((self.out / table).glob("part-*"))
            if paths:
                tables[table] = [self._entry(path) for path in paths]
        write_atomically(self.out / MANIFEST_NAME, Manifest("", tables).encode())
        fsync_path(self.out)  # before anything is removed that the former one names

    def _entry(self, path: Path) -> TableFile:
        name, size = f"{path.parent.name}/{path.name}", path.stat().st_size
        known = self._rows.get((name, size))
        if known is None:
            known = self._rows[name, size] = int(pq.read_metadata(path).num_rows)
        return TableFile(name, size, known)

    # Compaction. Step 1: write the merged file under a hidden name. Step 2: note which files it
    # replaces. Step 3: give it its name, name it in the manifest in place of those, and remove
    # those. After a kill, step 3 is done again.

    def _compact(self, batch_id: int, file_count: int) -> None:
        """Merge small files of the batches before this one, where a table has `file_count` or more:
        Spark repeats none of those."""
        work = []
        by_table: dict[str, list[Path]] = {}
        for path in sorted(self._manifest_files()):
            if _batches(path)[1] < batch_id and path.stat().st_size < MAX_COMPACT_BYTES:
                by_table.setdefault(path.parent.name, []).append(path)
        for table, small in by_table.items():
            if len(small) >= file_count:
                first = min(_batches(path)[0] for path in small)
                last = max(_batches(path)[1] for path in small)
                merged = f"batches-{first:08}-{last:08}-{batch_id:08}.parquet"
                hidden = self.out / table / f".{merged}"
                merge_files(small, table, hidden)
                fsync_path(hidden)
                work.append({"table": table, "merged": merged, "files": [p.name for p in small]})
        if work:
            write_atomically(self.state_folder / COMPACTION_NOTE, json.dumps(work).encode())
            self._finish_compaction()

    def _finish_compaction(self) -> None:
        note = self.state_folder / COMPACTION_NOTE
        if not note.exists():
            return
        files = set(self._manifest_files())
        gone: set[Path] = set()
        for entry in json.loads(note.read_bytes()):
            folder = self.out / entry["table"]
            if (folder / f".{entry['merged']}").exists():
                os.replace(folder / f".{entry['merged']}", folder / entry["merged"])
                fsync_path(folder)
            gone.update(folder / name for name in entry["files"])
            files.add(folder / entry["merged"])
        self._write_manifest(files - gone)
        _unlink(gone)
        note.unlink()

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


def _batches(path: Path) -> tuple[int, int]:
    """Return the numbers of the first and last batch in a file."""
    numbers = path.stem.split("-")
    return int(numbers[1]), int(numbers[2 if numbers[0] == "batches" else 1])


def _unlink(files: Iterable[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)


def fsync_path(path: Path) -> None:
    """Sync a file or directory to disk, so that it survives a power loss."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
