"""A lake: its versions, and the runs that write them. See `store` for what it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from polymux.spark.lake.store import DataFile, LakeVersion, StateFile

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """Where the tasks of one run write. Pickled to the workers, which need to reach the lake."""

    url: str
    run: str

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new local folder for the files of one task attempt; removed after the block.

        On a lake in a directory it is below that directory, so that storing is a rename; otherwise
        it is in the machine's temporary directory and holds the tables of one task.
        """
        raise NotImplementedError
        yield

    def store(self, folder: Path, *, provisional: bool = False) -> list[DataFile]:
        """Move all `TABLE/[NAME=VALUE/...]*.parquet` below `folder` into the lake.

        Each gets a name of its own, so that attempts of a task never meet. Files without rows are
        dropped. When it returns the files are durable; they are not visible before `Lake.commit`.

        Raises:
            LakeError: They cannot be written. Those already stored are removed by `Lake.vacuum`.
        """
        raise NotImplementedError

    def store_state(self, name: str, content: bytes | Path) -> StateFile:
        """Write a state file: its bytes, or a local file with them, which stays."""
        raise NotImplementedError


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

    url: str
    format: str  # one of store.FORMATS

    # Reading

    def current(self) -> LakeVersion | None:
        """The newest version; None before the first. Reads the store each time."""
        raise NotImplementedError

    def version(self, number: int) -> LakeVersion:
        """That version; LakeError if it does not exist or has been vacuumed."""
        raise NotImplementedError

    def history(self) -> list[LakeVersion]:
        """All versions that can still be read, the oldest first, without their files and state."""
        raise NotImplementedError

    def batches(
        self, files: Iterable[DataFile], columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these files in the schemas of their tables (one table), file by file."""
        raise NotImplementedError

    def read_state(self, file: StateFile) -> bytes:
        """The content of a state file."""
        raise NotImplementedError

    # Writing

    def begin(self) -> Staging:
        """Begin a run. Completes what a killed run has left half done.

        On a lake in a directory the run holds the directory's lock until `commit` or `discard`;
        elsewhere, a second run is refused when it commits.

        Raises:
            OutputBusy: Another run writes to it.
            LakeError: It cannot be written.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def discard(self, staging: Staging) -> None:
        """End a run without a version, and remove the files that it has stored."""
        raise NotImplementedError

    # Maintenance: each is a run of its own, and takes no lock

    def compact(
        self, target_bytes: int = 128 << 20, *, dates: Iterable[str] = (), dry_run: bool = False
    ) -> LakeVersion | None:
        """Join small files of the same table and partition; rows stay the same.

        Returns:
            The new version; None if there was nothing to join, or `dry_run`.
        """
        raise NotImplementedError

    def expire(self, keep_days: int, *, today: str, dry_run: bool = False) -> list[DataFile]:
        """Remove the files of all days before the last `keep_days` (`today` is the last of them).

        Files that are not partitioned by date stay. Returns what was removed, or would be.
        """
        raise NotImplementedError

    def vacuum(self, grace: timedelta, *, dry_run: bool = False) -> list[str]:
        """Delete versions but the current one, and files that no version names, if older than
        `grace`. Readers of a version have that long to finish.

        Returns:
            The paths that were deleted, or would be, relative to the lake.
        """
        raise NotImplementedError


def open_lake(url: str, format: str | None = None, *, catalog: str = "") -> Lake:
    """Open the lake at a directory or URL.

    Args:
        url: A path or URL that `pyarrow.fs` opens, such as `s3://bucket/lake`.
        format: One of `store.FORMATS`; None: that of the lake, and `parquet` for a new one.
        catalog: Iceberg: URI of the SQL catalog. "": a SQLite file in the lake, or, if that is on
            an object store, below the user's data directory.

    Raises:
        LakeError: The lake has another format, or there is something else at `url`.
        MissingExtra: The format needs `polymux[lake]`.
    """
    raise NotImplementedError
