"""Streams as files: `stream-000017.bin` and a manifest that says which is which.

What came from the wire is only ever written into files, never made into their names.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from polymux.capture.io.paths import PRIVATE_FOLDER, open_private
from polymux.cli.support.output import plural, rows_of
from polymux.core.errors import UnwritableOutput

if TYPE_CHECKING:
    import pyarrow as pa

    from polymux.analysis.session.summary import SessionSummary

MANIFEST = "manifest.json"


class CannotWrite(UnwritableOutput):
    """A directory or file that cannot be written; the text says why."""


def create_private_folder(name: str) -> Path:
    """An empty directory for payload. If it is made here, only its owner can look into it.

    Raises UsageError if something is in it, CannotWrite if it cannot be used.
    """
    folder = Path(name)
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(PRIVATE_FOLDER)
        elif any(folder.iterdir()):
            raise click.UsageError(f"{name}: is not empty; name a new directory")
    except OSError as problem:
        raise CannotWrite(f"{name}: cannot be written: {problem.strerror}") from None
    return folder


def append_private(path: Path, data: bytes) -> None:
    """Add to a file that only its owner can read; raises CannotWrite."""
    try:
        with open_private(path, append=True) as file:
            file.write(data)
    except OSError as problem:
        raise CannotWrite(f"{path.name}: cannot be written: {problem.strerror}") from None


class _StreamFile:
    """One side of one stream."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.size = 0
        self.digest = hashlib.sha256()


class StreamFiles:
    """Use as a context: the manifest is written at its end."""

    def __init__(self, folder: str, senders: tuple[str, ...]) -> None:
        self.folder = create_private_folder(folder)
        self.senders = senders
        self._files: dict[tuple[str, str, str], _StreamFile] = {}
        self._streams: dict[tuple[str, str], dict[str, object]] = {}
        self._sessions: list[dict[str, object]] = []

    def emit(self, table: str, batch: pa.RecordBatch) -> None:
        if table == "content":
            for row in rows_of(table, batch, ("session_id", "stream", "sender", "data")):
                if row["stream"] is not None and row["sender"] in self.senders:
                    data = row["data"]
                    assert isinstance(data, bytes)
                    key = (str(row["session_id"]), str(row["stream"]), str(row["sender"]))
                    self._append(key, data)
        elif table == "streams":
            columns = ("session_id", "stream", "opener", "name", "name_bytes", "ending")
            for row in rows_of(table, batch, columns):
                self._streams[str(row["session_id"]), str(row["stream"])] = row

    def add_session(self, summary: SessionSummary) -> None:
        """A session is done."""
        self._sessions.append(
            {
                "session_id": summary.session_id,
                "protocol": summary.protocol,
                "dialer": summary.dialer,
                "acceptor": summary.acceptor,
                "ending": summary.ending,
                "note": summary.note,
            }
        )

    def summary_text(self) -> str:
        size = sum(half.size for half in self._files.values())
        return f"{plural(len(self._files), 'file')}, {size} bytes, {MANIFEST} in {self.folder}"

    def _append(self, key: tuple[str, str, str], data: bytes) -> None:
        half = self._files.get(key)
        if half is None:
            half = self._files[key] = _StreamFile(f"stream-{len(self._files):06d}.bin")
        half.size += len(data)
        half.digest.update(data)
        append_private(self.folder / half.file, data)

    def _manifest(self) -> dict[str, object]:
        entries = []
        for (session_id, stream, sender), half in self._files.items():
            row = self._streams.get((session_id, stream), {})
            name = row.get("name_bytes")
            entries.append(
                {
                    "file": half.file,
                    "session_id": session_id,
                    "stream": stream,
                    "sender": sender,
                    "opener": row.get("opener"),
                    "name": row.get("name"),
                    "name_hex": name.hex() if isinstance(name, bytes) else None,
                    "ending": row.get("ending"),
                    "bytes": half.size,
                    "sha256": half.digest.hexdigest(),
                }
            )
        return {"sessions": self._sessions, "files": entries}

    def __enter__(self) -> StreamFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        text = json.dumps(self._manifest(), indent=1, ensure_ascii=True)
        try:
            append_private(self.folder / MANIFEST, text.encode("ascii") + b"\n")
        except CannotWrite:
            if kind is None:
                raise
