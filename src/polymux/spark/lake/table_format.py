"""What a format adds to the data files of a lake: tables that other programs know.

The version of a lake is the truth: it is committed first, for all tables at once. Then the tables
of the format are brought to it. A run that is killed in between leaves that to the next writer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime

from polymux.analysis.output.layout import PARTITION_COLUMNS
from polymux.analysis.schema.tables import TABLES
from polymux.spark.lake.store import LakeError, LakeVersion


class TablesMovedOn(LakeError):
    """Another writer has brought a table to a newer version."""


class TableFormat(ABC):
    """The tables of a lake in a format. `has_positions`: whether there are any. `has_catalog`:
    whether readers find them in a catalog."""

    has_positions = True
    has_catalog = False

    def check(self) -> None:  # noqa: B027  # a format without a catalog has nothing to check
        """Raise LakeError if the tables of this lake could not be published."""

    @abstractmethod
    def bring_to(self, version: LakeVersion, former: LakeVersion | None) -> dict[str, str]:
        """Make tables that have the files of `version`, each in one step.

        Repeating it, also by two processes at once, changes nothing more.

        Args:
            version: A committed version.
            former: The newest version that the tables have; None: there are no tables yet.

        Returns:
            The position of each table: what its readers give to read this version.

        Raises:
            TablesMovedOn: Another writer has brought a table to a newer version meanwhile.
            LakeError: The store or the catalog failed.
        """

    @abstractmethod
    def publish(self, number: int, positions: Mapping[str, str]) -> None:
        """Show the tables of a version to readers of a catalog, if it has none or an older one.

        Args:
            number: The version.
            positions: Those that were recorded for it.
        """

    @abstractmethod
    def vacuum(self, limit: datetime, kept: Sequence[Mapping[str, str]]) -> None:
        """Remove metadata of the tables that is older than `limit`.

        Args:
            limit: A time in UTC.
            kept: Positions that can still be read after it.
        """


def is_needed(table: str, version: LakeVersion, former: LakeVersion | None) -> bool:
    """Whether a version has a table: always, but that with payload only if it was asked for."""
    known = former is not None and table in former.tables
    return table != "content" or table in version.files or known


def unchanged_position(table: str, version: LakeVersion, former: LakeVersion | None) -> str:
    """The position of a table that has the same files as before; "" if it does not."""
    if former is None or former.files.get(table, ()) != version.files.get(table, ()):
        return ""
    return former.tables.get(table, "")


def partition_columns(table: str, version: LakeVersion) -> list[str]:
    """By which columns a table is partitioned: as its files are.

    If it has no files: as those of other tables are, if it has sessions to date.

    Raises:
        LakeError: Its files are not all partitioned by the same columns.
    """
    files = version.files.get(table, ())
    if not files and "session_id" in TABLES[table].column_names():
        files = tuple(version.all_files())
        files = tuple(sorted(files, key=lambda file: len(file.partition))[-1:])
    found = [name for name in PARTITION_COLUMNS if files and name in files[0].partition]
    for file in files:
        if sorted(file.partition) != sorted(found):
            raise LakeError(
                f"{file.path}: is partitioned by {', '.join(file.partition) or 'nothing'}, but "
                f"{files[0].path} by {', '.join(found) or 'nothing'}: partition a lake always by "
                "the same columns"
            )
    return found


class ParquetFormat(TableFormat):
    """Nothing but Parquet files; readers follow the lake's versions."""

    has_positions = False

    def bring_to(self, version: LakeVersion, former: LakeVersion | None) -> dict[str, str]:
        return {}

    def publish(self, number: int, positions: Mapping[str, str]) -> None:
        return

    def vacuum(self, limit: datetime, kept: Sequence[Mapping[str, str]]) -> None:
        return
