"""The versions of a lake, in its storage.

`_lake/versions/NUMBER` is created once, by the run that commits that version, and holds the name of
its record below `_lake/records`. A record names its parent's record and what was added and removed.
Every `FULL_RECORD_EVERY` versions it names all files, so a version is read from at most so many
records, and a commit costs what it changes.

`_lake/tables/NUMBER` is created when the tables of a Delta or Iceberg lake have a version.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from polymux import __version__
from polymux.spark.lake.storage import Storage
from polymux.spark.lake.store import DataFile, LakeError, LakeVersion, StateFile

VERSIONS_FOLDER: Final = "_lake/versions"
RECORDS_FOLDER: Final = "_lake/records"
TABLES_FOLDER: Final = "_lake/tables"
FULL_RECORD_EVERY: Final = 16
RECORD_FORMAT: Final = 1
MAX_CACHED_VERSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version, and how it was read: its record, those it needs, and versions since a full one."""

    version: LakeVersion
    record: str
    records: tuple[str, ...]  # its own and those back to the last full one

    @property
    def depth(self) -> int:
        return len(self.records) - 1


class VersionLog:
    """Reads and appends versions."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._loaded: dict[str, LoadedVersion] = {}  # by record, the newest last

    @staticmethod
    def number_in(name: str) -> int | None:
        """The version to which a file belongs, by its name in the lake; None if to none."""
        parts = name.split("/")
        if "/".join(parts[:2]) in (VERSIONS_FOLDER, TABLES_FOLDER) and parts[2].isdecimal():
            return int(parts[2])
        return None

    def numbers(self) -> list[int]:
        """The numbers of all versions that can be read, in order."""
        return _numbers(self._storage.created(VERSIONS_FOLDER))

    def load(self, number: int) -> LoadedVersion:
        """Read a version, with the positions of its tables if they have it.

        Raises:
            LakeError: There is no such version, or it is damaged.
        """
        loaded = self._load_record(self._record_of(number))
        positions = self.positions(number)
        return replace(loaded, version=replace(loaded.version, tables=positions))

    def summary(self, number: int) -> LakeVersion:
        """A version without its files and state; see `load`."""
        written = self._read_record(self._record_of(number))
        return replace(_summary(written), tables=self.positions(number))

    def write(self, parent: LoadedVersion | None, version: LakeVersion) -> LoadedVersion:
        """Write the record of a version that is not committed yet."""
        name = f"{version.number:08}-{uuid.uuid4().hex[:12]}"
        full = parent is None or parent.depth + 1 >= FULL_RECORD_EVERY
        before = {} if parent is None else _by_path(parent.version)
        after = _by_path(version)
        written = {
            "polymux-lake": RECORD_FORMAT,
            "number": version.number,
            "run": version.run,
            "time": version.time.isoformat(),
            "operation": version.operation,
            "polymux": version.polymux_version,
            "options": dict(version.options),
            "parent": version.parent,
            "previous": "" if full or parent is None else parent.record,
            "added_files": version.added_files,
            "removed_files": version.removed_files,
            "added": _grouped(
                after.values()
                if full
                else (file for path, file in after.items() if path not in before)
            ),
            "removed": [] if full else [path for path in before if path not in after],
            "state": [[file.name, file.path, file.size] for file in version.state.values()],
        }
        content = json.dumps(written, separators=(",", ":")).encode()
        self._storage.write(f"{RECORDS_FOLDER}/{name}.json", content)
        records = (name,) if full or parent is None else (*parent.records, name)
        return LoadedVersion(version, name, records)

    def commit(self, written: LoadedVersion) -> bool:
        """Make a written version that of its number; False, and no record, if there is one."""
        number = written.version.number
        created = self._storage.create(f"{VERSIONS_FOLDER}/{number:08}", written.record.encode())
        if not created:
            self._storage.delete([f"{RECORDS_FOLDER}/{written.record}.json"])
            return False
        self._remember(written)
        return True

    def positions(self, number: int) -> dict[str, str]:
        """Where the tables of a Delta or Iceberg lake have a version; empty if they do not yet."""
        try:
            found = json.loads(self._storage.read_created(f"{TABLES_FOLDER}/{number:08}"))
        except FileNotFoundError:
            return {}
        return {str(table): str(position) for table, position in found.items()}

    def newest_with_positions(self) -> LakeVersion | None:
        """The newest version that the tables of a Delta or Iceberg lake have."""
        numbers = _numbers(self._storage.created(TABLES_FOLDER))
        return self.load(numbers[-1]).version if numbers else None

    def record_positions(self, number: int, positions: Mapping[str, str]) -> dict[str, str]:
        """Record where the tables have a version; return what the first to do so has recorded."""
        content = json.dumps(dict(positions), sort_keys=True).encode()
        if self._storage.create(f"{TABLES_FOLDER}/{number:08}", content):
            return dict(positions)
        return self.positions(number)

    # Private helpers

    def _record_of(self, number: int) -> str:
        try:
            return self._storage.read_created(f"{VERSIONS_FOLDER}/{number:08}").decode()
        except FileNotFoundError:
            raise LakeError(
                f"{self._storage.location}: there is no version {number}, or it was vacuumed; "
                "`polymux lake history` lists those there are"
            ) from None

    def _load_record(self, record: str) -> LoadedVersion:
        chain: list[tuple[str, dict[str, Any]]] = []
        name = record
        while name and name not in self._loaded:
            written = self._read_record(name)
            chain.append((name, written))
            name = str(written["previous"])
        loaded = self._loaded.get(name)
        files = {} if loaded is None else _by_path(loaded.version)
        records = () if loaded is None else loaded.records
        for each, written in reversed(chain):
            for path in written["removed"]:
                files.pop(path, None)
            files.update((file.path, file) for file in _ungrouped(written["added"]))
            records = (*records, each)
        if chain:
            version = replace(
                _summary(chain[0][1]),
                files=by_table(files.values()),
                state={n: StateFile(n, path, size) for n, path, size in chain[0][1]["state"]},
            )
            loaded = LoadedVersion(version, record, records)
            self._remember(loaded)
        assert loaded is not None  # `record` is not ""
        return loaded

    def _remember(self, loaded: LoadedVersion) -> None:
        self._loaded[loaded.record] = loaded
        while len(self._loaded) > MAX_CACHED_VERSIONS:
            del self._loaded[next(iter(self._loaded))]

    def _read_record(self, name: str) -> dict[str, Any]:
        path = f"{RECORDS_FOLDER}/{name}.json"
        try:
            written = json.loads(self._storage.read(path))
            if written["polymux-lake"] != RECORD_FORMAT:
                raise ValueError(f"its format {written['polymux-lake']} is not known")
            return dict(written)
        except (FileNotFoundError, ValueError, KeyError, TypeError) as problem:
            raise LakeError(
                f"{self._storage.location}/{path}: not a readable record of a version: {problem}; "
                "a newer polymux may have written it, or the lake is damaged"
            ) from None


def new_version(
    parent: LakeVersion | None,
    run: str,
    files: Iterable[DataFile],
    state: Mapping[str, StateFile],
    operation: str,
    options: Mapping[str, str],
) -> LakeVersion:
    """The version after `parent`, with these files."""
    found = by_table(files)
    after = {file.path for files in found.values() for file in files}
    before = set() if parent is None else set(_by_path(parent))
    return LakeVersion(
        1 if parent is None else parent.number + 1,
        run,
        datetime.now(UTC),
        operation,
        __version__,
        dict(options),
        0 if parent is None else parent.number,
        found,
        state,
        len(after - before),
        len(before - after),
    )


def by_table(files: Iterable[DataFile]) -> dict[str, tuple[DataFile, ...]]:
    """Files by table, both sorted."""
    found: dict[str, list[DataFile]] = {}
    for file in files:
        found.setdefault(file.table, []).append(file)
    return {
        table: tuple(sorted(found[table], key=lambda file: file.path)) for table in sorted(found)
    }


def partition_of(path: str) -> dict[str, str]:
    """The partition values in a path such as `frames/date=2026-11-03/part-....parquet`."""
    pairs = (part.split("=", 1) for part in path.split("/")[1:-1])
    return {pair[0]: unquote(pair[1]) for pair in pairs if len(pair) == 2}


def run_of(path: str) -> str:
    """The run in the name of a data file, `part-RUN-....parquet`."""
    return path.rpartition("/")[2].split("-")[1]


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdecimal())


def _by_path(version: LakeVersion) -> dict[str, DataFile]:
    return {file.path: file for file in version.all_files()}


def _grouped(files: Iterable[DataFile]) -> dict[str, list[list[object]]]:
    """Files by folder, which names table and partition: half the size of full paths."""
    found: dict[str, list[list[object]]] = {}
    for file in files:
        folder, _, name = file.path.rpartition("/")
        entry: list[object] = [name, file.size, file.rows]
        if file.provisional:
            entry.append(1)
        found.setdefault(folder, []).append(entry)
    return found


def _ungrouped(groups: Mapping[str, list[list[Any]]]) -> Iterable[DataFile]:
    for folder, entries in groups.items():
        partition = partition_of(f"{folder}/")
        table = folder.partition("/")[0]
        if ".." in folder.split("/") or folder.startswith("/"):
            raise ValueError(f"{folder} is not below it")
        for entry in entries:
            path = f"{folder}/{entry[0]}"
            yield DataFile(
                table, path, int(entry[1]), int(entry[2]), partition, run_of(path), len(entry) > 3
            )


def _summary(written: Mapping[str, Any]) -> LakeVersion:
    return LakeVersion(
        int(written["number"]),
        str(written["run"]),
        datetime.fromisoformat(written["time"]),
        str(written["operation"]),
        str(written["polymux"]),
        {str(name): str(value) for name, value in written["options"].items()},
        int(written["parent"]),
        {},
        {},
        int(written["added_files"]),
        int(written["removed_files"]),
    )
