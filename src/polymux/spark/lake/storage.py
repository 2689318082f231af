"""Files of a lake on a local file system or an object store, by names relative to the lake.

Three things differ between the two. A local file appears by a rename, an object by its upload,
complete or not at all. A local file is created exclusively by a hard link. On an object store that
needs a conditional request, which `pyarrow.fs` does not have: there `deltalake` creates a Delta
table of one commit, and the content is that commit's metadata.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit

from polymux.analysis.output.parquet import PRIVATE_TABLES
from polymux.capture.io.atomic_write import publish, sync_directory, write_atomically
from polymux.capture.io.paths import PRIVATE_FOLDER, is_url, local_path
from polymux.capture.io.remote import filesystem
from polymux.core.errors import MissingExtra
from polymux.spark.lake.store import LakeError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

TASKS_FOLDER: Final = "_lake/tasks"  # files of task attempts, on local file systems
MAX_ERROR_TEXT: Final = 300
_CONTENT_KEY: Final = "polymux"  # in the metadata of a commit
_FIRST_COMMIT: Final = "_delta_log/00000000000000000000.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a lake: its name, its size, and when it was last modified by the store's clock."""

    name: str
    size: int
    modified: datetime


class Storage(ABC):
    """The files of a lake. Every failure of the store is a LakeError, unless said otherwise.

    Pickled by its URL. `url` is as the caller gave it and may hold credentials; `location` is the
    same place without them, for texts and metadata.
    """

    url: str
    location: str

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file; FileNotFoundError if there is none."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file: complete and durable, or not at all."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> bool:
        """Create a file unless it exists, in one step; False if it does.

        Of several callers at once, one creates it. The content is small text; read it by
        `read_created`. True also if an earlier attempt with the same content, whose answer was
        lost, has created it.
        """

    @abstractmethod
    def read_created(self, name: str) -> bytes:
        """The content of a file made by `create`; FileNotFoundError if there is none."""

    @abstractmethod
    def created(self, folder: str) -> list[str]:
        """The last parts of the names in a folder that `create` has made."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of files and folders directly in a folder; empty if there is none."""

    @abstractmethod
    def files(self, folder: str) -> Iterator[StoredFile]:
        """All files below a folder; none if it does not exist."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and what `create` has made; those that do not exist are passed over."""

    @abstractmethod
    def make_folder(self, name: str) -> None:
        """Create a folder, where the store has folders."""

    @abstractmethod
    @contextmanager
    def task_folder(self, run: str) -> Iterator[Path]:
        """A new local folder of a run, removed with its content after the block.

        If it is in the lake, the names of its files have the run's id.
        """
        yield Path()

    @abstractmethod
    def store(self, file: Path, name: str) -> None:
        """Move a local file from a `task_folder` into the lake; durable when this returns."""

    @abstractmethod
    def arrow_path(self, name: str) -> str:
        """The path of a file on `arrow_filesystem`."""

    @abstractmethod
    def name_of(self, location: str) -> str | None:
        """The name in the lake of the file at a location; None if it is not in the lake.

        `location` is written like that of the lake: a path, or a URL without credentials and
        escapes. Symbolic links and `..` in a path do not matter.
        """

    @property
    @abstractmethod
    def arrow_filesystem(self) -> FileSystem:
        """The file system, to read files with pyarrow."""

    def __reduce__(self) -> tuple[object, ...]:
        return open_storage, (self.url,)


def open_storage(url: str) -> Storage:
    """The storage of the lake at a directory or URL.

    Raises:
        LakeError: The URL cannot be opened.
        MissingExtra: It is on an object store, and `polymux[lake]` is not installed.
    """
    path = local_path(url)
    return _ObjectStorage(url) if is_url(path) else _LocalStorage(path)


