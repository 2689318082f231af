"""Digests of tables that do not depend on the order of rows.

Two analyses of the same capture have the same digests, however the work was split. The `captures`
table and the column `capture` are excluded because they depend on file names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from polymux.analysis.output.arrow_batches import decode_dictionaries
from polymux.analysis.output.parquet import read_batches
from polymux.analysis.schema.tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

_EXCLUDED_COLUMNS = {"capture"}
_DIGEST_MODULUS = 1 << 256


def digest_rows(table: str, batches: Iterable[pa.RecordBatch]) -> str:
    """The number of rows and their digest: `3:9f86d0...`."""
    names = [name for name in TABLES[table].column_names() if name not in _EXCLUDED_COLUMNS]
    total, rows = 0, 0
    for batch in batches:
        for row in decode_dictionaries(table, batch).select(names).to_pylist():
            text = repr([row[name] for name in names]).encode()
            total += int.from_bytes(hashlib.sha256(text).digest(), "big")
            rows += 1
    return f"{rows}:{total % _DIGEST_MODULUS:064x}"


def digest_tables(folder: Path | str) -> dict[str, str]:
    """The digest of every table under an output directory."""
    return {
        table: digest_rows(table, read_batches(folder, table))
        for table in TABLES
        if table != "captures"
    }


def digest_batches(batches: Mapping[str, Iterable[pa.RecordBatch]]) -> dict[str, str]:
    """The digest of every table, for batches in memory by table name."""
    return {
        table: digest_rows(table, batches.get(table, ())) for table in TABLES if table != "captures"
    }
