"""A lake: its versions, and the runs that write them. See `store` for what it is made of."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polymux.analysis.output.arrow_batches import SCHEMAS, with_columns
from polymux.analysis.output.layout import partition_values
from polymux.analysis.schema.tables import TABLES
from polymux.core.errors import UnwritableOutput
from polymux.core.urls import without_credentials
from polymux.spark.batch.output_lock import LOCK_NAME, OutputLock, read_lock
from polymux.spark.lake.compaction import join_files, plan_joins
from polymux.spark.lake.settings import create_settings, read_settings
from polymux.spark.lake.storage import TASKS_FOLDER, Storage, StoredFile, open_storage
from polymux.spark.lake.store import (
    FORMATS,
    LAKE_FOLDER,
    OPERATIONS,
    ConcurrentCommit,
    DataFile,
    LakeError,
    LakeVersion,
    StateFile,
)
from polymux.spark.lake.table_format import (
    ParquetFormat,
    TableFormat,
    TablesMovedOn,
    partition_columns,
)
from polymux.spark.lake.version_log import (
    RECORDS_FOLDER,
    TABLES_FOLDER,
    VERSIONS_FOLDER,
    LoadedVersion,
    VersionLog,
    new_version,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("polymux.spark")

STATE_FOLDER: Final = "_lake/state"
DEFAULT_TARGET_BYTES: Final = 128 << 20
DEFAULT_GRACE: Final = timedelta(days=7)
CATALOG_OPTION: Final = "catalog"  # of a version
MAINTENANCE: Final = frozenset({"compact", "expire"})
_OWN_FILE: Final = re.compile(r"part-[0-9a-f]{12}-[0-9a-f]{12}\.parquet")
_STATE_FILE: Final = re.compile(r"[0-9a-f]{12}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """Where the tasks of one run write. Pickled to the workers, which need to reach the lake."""

    storage: Storage
    run: str

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new local folder for the files of one task attempt; removed after the block.

        On a lake in a directory it is below that directory, so that storing is a rename; otherwise
        it is in the machine's temporary directory and holds the tables of one task.
        """
        with self.storage.task_folder(self.run) as folder:
            yield folder

    def store(self, folder: Path, *, provisional: bool = False) -> list[DataFile]:
        """Move all `TABLE/[NAME=VALUE/...]*.parquet` below `folder` into the lake.

        Each gets a name of its own, so that attempts of a task never meet. Files without rows are
        dropped. When it returns the files are durable; they are not visible before `Lake.commit`.

        Raises:
            LakeError: They cannot be written. Those already stored are removed by `Lake.vacuum`.
        """
        import pyarrow.parquet as pq

        found = []
        for path in sorted(folder.rglob("*.parquet")):
            parts = path.relative_to(folder).parts
            if parts[0] not in TABLES or path.name.startswith("."):
                continue
            rows = int(pq.read_metadata(path).num_rows)
            if rows == 0:
                continue
            folders = "/".join(parts[:-1])
            name = f"{folders}/part-{self.run}-{_new_id()}.parquet"
            size = path.stat().st_size
            self.storage.store(path, name)
            found.append(
                DataFile(
                    parts[0], name, size, rows, partition_values(folders), self.run, provisional
                )
            )
        return found

    def store_state(self, name: str, content: bytes | Path) -> StateFile:
        """Write a state file: its bytes, or those of a file in `folder`, which is moved."""
        path = f"{STATE_FOLDER}/{self.run}-{_new_id()}"
        if isinstance(content, bytes):
            self.storage.write(path, content)
            return StateFile(name, path, len(content))
        size = content.stat().st_size
        self.storage.store(content, path)
        return StateFile(name, path, size)


@dataclass(frozen=True, slots=True)
class Staging:
    """A run that has begun: its id, the version it builds on (None: the first), and its output."""

    run: str
    parent: LakeVersion | None
    output: TaskOutput