class _LocalStorage(Storage):
    def __init__(self, path: str) -> None:
        # One lake has one location: metadata names files by it, and other processes compare it.
        self.root = Path(os.path.realpath(path))
        self.url = self.location = str(self.root)

    def read(self, name: str) -> bytes:
        with self._explained(name):
            return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        with self._explained(name):
            self._make_folders(path.parent)
            write_atomically(path, content)
            sync_directory(str(path))

    def create(self, name: str, content: bytes) -> bool:
        path = self.root / name
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        with self._explained(name):
            self._make_folders(path.parent)
            write_atomically(part, content)
            try:
                publish(str(part), str(path))
                return True
            except FileExistsError:
                return path.read_bytes() == content
            finally:
                part.unlink(missing_ok=True)

    def read_created(self, name: str) -> bytes:
        return self.read(name)

    def created(self, folder: str) -> list[str]:
        return self.names(folder)

    def names(self, folder: str) -> list[str]:
        with self._explained(folder):
            try:
                return sorted(n for n in os.listdir(self.root / folder) if not n.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def files(self, folder: str) -> Iterator[StoredFile]:
        for parent, folders, names in os.walk(self.root / folder):
            folders.sort()
            for name in sorted(names):
                path = Path(parent, name)
                with suppress(FileNotFoundError):
                    status = path.stat()
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    yield StoredFile(
                        path.relative_to(self.root).as_posix(), status.st_size, modified
                    )

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.root / name
            with self._explained(name):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            with suppress(OSError):
                if "=" in path.parent.name:  # the folder of a partition that is empty now
                    path.parent.rmdir()

    def make_folder(self, name: str) -> None:
        with self._explained(name):
            self._make_folders(self.root / name)

    @contextmanager
    def task_folder(self, run: str) -> Iterator[Path]:
        with self._explained(TASKS_FOLDER):
            (self.root / TASKS_FOLDER).mkdir(parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix=f"{run}-", dir=self.root / TASKS_FOLDER)
        try:
            yield Path(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def store(self, file: Path, name: str) -> None:
        path = self.root / name
        with self._explained(name):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._make_folders(path.parent)
            try:
                os.rename(file, path)
            except FileNotFoundError:  # `delete` has removed the empty folder of the partition
                self._make_folders(path.parent)
                os.rename(file, path)
            sync_directory(str(path))

    def _make_folders(self, folder: Path) -> None:
        """Create a folder and its missing parents; they are durable when this returns."""
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        private = folder.parent == self.root and folder.name in PRIVATE_TABLES
        folder.mkdir(PRIVATE_FOLDER if private else 0o777, exist_ok=True)
        sync_directory(str(folder))

    def name_of(self, location: str) -> str | None:
        if is_url(location):
            return None
        found = Path(os.path.realpath(location))
        return found.relative_to(self.root).as_posix() if found.is_relative_to(self.root) else None

    def arrow_path(self, name: str) -> str:
        return str(self.root / name)

    @property
    def arrow_filesystem(self) -> FileSystem:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as problem:
            raise LakeError(f"{self.root / name}: {problem.strerror or problem}") from None


class _ObjectStorage(Storage):
    def __init__(self, url: str) -> None:
        self.url = url
        self._system, path = filesystem(url)
        self._root = path.rstrip("/")
        scheme = urlsplit(url).scheme
        self.location = f"{scheme}://{self._root}"
        self.options = delta_options(url)

    def read(self, name: str) -> bytes:
        with self._explained(name):
            with self._system.open_input_stream(self.arrow_path(name)) as stream:
                return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        with self._explained(name):
            with self._system.open_output_stream(self.arrow_path(name)) as stream:
                stream.write(content)

    def create(self, name: str, content: bytes) -> bool:
        try:
            import pyarrow as pa
            from deltalake import CommitProperties, DeltaTable
            from deltalake.exceptions import DeltaError
        except ImportError:
            raise MissingExtra("lake", "a lake on an object store") from None
        text = content.decode()
        try:
            DeltaTable.create(
                f"{self.location}/{name}",
                pa.schema([pa.field("unused", pa.bool_())]),
                storage_options=self.options,
                commit_properties=CommitProperties({_CONTENT_KEY: text}, max_commit_retries=0),
            )
            return True
        except (DeltaError, OSError) as problem:
            try:
                return self.read_created(name) == content
            except FileNotFoundError:
                raise LakeError(
                    f"{self.location}/{name}: cannot be created: {one_line(problem)}"
                ) from None

    def read_created(self, name: str) -> bytes:
        for line in self.read(f"{name}/{_FIRST_COMMIT}").splitlines():
            action = json.loads(line)
            if "commitInfo" in action:
                return str(action["commitInfo"][_CONTENT_KEY]).encode()
        raise LakeError(f"{self.location}/{name}: was not made by polymux")

    def created(self, folder: str) -> list[str]:
        end = f"/{_FIRST_COMMIT}"  # an empty folder may remain of one that was deleted
        names = (file.name for file in self.files(folder))
        return [name.removesuffix(end).rpartition("/")[2] for name in names if name.endswith(end)]

    def names(self, folder: str) -> list[str]:
        return sorted(str(info.base_name) for info in self._list(folder, recursive=False))

    def files(self, folder: str) -> Iterator[StoredFile]:
        from pyarrow.fs import FileType

        for info in self._list(folder, recursive=True):
            if info.type == FileType.File:
                name = str(info.path)[len(self._root) + 1 :]
                yield StoredFile(name, int(info.size), info.mtime)

    def _list(self, folder: str, recursive: bool):  # type: ignore[no-untyped-def]  # pyarrow has no types
        from pyarrow.fs import FileSelector

        selector = FileSelector(self.arrow_path(folder), recursive=recursive, allow_not_found=True)
        with self._explained(folder):
            return sorted(self._system.get_file_info(selector), key=lambda info: str(info.path))

    def delete(self, names: Iterable[str]) -> None:
        from pyarrow.fs import FileType

        for name in names:
            with self._explained(name), suppress(FileNotFoundError):
                info = self._system.get_file_info(self.arrow_path(name))
                if info.type == FileType.Directory:
                    self._system.delete_dir(self.arrow_path(name))
                elif info.type == FileType.File:
                    self._system.delete_file(self.arrow_path(name))

    def make_folder(self, name: str) -> None:
        return

    @contextmanager
    def task_folder(self, run: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="polymux-") as folder:
            yield Path(folder)

    def store(self, file: Path, name: str) -> None:
        with self._explained(name), open(file, "rb") as source:
            with self._system.open_output_stream(self.arrow_path(name)) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        file.unlink()

    def name_of(self, location: str) -> str | None:
        inside = f"{self.location}/"
        return location.removeprefix(inside) if location.startswith(inside) else None

    def arrow_path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    @property
    def arrow_filesystem(self) -> FileSystem:
        return self._system

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RuntimeError) as problem:
            # ArrowInvalid is a ValueError, other Arrow errors are RuntimeErrors.
            raise LakeError(f"{self.location}/{name}: {one_line(problem)}") from None


def delta_options(url: str) -> dict[str, str]:
    """What `deltalake` is to be told of an S3 URL with options of `pyarrow.fs`.

    What the URL does not say is found by `deltalake` as by pyarrow: in the environment, the
    machine's role, and so on.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "s3a"):
        return {}
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    found = {}
    if parts.username:
        found["AWS_ACCESS_KEY_ID"] = unquote(parts.username)
        found["AWS_SECRET_ACCESS_KEY"] = unquote(parts.password or "")
    if "region" in given:
        found["AWS_REGION"] = given["region"]
    endpoint = given.get("endpoint_override")
    if endpoint:
        if "://" not in endpoint:
            endpoint = f"{given.get('scheme', 'https')}://{endpoint}"
        found["AWS_ENDPOINT_URL"] = endpoint
    if found.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found


def one_line(problem: Exception) -> str:
    """An error's text on one line, shortened; its type if it has none."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[:MAX_ERROR_TEXT]}..."
