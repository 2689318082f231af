"""How rows are laid out in Parquet files: partitions, row groups and what a file says of its run.

Without pyarrow, so that options which name a layout travel and are checked without it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from polymux.core.errors import PolymuxError

PARTITION_COLUMNS: Final = ("date", "sensor")
MAX_FOLDER_BYTES: Final = 240  # of a value; systems allow 255 with the column
KEPT_CHARACTERS: Final = 50  # of a longer value, and its hash
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"  # a folder of this name stands for null
_SAFE: Final = " !$&'()+,-@;~"  # not escaped, besides letters, digits and _.-


class BadLayout(PolymuxError):
    """Rows cannot be partitioned as asked; the text says by what they can be."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The layout of the tables of one run.

    Args:
        partition_by: Columns of the folders below each table but `captures`: `date` (of the
            session's start, UTC), or `date` and `sensor`; empty: none.
        run: The id of the run, recorded in every file; "" records none.
        options: The options of the run as text, recorded likewise.
        sorts_files: Whether the rows of a whole file are sorted by session, as always with
            partitions. Otherwise those of each row group are, which takes a third less time.

    Raises:
        BadLayout: `partition_by` names something else.
    """

    partition_by: tuple[str, ...] = ()
    run: str = ""
    options: str = ""
    sorts_files: bool = False

    def __post_init__(self) -> None:
        if self.partition_by != PARTITION_COLUMNS[: len(self.partition_by)]:
            raise BadLayout(
                f"partitions by {','.join(self.partition_by)}: tables are partitioned by date, or "
                "by date,sensor"
            )

    def partition_of(self, started_us: int, sensor: str) -> tuple[str, ...]:
        """The values of the partition columns for a session, as text.

        Args:
            started_us: Its first packet, in microseconds since 1970.
            sensor: Where it was captured.
        """
        if not self.partition_by:
            return ()
        date = datetime.fromtimestamp(started_us // 1_000_000, UTC).strftime("%Y-%m-%d")
        return (date, sensor)[: len(self.partition_by)]

    def folder_of(self, values: tuple[str, ...]) -> str:
        """The folder of a partition below its table: `date=2026-11-03/sensor=lab`; "" for none."""
        return "/".join(
            f"{name}={_escaped(value)}"
            for name, value in zip(self.partition_by, values, strict=True)
        )


def partition_values(path: str) -> dict[str, str]:
    """The partition columns and their values in the folders of a path; "" stands for null.

    The inverse of `TableLayout.folder_of`, but for values that it has shortened.
    """
    pairs = (part.split("=", 1) for part in path.split("/"))
    return {
        pair[0]: "" if pair[1] == _HIVE_NULL else unquote(pair[1])
        for pair in pairs
        if len(pair) == 2
    }


def _escaped(value: str) -> str:
    """A value as Hive, Spark and DuckDB read it in the name of a folder.

    They agree on the escapes of ASCII only, so other characters are as they are.
    """
    text = _without_special(value)
    if len(text.encode()) > MAX_FOLDER_BYTES:
        digest = hashlib.blake2b(value.encode(), digest_size=8).hexdigest()
        text = f"{_without_special(value[:KEPT_CHARACTERS])}~{digest}"
    return f"%5F{text[1:]}" if text == _HIVE_NULL else text or _HIVE_NULL


def _without_special(value: str) -> str:
    return "".join(quote(sign, safe=_SAFE) if sign.isascii() else sign for sign in value)
