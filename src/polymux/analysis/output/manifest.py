"""The manifest of an output directory: which files are its tables.

`manifest.json` names every file of the last run that succeeded. It is written last and replaced in
one step, so a reader that follows it sees the tables of one run, all of them, whatever else is in
the directory: the files of a run that is still going on, of one that was killed, or other files.
A directory without a manifest, as an analysis without Spark writes it, is read by its file names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polymux.core.errors import UnreadableInput

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of a table: its path below the folder of the manifest, its bytes and rows."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tables of one run. `folder` is where the manifest is stored, links resolved."""

    run: str
    tables: Mapping[str, Sequence[TableFile]] = field(default_factory=dict)
    folder: Path = Path()

    def encode(self) -> bytes:
        """Return the content of the manifest file."""
        tables = {
            table: [{"file": file.path, "bytes": file.size, "rows": file.rows} for file in files]
            for table, files in self.tables.items()
        }
        written = {"polymux-manifest": MANIFEST_VERSION, "run": self.run, "tables": tables}
        return json.dumps(written, indent=1, sort_keys=True).encode()

    def files(self, table: str) -> list[Path]:
        """Return the files of a table, sorted by name; none if the run did not write it."""
        return sorted(self.folder / file.path for file in self.tables.get(table, ()))


def read_manifest(out: Path | str) -> Manifest | None:
    """Read the manifest of an output directory; None if there is none.

    Raises:
        UnreadableInput: It cannot be read, or is not a manifest of a version that is known.
    """
    try:
        path = Path(out, MANIFEST_NAME).resolve()
        written = json.loads(path.read_bytes())
        if written["polymux-manifest"] != MANIFEST_VERSION:
            raise ValueError(f"version {written['polymux-manifest']} is not known")
        tables = {
            str(table): [
                TableFile(str(file["file"]), int(file["bytes"]), int(file["rows"]))
                for file in files
            ]
            for table, files in written["tables"].items()
        }
        for file in (file for files in tables.values() for file in files):
            if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
                raise ValueError(f"{file.path} is not below it")
        return Manifest(str(written["run"]), tables, path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise UnreadableInput(
            f"{Path(out, MANIFEST_NAME)}: not a readable manifest: {problem}; analyze the captures "
            "again"
        ) from None


def table_files(out: Path | str, table: str, manifest: Manifest | None = None) -> list[Path]:
    """Return the Parquet files of a table, sorted by name.

    Those of `manifest`, by default the one in `out`. Without a manifest, all in the folder of the
    table, except hidden and temporary files.
    """
    manifest = manifest or read_manifest(out)
    if manifest is not None:
        return manifest.files(table)
    return directory_files(out, table)


def directory_files(out: Path | str, table: str) -> list[Path]:
    """Return the Parquet files in the folder of a table, sorted; no hidden or temporary ones."""
    root = Path(out, table)
    return sorted(
        path
        for path in root.rglob("*.parquet")
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(root).parts)
    )
