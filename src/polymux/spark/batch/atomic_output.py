"""Publishing finished tables atomically: a reader sees those of one run, all of them.

An output directory looks like this:

    manifest.json -> _current/manifest.json    names the files of the run; see `analysis` manifests
    frames -> _current/frames                  and so on: plain readers take `OUT/frames`
    _current -> _runs/RUN                      the run that counts: replaced in one step
    _runs/RUN/manifest.json, _runs/RUN/frames/part-....parquet
    _lock                                      while a run writes; see `output_lock`

A run writes below `_runs/RUN`, and replacing the link `_current` by a rename publishes all of its
tables and its manifest in one step, on every file system that has symbolic links. Whatever is
killed at whatever moment, the links lead to one complete run.

On a file system without symbolic links the tables are real folders. The files of the new run are
moved there, then `manifest.json` is replaced, which is the step that counts, and the files that the
former manifest named are removed. Where there was none, one is written first that names the files
that are there: without a manifest, readers take all of a folder. A reader that follows the manifest
sees one run at any moment; one that reads a folder as a whole may see the files of both runs in
between.

Nothing is removed before a newer run is in place, and nothing that no run wrote is ever removed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pyarrow import ArrowInvalid
from pyarrow.parquet import read_metadata

from polymux.analysis.output.layout import PARTITION_COLUMNS
from polymux.analysis.output.manifest import (
    MANIFEST_NAME,
    Manifest,
    TableFile,
    directory_files,
    read_manifest,
)
from polymux.analysis.output.parquet import make_table_folder
from polymux.analysis.schema.tables import TABLES
from polymux.capture.io.atomic_write import sync_directory, write_atomically
from polymux.capture.io.paths import is_url, local_path
from polymux.core.errors import PolymuxError, UnreadableInput, UnwritableOutput
from polymux.core.urls import without_credentials
from polymux.spark.batch.output_lock import LOCK_NAME, OutputLock, refuse_if_busy
from polymux.spark.lake.store import LAKE_FOLDER

RUNS_FOLDER = "_runs"
CURRENT_LINK = "_current"
STAGING_FOLDER = "_staging"
FORMER_FOLDER = "former"  # in `_runs`: real folders of tables that links have replaced
MAX_SIBLINGS = 1000  # outputs beside this one whose leftovers are looked for
_RUN_NAME = re.compile(r"[0-9a-f]{32}")
# Files that a run writes; a folder with any other file is not one of tables.
_OWN_FILE = re.compile(r"\.?(part-[0-9a-z-]+)\.parquet(\.part)?|\..*\.crc")
_PARTITION = re.compile(rf"({'|'.join(PARTITION_COLUMNS)})=.+")  # a folder of a table
# Names that a run makes in the directory; those with a suffix are temporary.
_OWN_NAME = re.compile(
    rf"({RUNS_FOLDER}|{CURRENT_LINK}|{LOCK_NAME}|{MANIFEST_NAME}|{'|'.join(TABLES)})"
    rf"(-[0-9a-f]{{32}})?|\.{MANIFEST_NAME}\.[0-9a-f]+\.part"
)
_TEMPORARY = re.compile(rf".*-[0-9a-f]{{32}}|\.{MANIFEST_NAME}\.[0-9a-f]+\.part")
_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))


class StagedOutput:
    """The output directory during a run, which holds its lock.

    Workers write below `staging`; `collect_files` moves the files of successful attempts to
    `ready`, and `publish` puts that into place. An attempt that Spark has abandoned may go on
    writing: its files stay in `staging`. A run that fails or is killed leaves the old tables
    unchanged, and the next run removes its leftovers once it has published its own.

    Raises:
        PolymuxError: `out` cannot hold tables; see `check_output`.
        OutputBusy: Another run writes to `out`.
        UnwritableOutput: The directories cannot be created.
    """

    def __init__(self, out: str) -> None:
        check_output(out)
        self.final = Path(local_path(out)).absolute()
        self.run = uuid.uuid4().hex
        self.ready = self.final / RUNS_FOLDER / self.run
        self.staging = self.ready / STAGING_FOLDER
        self._rows: dict[str, int] = {}  # of the files in `ready`
        try:
            self._made_final = not self.final.exists()
            self.final.mkdir(exist_ok=True)
            self._lock = OutputLock(self.final, self.run)
            try:
                clear_dead_siblings(self.final)
                self.staging.mkdir(parents=True)
            except BaseException:
                self.discard()
                raise
        except OSError as problem:
            raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None

    def count_rows(self, table: str, name: str, rows: int) -> None:
        """Note the rows of a file that was written to `ready`."""
        self._rows[f"{table}/{name}"] = rows

    def collect_files(self, files: Mapping[str, int]) -> None:
        """Move the files of successful attempts to `ready`: paths relative to `staging`, and rows.

        Raises:
            PolymuxError: A file is missing: another run removed it, or the workers use another
                file system.
        """
        for file, rows in files.items():
            target = self.ready / file
            try:
                make_table_folder(target.parent, _table_of(file))
                os.rename(self.staging / file, target)
            except FileNotFoundError:
                self._check_lock()
                raise PolymuxError(
                    f"{self.staging / file}: a worker wrote it, but it is not here: --out must be "
                    "on a file system that the driver and all workers share"
                ) from None
            self._rows[file] = rows

    def publish(self) -> None:
        """Make the tables in `ready` those of the output, and remove the former ones.

        Raises:
            PolymuxError: Another run has taken the lock over; nothing was published.
            UnwritableOutput: The tables could not be put into place; the former ones still are.
        """
        try:
            manifest = self._manifest()
            sync_tree(self.ready)
            self._check_lock()
            if not self._publish_by_links(manifest):
                self._publish_by_manifest(manifest)
        except OSError as problem:
            text = f"{self.final}: the tables cannot be put into place: {problem.strerror}"
            raise UnwritableOutput(text) from None
        self._clear_older_runs()
        self._lock.release()

    def discard(self) -> None:
        """Remove everything that this run wrote, and give the lock up."""
        if not self._is_current():  # an interrupt may come right after it was published
            shutil.rmtree(self.ready, ignore_errors=True)
        with suppress(OSError):
            (self.final / RUNS_FOLDER).rmdir()  # if it was the only run
        self._lock.release()
        if self._made_final:
            with suppress(OSError):
                self.final.rmdir()

    # Private helpers

    def _is_current(self) -> bool:
        with suppress(OSError):
            return os.readlink(self.final / CURRENT_LINK) == f"{RUNS_FOLDER}/{self.run}"
        return False

    def _check_lock(self) -> None:
        if not self._lock.is_held():
            raise PolymuxError(
                f"{self.final}: another run has taken its lock ({LOCK_NAME}) over: nothing was "
                "published; do not run two at once with the same --out"
            )

    def _manifest(self) -> Manifest:
        """List what is in `ready`. Empty files have no entry in `_rows`."""
        tables: dict[str, list[TableFile]] = {}
        for table in TABLES:
            for path in sorted((self.ready / table).rglob("*.parquet")):
                name = path.relative_to(self.ready).as_posix()
                found = TableFile(name, path.stat().st_size, self._rows.get(name, 0))
                tables.setdefault(table, []).append(found)
        return Manifest(self.run, tables)

    def _publish_by_links(self, manifest: Manifest) -> bool:
        """Publish by replacing the link `_current`; False if there are no symbolic links here."""
        current = self.final / CURRENT_LINK
        if not current.is_symlink():
            probe = self.final / f"{CURRENT_LINK}-{self.run}"
            try:
                os.symlink(f"{RUNS_FOLDER}/{self.run}", probe)
                probe.unlink()
            except OSError as problem:
                if problem.errno in _NO_LINKS:
                    return False
                raise
        write_atomically(self.ready / MANIFEST_NAME, manifest.encode())
        # The links to tables come first: until `_current` exists they lead nowhere.
        for table in manifest.tables:
            if not (self.final / table).is_symlink() and not (self.final / table).exists():
                os.symlink(f"{CURRENT_LINK}/{table}", self.final / table)
        replace_by_link(current, f"{RUNS_FOLDER}/{self.run}")
        sync_directory(str(current))
        # Tables that a run without links has left, and those that this run does not have.
        for name in (MANIFEST_NAME, *TABLES):
            path = self.final / name
            if name in manifest.tables or name == MANIFEST_NAME:
                self._replace_former(path, f"{CURRENT_LINK}/{name}")
            elif path.is_symlink():
                path.unlink()
        return True

    def _replace_former(self, path: Path, target: str) -> None:
        """Make `path` a link; former tables go to the folder of the runs, and are removed later."""
        if path.is_symlink() and os.readlink(path) == target:
            return
        if path.is_dir() and not path.is_symlink():
            former = self.final / RUNS_FOLDER / FORMER_FOLDER
            former.mkdir(exist_ok=True)
            os.rename(path, former / f"{path.name}-{self.run}")
        replace_by_link(path, target)

    def _publish_by_manifest(self, manifest: Manifest) -> None:
        """Publish by moving the files and replacing the manifest, without symbolic links."""
        former = self._former_manifest()
        for files in manifest.tables.values():
            for file in files:
                make_table_folder((self.final / file.path).parent, _table_of(file.path))
                os.rename(self.ready / file.path, self.final / file.path)
        write_atomically(self.final / MANIFEST_NAME, manifest.encode())
        sync_directory(str(self.final / MANIFEST_NAME))
        named = {file.path for files in manifest.tables.values() for file in files}
        for table in TABLES:
            known = {file.path for file in former.tables.get(table, ())}
            for path in (self.final / table).rglob("*.parquet"):
                name = path.relative_to(self.final).as_posix()
                if name not in named and (name in known or _OWN_FILE.fullmatch(path.name)):
                    path.unlink(missing_ok=True)

    def _former_manifest(self) -> Manifest:
        """Return the manifest of the tables that are there; write one if there is none."""
        with suppress(UnreadableInput):
            former = read_manifest(self.final)
            if former is not None:
                return former
        present = Manifest("", {table: _present_files(self.final, table) for table in TABLES})
        write_atomically(self.final / MANIFEST_NAME, present.encode())
        sync_directory(str(self.final / MANIFEST_NAME))
        return present

    def _clear_older_runs(self) -> None:
        """Remove the files of all other runs, now that this one is in place."""
        for path in _entries(self.final / RUNS_FOLDER):
            if path.name == FORMER_FOLDER:
                _remove_own(path)
            elif _RUN_NAME.fullmatch(path.name) and path.name != self.run:
                shutil.rmtree(path, ignore_errors=True)
        for path in _entries(self.final):
            if _OWN_NAME.fullmatch(path.name) and _TEMPORARY.fullmatch(path.name):
                with suppress(OSError):
                    path.unlink()  # of a run that was killed in between; never a directory
        # Without links, the files were moved out of it.
        shutil.rmtree(self.staging if self._is_current() else self.ready, ignore_errors=True)
        with suppress(OSError):
            self.ready.parent.rmdir()


def clear_dead_siblings(out: Path) -> None:
    """Remove what killed runs have left in this output directory and in those beside it.

    Only what was never published, and only where no run is alive. The caller holds the lock of
    `out`. The lock of a directory beside it is taken if something seems to be left there. What is
    found under that lock belongs to runs that have ended and can never be published. It is removed
    after the lock was given up: a run that begins there is refused only during the look.
    """
    for folder in [out, *(path for path in _entries(out.parent)[:MAX_SIBLINGS] if path != out)]:
        with suppress(OSError, PolymuxError):
            left = _unpublished_runs(folder)
            if left and folder != out:
                lock = OutputLock(folder, "")
                try:
                    left = _unpublished_runs(folder)
                finally:
                    lock.release()
            for path in left:
                shutil.rmtree(path, ignore_errors=True)


def _unpublished_runs(folder: Path) -> list[Path]:
    """Return the folders of runs in an output directory that were not published, or not yet."""
    runs = [path for path in _entries(folder / RUNS_FOLDER) if _RUN_NAME.fullmatch(path.name)]
    if not runs:
        return []
    link = folder / CURRENT_LINK
    current = os.path.basename(os.readlink(link)) if link.is_symlink() else ""
    return [path for path in runs if (path / STAGING_FOLDER).is_dir() and path.name != current]


def check_output(out: str) -> None:
    """Check that tables can be written to `out`. Creates its parent directories.

    Raises:
        PolymuxError: `out` is a URL, a file, or a directory that contains something else.
        OutputBusy: Another run writes to it.
        UnwritableOutput: It or its parent directory is not writable.
    """
    final = Path(local_path(out)).absolute()
    if is_url(local_path(out)):
        raise PolymuxError(
            f"{without_credentials(out)}: tables are written to a directory that the driver and "
            "all workers see; copy them elsewhere when they are finished, or make a lake (--append)"
        )
    if final.exists() and not final.is_dir():
        raise PolymuxError(f"{out}: is a file; --out names a directory")
    try:
        if final.is_dir():
            refuse_if_busy(final)
            _check_content(final, out)
        final.parent.mkdir(parents=True, exist_ok=True)
        probe = (final if final.is_dir() else final.parent) / f".polymux-{uuid.uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except OSError as problem:
        raise UnwritableOutput(f"{out}: cannot be written: {problem.strerror}") from None


def _check_content(final: Path, out: str) -> None:
    """Raise PolymuxError unless the directory is empty or holds the tables of an analysis."""
    names = {path.name for path in _entries(final)} - {LOCK_NAME}
    if LAKE_FOLDER in names:
        raise PolymuxError(
            f"{out}: is a lake, whose tables this run would replace: add captures to it with "
            "--append (append=True), or choose another directory"
        )
    current = final / CURRENT_LINK
    if current.exists() and not current.is_symlink():
        raise PolymuxError(
            f"{out}: {CURRENT_LINK} in it is no link, as in a copy that has followed links: the "
            "tables could not be replaced; choose another directory, or remove it"
        )
    foreign = next((path for table in TABLES for path in _foreign_files(final / table)), None)
    if foreign is not None:
        raise PolymuxError(
            f"{out}: holds something other than polymux tables "
            f"({foreign.relative_to(final).as_posix()}); choose another directory, or move that "
            "out of it"
        )
    if not names or current.is_symlink():
        return
    try:
        if read_manifest(final) is not None:
            return
    except UnreadableInput:
        pass
    if RUNS_FOLDER in names and all(map(_OWN_NAME.fullmatch, names)):
        return  # a first run that was killed
    if not (final / "sessions").is_dir():
        raise PolymuxError(f"{out}: holds something other than polymux tables; choose another")


def _foreign_files(table: Path) -> Iterator[Path]:
    """Yield what is in a real folder of a table, or in its place, and was written by no run."""
    if table.is_symlink():
        return
    if table.exists() and not table.is_dir():
        yield table
    for path in _entries(table):
        if path.is_dir() and not path.is_symlink() and _PARTITION.fullmatch(path.name):
            yield from _foreign_files(path)
        elif path.is_dir() or not _OWN_FILE.fullmatch(path.name):
            yield path


def _present_files(final: Path, table: str) -> list[TableFile]:
    """Return the files of a table in a directory without a manifest."""
    return [
        TableFile(path.relative_to(final).as_posix(), path.stat().st_size, _rows_in(path))
        for path in directory_files(final, table)
    ]


def _rows_in(path: Path) -> int:
    """Return the rows of a Parquet file; 0 if it is none."""
    try:
        return int(read_metadata(path).num_rows)
    except (OSError, ArrowInvalid):
        return 0


def _remove_own(folder: Path) -> None:
    """Remove the files below a directory that runs wrote, and the directories that are then empty.

    A file that someone has put there since the run began stays.
    """
    for parent, _, names in os.walk(folder, topdown=False):
        with suppress(OSError):
            for name in filter(_OWN_FILE.fullmatch, names):
                os.unlink(os.path.join(parent, name))
            os.rmdir(parent)


def replace_by_link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to `target` in one step, in place of a file or link."""
    part = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
    os.symlink(target, part)
    try:
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def sync_tree(folder: Path) -> None:
    """Sync all files below a directory, and the directories, so that they survive a power loss."""
    for parent, folders, names in os.walk(folder):
        if STAGING_FOLDER in folders:
            folders.remove(STAGING_FOLDER)
        for name in [*names, "."]:
            fd = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _table_of(file: str) -> str:
    """The table of a file, from its path below the folder of all tables."""
    return file.partition("/")[0]


def _entries(folder: Path) -> list[Path]:
    """Return what is in a directory; empty if it is none."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
