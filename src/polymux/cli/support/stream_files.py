"""Streams as files: `stream-000001.bin` and so on, and a manifest that describes each.

`polymux serve --save` and `polymux follow --out` write the same layout. Every line of
`manifest.jsonl` is a JSON object with the keys `MANIFEST_KEYS`, in which unknown values are null.
Names received from a peer appear only inside the manifest: they never become file names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from polymux.capture.io.paths import make_private_folders, open_private
from polymux.cli.support.output import plural, rows_of
from polymux.core.errors import UnwritableOutput

if TYPE_CHECKING:
    import pyarrow as pa

    from polymux.analysis.session.analyzer import SessionSummary

MANIFEST = "manifest.jsonl"
MANIFEST_KEYS = (
    "file", "session_id", "protocol", "dialer", "acceptor", "stream", "opener", "sender", "name",
    "name_hex", "ending", "note", "bytes", "sha256",
)  # fmt: skip


class CannotWrite(UnwritableOutput):
    """A directory or file cannot be written; the message gives the reason."""


def create_private_folder(name: str) -> Path:
    """Return an empty directory for payload. A new one is accessible to its owner only.

    Raises:
        click.UsageError: The directory is not empty.
        CannotWrite: It cannot be created or read.
    """
    folder = Path(name)
    try:
        if not folder.is_dir():
            make_private_folders(folder)
        elif any(folder.iterdir()):
            raise click.UsageError(f"{name}: is not empty; name a new directory")
    except OSError as problem:
        raise CannotWrite(f"{name}: cannot be written: {problem.strerror}") from None
    return folder


def append_private(path: Path, data: bytes) -> None:
    """Append to a file that only its owner can read, creating it if needed.

    Raises:
        CannotWrite: The file cannot be written.
    """
    try:
        with open_private(path, append=True) as file:
            file.write(data)
    except OSError as problem:
        raise CannotWrite(f"{path.name}: cannot be written: {problem.strerror}") from None


class StreamFile:
    """The file of one direction of a stream.

    It is closed between writes, because there may be more streams than a process may open files.

    Raises:
        FileExistsError: There is such a file.
        CannotWrite: It cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.digest = hashlib.sha256()
        try:
            open_private(path).close()
        except FileExistsError:
            raise
        except OSError as problem:
            raise CannotWrite(f"{path.name}: cannot be written: {problem.strerror}") from None

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self.digest.update(data)
        append_private(self.path, data)


class StreamFolder:
    """A new directory of numbered stream files and their manifest.

    Args:
        name: The directory.
        is_shared: It was created for several processes, all of which write there.

    Attributes:
        count: Files that this process has created.
    """

    def __init__(self, name: str, is_shared: bool = False) -> None:
        self.folder = Path(name) if is_shared else create_private_folder(name)
        self.count = 0
        self._number = 0
        self._is_shared = is_shared
        if not is_shared:
            append_private(self.folder / MANIFEST, b"")

    def create_file(self) -> StreamFile:
        """Create the next file; the first is `stream-000001.bin`.

        Raises:
            CannotWrite: It cannot be created.
        """
        while True:
            self._number += 1
            path = self.folder / f"stream-{self._number:06d}.bin"
            try:
                file = StreamFile(path)
            except FileExistsError:
                if self._is_shared:  # another process has taken this number
                    continue
                raise CannotWrite(f"{path.name}: exists already and is not replaced") from None
            self.count += 1
            return file

    def add_to_manifest(self, file: StreamFile, facts: Mapping[str, object]) -> None:
        """Append the line of a finished file. `facts` has any of the `MANIFEST_KEYS`."""
        values = {
            **facts,
            "file": file.path.name,
            "bytes": file.size,
            "sha256": file.digest.hexdigest(),
        }
        line = json.dumps({key: values.get(key) for key in MANIFEST_KEYS}, ensure_ascii=True)
        append_private(self.folder / MANIFEST, line.encode("ascii") + b"\n")


class CapturedStreams:
    """Writes the streams of captured sessions to a `StreamFolder`. Use as a context manager.

    The files of a session enter the manifest when `add_session` is called; those of a session that
    was interrupted enter it when the context ends, without what is known only then.
    """

    def __init__(self, folder: str, senders: tuple[str, ...]) -> None:
        self.senders = senders
        self._folder = StreamFolder(folder)
        self._total_bytes = 0
        # Of the session that is being analyzed: files by stream and sender, rows by stream.
        self._files: dict[tuple[str, str], StreamFile] = {}
        self._rows: dict[str, dict[str, object]] = {}

    def emit(self, table: str, batch: pa.RecordBatch) -> None:
        """Take rows of the tables `content` and `streams`, of one session at a time."""
        if table == "content":
            for row in rows_of(table, batch, ("stream", "sender", "data")):
                if row["stream"] is not None and row["sender"] in self.senders:
                    data = row["data"]
                    assert isinstance(data, bytes)  # the type of the column
                    self._append((str(row["stream"]), str(row["sender"])), data)
        elif table == "streams":
            for row in rows_of(table, batch, ("stream", "opener", "name", "name_bytes", "ending")):
                self._rows[str(row["stream"])] = row

    def add_session(self, summary: SessionSummary) -> None:
        """The session whose rows were emitted is complete: write its lines of the manifest."""
        self._write_manifest(
            {
                "session_id": summary.session_id,
                "protocol": summary.protocol,
                "dialer": summary.dialer,
                "acceptor": summary.acceptor,
                "note": summary.note or None,
            }
        )

    def summary_text(self) -> str:
        files = plural(self._folder.count, "file")
        return f"{files}, {self._total_bytes} bytes, {MANIFEST} in {self._folder.folder}"

    def _append(self, key: tuple[str, str], data: bytes) -> None:
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = self._folder.create_file()
        file.write(data)
        self._total_bytes += len(data)

    def _write_manifest(self, session: dict[str, object]) -> None:
        for (stream, sender), file in self._files.items():
            row = self._rows.get(stream, {})
            name = row.get("name_bytes")
            facts = {
                **session,
                "stream": stream,
                "opener": row.get("opener"),
                "sender": sender,
                "name": row.get("name"),
                "name_hex": name.hex() if isinstance(name, bytes) else None,
                "ending": row.get("ending"),
            }
            self._folder.add_to_manifest(file, facts)
        self._files.clear()
        self._rows.clear()

    def __enter__(self) -> CapturedStreams:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._write_manifest({})
        except CannotWrite:
            if kind is None:
                raise
