"""What a format adds to the data files of a lake: tables that other programs know.

The version of a lake is the truth: it is committed first, for all tables at once. Then the tables
of the format are brought to it. A run that is killed in between leaves that to the next writer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime

from polymux.spark.lake.store import LakeVersion


class TableFormat(ABC):
    """The tables of a lake in a format. `has_positions`: whether there are any."""

    has_positions = True

    @abstractmethod
    def bring_to(self, version: LakeVersion, former: Mapping[str, str]) -> dict[str, str]:
        """Make tables that have the files of `version`, each in one step.

        Repeating it, also by two processes at once, changes nothing more.

        Args:
            version: A committed version.
            former: The positions of the newest version that the tables have.

        Returns:
            The position of each table: what its readers give to read this version.

        Raises:
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


class ParquetFormat(TableFormat):
    """Nothing but Parquet files; readers follow the lake's versions."""

    has_positions = False

    def bring_to(self, version: LakeVersion, former: Mapping[str, str]) -> dict[str, str]:
        return {}

    def publish(self, number: int, positions: Mapping[str, str]) -> None:
        return

    def vacuum(self, limit: datetime, kept: Sequence[Mapping[str, str]]) -> None:
        return