class Lake:
    """A lake at a directory or URL, for one driver. Not safe for several threads.

    Get one from `open_lake`. Readers need none of the methods that change something.
    """

    def __init__(self, storage: Storage, format: str, catalog: str = "") -> None:
        self.storage = storage
        self.url = storage.url
        self.location = storage.location  # without credentials, for texts
        self.format = format  # one of store.FORMATS
        self._catalog = catalog
        self._log = VersionLog(storage)
        self._locks: dict[str, OutputLock] = {}
        self._uncertain: set[str] = set()  # runs of which it is not known whether they committed

    # Reading

    def current(self) -> LakeVersion | None:
        """The newest version; None before the first. Reads the store each time."""
        loaded = self._current()
        return None if loaded is None else loaded.version

    def version(self, number: int) -> LakeVersion:
        """That version; LakeError if it does not exist or has been vacuumed."""
        return self._log.load(number).version

    def history(self) -> list[LakeVersion]:
        """All versions that can still be read, the oldest first, without their files and state."""
        return [self._log.summary(number) for number in self._log.numbers()]

    def batches(
        self, files: Iterable[DataFile], columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these files in the schemas of their tables, file by file.

        Columns that a file of an older polymux does not have are null.

        Args:
            files: Files of one or several tables.
            columns: These columns only, in this order.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        for file in files:
            schema = SCHEMAS[file.table]
            names = columns or schema.names
            wanted = pa.schema([schema.field(name) for name in names])
            system = self.storage.arrow_filesystem
            with system.open_input_file(self.storage.arrow_path(file.path)) as source:
                for batch in pq.ParquetFile(source).iter_batches(columns=names):
                    yield with_columns(batch, wanted)

    def paths(self, files: Iterable[DataFile]) -> list[str]:
        """The full paths of data files, or their URLs without credentials."""
        return [f"{self.location}/{file.path}" for file in files]

    def read_state(self, file: StateFile) -> bytes:
        """The content of a state file."""
        try:
            return self.storage.read(file.path)
        except FileNotFoundError:
            raise LakeError(
                f"{self.location}/{file.path}: the state {file.name!r} of a version is missing: "
                "the lake is damaged, or the version was vacuumed"
            ) from None

    # Writing

    def begin(self) -> Staging:
        """Begin a run. Completes what a killed run has left half done.

        On a lake in a directory the run holds the directory's lock until `commit` or `discard`;
        elsewhere, a second run is refused when it commits.

        Raises:
            OutputBusy: Another run writes to it.
            LakeError: It cannot be written.
            MissingExtra: The format needs `polymux[lake]`.
        """
        run, _ = _new_id(), self._tables
        if self.location == self.url:  # a directory
            try:
                Path(self.url).mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise UnwritableOutput(
                    f"{self.location}: cannot be created: {problem.strerror}"
                ) from None
            self._locks[run] = OutputLock(Path(self.url), run)
        try:
            self._found()
            self._tables.check()
            self.complete()
            return Staging(run, self.current(), TaskOutput(self.storage, run))
        except BaseException:
            self._unlock(run)
            raise

    def commit(
        self,
        staging: Staging,
        *,
        added: Iterable[DataFile] = (),
        removed: Iterable[DataFile] = (),
        state: Iterable[StateFile] | None = None,
        operation: str = "append",
        options: Mapping[str, str] | None = None,
    ) -> LakeVersion:
        """Make a new version current: the parent's files without `removed`, with `added`.

        Either all tables and the state change, or nothing. Killed at any moment, the lake has the
        version before or this one; with Delta and Iceberg, the next `begin` brings tables that do
        not have it yet to it.

        Versions that only maintenance (`compact`, `expire`) has made since `begin` do not conflict,
        unless they have removed a file of `removed`.

        Args:
            staging: The run.
            added: Files of the task attempts that count.
            removed: Files of `staging.parent`; they stay in the store until `vacuum`.
            state: All state files of the new version: those of this run, and those of the parent
                that are kept. None: the parent's.
            operation: What kind of run it is; see `store.OPERATIONS`.
            options: What is recorded about the run.

        Raises:
            ConcurrentCommit: Another run has committed meanwhile.
            LakeError: The store failed. If it is not known whether the version was created, the
                text says so.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"operation {operation!r}: one of {', '.join(OPERATIONS)}")
        new, gone = list(added), {file.path for file in removed}
        kept_state = None if state is None else {file.name: file for file in state}
        committed = None
        while committed is None:
            parent = self._current()
            self._check_parent(staging, parent, gone, operation)
            files = [] if parent is None else parent.version.all_files()
            version = new_version(
                None if parent is None else parent.version,
                staging.run,
                [*(file for file in files if file.path not in gone), *new],
                _state_of(parent) if kept_state is None else kept_state,
                operation,
                {**(options or {}), **self._catalog_of(parent)},
            )
            for table in version.files:
                partition_columns(table, version)  # checks that a table has the same everywhere
            if self._commit_version(self._log.write(parent, version)):
                committed = version
        self._check_newest(committed)
        self._unlock(staging.run)
        return replace(committed, tables=self._bring_tables(committed))

    def end(self, staging: Staging) -> None:
        """End a run without a version that has stored nothing."""
        self._unlock(staging.run)

    def discard(self, staging: Staging) -> None:
        """End a run without a version, and remove the files that it has stored.

        Removes nothing if the run was committed, or if that is not known. What the store does not
        let it remove is left to `vacuum`: a run that ends so has an error of its own to raise.
        """
        try:
            if staging.run not in self._uncertain:
                base = 0 if staging.parent is None else staging.parent.number
                named = self._named_by(n for n in self._log.numbers() if n > base)
                self.storage.delete(
                    file.name
                    for file in self._own_files()
                    if staging.run in file.name and file.name not in named
                )
        except LakeError as problem:
            log.warning("files of run %s are left in the lake: %s", staging.run, problem)
        finally:
            self._unlock(staging.run)

    def complete(self) -> bool:
        """Bring the tables of a Delta or Iceberg lake to its newest version, if a killed run has
        not. Return whether there was something to do.

        Raises:
            LakeError: Its tables are in a catalog that was named, and none is named now.
        """
        current = self.current()
        if current is not None:
            recorded = current.options.get(CATALOG_OPTION, "")
            if recorded and not self._catalog:
                raise LakeError(
                    f"{self.location}: its tables are in the catalog {recorded}: name it "
                    "(--catalog, catalog=), so that it does not keep an old version"
                )
            self._bring_tables(current)
        return current is not None and self._tables.has_positions and not current.tables

    # Maintenance: each is a run of its own, and takes no lock

    def compact(
        self,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        *,
        dates: Iterable[str] = (),
        dry_run: bool = False,
    ) -> Compaction:
        """Join small files of the same table and partition; rows stay the same.

        Args:
            target_bytes: Files of at least half of it are left alone; smaller ones are joined to
                files of about this size.
            dates: Only these partitions, as YYYY-MM-DD; none: all.
            dry_run: Only say what would be joined.
        """
        loaded = self._current()
        joins = plan_joins(
            [] if loaded is None else loaded.version.all_files(), target_bytes, frozenset(dates)
        )
        joined = [file for join in joins for file in join]
        if dry_run or not joins or loaded is None:
            return Compaction(joined, [], None)
        self.complete()
        staging = Staging(_new_id(), loaded.version, TaskOutput(self.storage, _new_id()))
        staging = replace(staging, output=TaskOutput(self.storage, staging.run))
        try:
            added = [new for join in joins for new in join_files(self, staging.output, join)]
            options = {"target_bytes": str(target_bytes), "dates": ",".join(sorted(dates))}
            version = self.commit(
                staging, added=added, removed=joined, operation="compact", options=options
            )
        except BaseException:
            self.discard(staging)
            raise
        return Compaction(joined, added, version)

    def expire(
        self, keep_days: int, *, today: date | None = None, dry_run: bool = False
    ) -> list[DataFile]:
        """Remove the files of all days before the last `keep_days`, of which `today` is one.

        Files that are not partitioned by date stay.

        Args:
            keep_days: How many days to keep, at least 1.
            today: The last of them; by default today, in UTC.
            dry_run: Only say what would be removed.

        Returns:
            The files of which the new version is without.
        """
        if keep_days < 1:
            raise LakeError(f"{keep_days} days: keep at least 1")
        last = today or datetime.now(UTC).date()
        first = (last - timedelta(days=keep_days - 1)).isoformat()
        current = self.current()
        files = [] if current is None else current.all_files()
        old = [file for file in files if file.date and file.date < first]
        if old and not dry_run:
            self.complete()
            run = _new_id()
            staging = Staging(run, current, TaskOutput(self.storage, run))
            self.commit(staging, removed=old, operation="expire", options={"first_day": first})
        return old

    def vacuum(
        self, grace: timedelta = DEFAULT_GRACE, *, dry_run: bool = False
    ) -> list[StoredFile]:
        """Delete versions but the current one, and files that no version names.

        A version is deleted when the next one is older than `grace`: readers of a version have at
        least that long to finish. A file that no remaining version names is deleted when it is
        older than `grace`, so no run may take longer; in a directory, the files of the run that
        holds its lock are left alone.

        Returns:
            The files that were deleted, or would be.
        """
        if not dry_run:
            self.complete()
        limit = datetime.now(UTC) - grace
        # First: the files of a run that commits now are named below, or are those of this run.
        writing = self._writing_run()
        numbers = self._log.numbers()
        old = {
            number
            for number, following in pairwise(numbers)
            if self._log.summary(following).time <= limit
        }
        named = self._named_by(number for number in numbers if number not in old)
        versions, others = [], []
        for file in self._own_files():
            number = VersionLog.number_in(file.name)
            if number is not None:
                if number in old:
                    versions.append(file)
            elif file.modified > limit or file.name in named:
                continue
            elif not writing or writing not in file.name:
                others.append(file)
        if not dry_run:
            # Versions first: what they name may go only when they are gone.
            self.storage.delete(file.name for file in versions)
            self.storage.delete(file.name for file in others)
            kept = [self._log.positions(number) for number in numbers if number not in old]
            self._tables.vacuum(limit, kept)
        return versions + others

    # Private helpers

    @cached_property
    def _tables(self) -> TableFormat:
        """What writers need of the format; MissingExtra if its library is not installed."""
        if self.format == "delta":
            from polymux.spark.lake.delta import DeltaFormat

            return DeltaFormat(self.storage)
        if self.format == "iceberg":
            from polymux.spark.lake.iceberg import IcebergFormat

            return IcebergFormat(self.storage, self._catalog)
        return ParquetFormat()

    def _current(self) -> LoadedVersion | None:
        while True:
            numbers = self._log.numbers()
            if not numbers:
                return None
            try:
                return self._log.load(numbers[-1])
            except LakeError:
                if self._log.numbers()[-1:] == numbers[-1:]:
                    raise  # otherwise it was vacuumed after a newer one was committed

    def _found(self) -> None:
        """Create the lake, if it does not exist."""
        found = read_settings(self.storage)
        if found is None:
            create_settings(self.storage, self.format)
            found = read_settings(self.storage)
        if found is None or found.format != self.format:
            raise LakeError(
                _other_format(self.location, found.format if found else "", self.format)
            )
        for table in TABLES:
            if table != "content":
                self.storage.make_folder(table)

    def _catalog_of(self, parent: LoadedVersion | None) -> dict[str, str]:
        """The option of a version that records a catalog that was named, without credentials."""
        before = {} if parent is None else parent.version.options
        found = without_credentials(self._catalog) or before.get(CATALOG_OPTION, "")
        return {CATALOG_OPTION: found} if found and self._tables.has_catalog else {}

    def _check_parent(
        self, staging: Staging, parent: LoadedVersion | None, gone: set[str], operation: str
    ) -> None:
        base = 0 if staging.parent is None else staging.parent.number
        now = 0 if parent is None else parent.version.number
        if staging.run in self._locks and not self._locks[staging.run].is_held():
            raise ConcurrentCommit(
                f"{self.location}: another run has taken its lock ({LOCK_NAME}) over: nothing was "
                "committed; do not run two at once on a lake"
            )
        if now == base:
            return
        between = range(base + 1, now + 1)
        if operation not in MAINTENANCE and not set(between) <= set(self._log.numbers()):
            raise ConcurrentCommit(
                f"{self.location}: versions between {base}, on which this run had begun, and {now} "
                "were vacuumed: nothing was committed; run it again"
            )
        others = [self._log.summary(number) for number in self._log.numbers() if number in between]
        runs = [version for version in others if version.operation not in MAINTENANCE]
        if runs and operation not in MAINTENANCE:
            raise ConcurrentCommit(
                f"{self.location}: run {runs[-1].run} committed version {runs[-1].number} "
                f"({runs[-1].operation}) after this run had begun on version {base}: nothing was "
                "committed; run it again"
            )
        here = set() if parent is None else {file.path for file in parent.version.all_files()}
        missing = sorted(gone - here)
        if missing:
            raise ConcurrentCommit(
                f"{self.location}: {missing[0]}, which this run replaces, was replaced by version "
                f"{now} ({others[-1].operation}) after it had begun: nothing was committed; run it "
                "again"
            )

    def _commit_version(self, written: LoadedVersion) -> bool:
        try:
            return self._log.commit(written)
        except LakeError as problem:
            self._uncertain.add(written.version.run)
            raise LakeError(
                f"{problem}. It is not known whether version {written.version.number} was "
                "committed; `polymux lake history` says so when the store can be reached"
            ) from None

    def _check_newest(self, version: LakeVersion) -> None:
        """Find out whether the version was created below newer ones: a driver that was stopped for
        longer than the grace period of a vacuum may create a number that was deleted."""
        numbers = self._log.numbers()
        if numbers[-1] > version.number and version.number + 1 not in numbers:
            self.storage.delete([f"{VERSIONS_FOLDER}/{version.number:08}"])
            raise ConcurrentCommit(
                f"{self.location}: version {numbers[-1]} was committed long before this one: "
                "nothing was committed; run it again"
            )

    def _bring_tables(self, version: LakeVersion) -> Mapping[str, str]:
        """Bring the tables of a Delta or Iceberg lake to a version, by way of those that they do
        not have yet; return where they have it. Other writers may do so at the same time."""
        if not self._tables.has_positions:
            return {}
        try:
            former = self._log.newest_with_positions()
            done = 0 if former is None else former.number
            while done < version.number:
                # Each by itself: readers of changes see what a run has added, and `compact` has
                # not. What was vacuumed is passed over.
                numbers = self._log.numbers()
                number = min((n for n in numbers if done < n), default=version.number)
                following = version if number == version.number else self._log.load(number).version
                with suppress(TablesMovedOn):
                    found = self._tables.bring_to(following, former)
                    self._log.record_positions(number, found)
                former = self._log.newest_with_positions()
                done = max(number, 0 if former is None else former.number)
            if former is not None:
                self._tables.publish(former.number, former.tables)
            return self._log.positions(version.number)
        except LakeError as problem:
            raise LakeError(
                f"{problem}. Version {version.number} of {self.location} is committed, but not all "
                f"of its {self.format} tables have it; the next run completes that"
            ) from None

    def _named_by(self, numbers: Iterable[int]) -> set[str]:
        """The data files, state files and records of these versions."""
        named: set[str] = set()
        for number in numbers:
            loaded = self._log.load(number)
            named |= {file.path for file in loaded.version.all_files()}
            named |= {file.path for file in loaded.version.state.values()}
            named |= {f"{RECORDS_FOLDER}/{name}.json" for name in loaded.records}
        return named

    def _writing_run(self) -> str:
        """The run that holds the lock of a lake in a directory; "" if there is none."""
        if self.location != self.url:
            return ""
        lock = read_lock(Path(self.url))
        return "" if lock is None or lock.owner is None else lock.owner.run

    def _own_files(self) -> Iterator[StoredFile]:
        """All files that polymux has made in the lake, but those of the formats."""
        for table in TABLES:
            for file in self.storage.files(table):
                if _OWN_FILE.fullmatch(file.name.rpartition("/")[2]):
                    yield file
        for folder in (STATE_FOLDER, RECORDS_FOLDER, VERSIONS_FOLDER, TABLES_FOLDER, TASKS_FOLDER):
            yield from self.storage.files(folder)

    def _unlock(self, run: str) -> None:
        lock = self._locks.pop(run, None)
        if lock is not None:
            lock.release()


@dataclass(frozen=True, slots=True)
class Compaction:
    """What `Lake.compact` has done: `joined` files became `added` in `version`.

    `version` is None, and nothing is added, if nothing was done.
    """

    joined: list[DataFile]
    added: list[DataFile]
    version: LakeVersion | None


def open_lake(url: str, format: str | None = None, *, catalog: str = "") -> Lake:
    """Open the lake at a directory or URL. Nothing is written before `Lake.begin`.

    Args:
        url: A path or URL that `pyarrow.fs` opens, such as `s3://bucket/lake`.
        format: One of `store.FORMATS`; None: that of the lake, and `parquet` for a new one.
        catalog: Iceberg: URI of the SQL catalog. "": a SQLite file in the lake, or, if that is on
            an object store, below the user's data directory.

    Raises:
        LakeError: The lake has another format, or there is something else at `url`.
        MissingExtra: An object store needs `polymux[lake]`. So do Delta and Iceberg, when something
            is written.
    """
    if format is not None and format not in FORMATS:
        raise LakeError(f"format {format!r}: one of {', '.join(FORMATS)}")
    storage = open_storage(url)
    found = read_settings(storage)
    if found is None:
        _check_empty(storage)
        return Lake(storage, format or "parquet", catalog)
    if format not in (None, found.format):
        raise LakeError(_other_format(storage.location, found.format, format or ""))
    return Lake(storage, found.format, catalog)


def is_lake(url: str) -> bool:
    """Whether there is a lake at a directory or URL."""
    return read_settings(open_storage(url)) is not None


def _check_empty(storage: Storage) -> None:
    others = [
        name
        for name in storage.names("")
        # Beside the lock itself: what a run that was killed has left of making one.
        if name not in (LOCK_NAME, LAKE_FOLDER) and not name.startswith(f"{LOCK_NAME}-")
    ]
    if others:
        raise LakeError(
            f"{storage.location}: holds something other than a lake ({min(others)}); choose another"
        )


def _other_format(location: str, found: str, wanted: str) -> str:
    return (
        f"{location}: is a lake of format {found}, not {wanted}; leave --format out, or choose "
        "another place"
    )


def _state_of(parent: LoadedVersion | None) -> Mapping[str, StateFile]:
    return {} if parent is None else parent.version.state


def _new_id() -> str:
    return uuid.uuid4().hex[:12]
