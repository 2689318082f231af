"""Removing the rows of some sessions or captures from the data files of a lake.

Files are never changed: one that has such rows is written anew without them. The sessions' dates
say in which partitions to look.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from polymux.analysis.output.arrow_batches import SCHEMAS, with_columns
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.parquet import TableWriter, recorded_options
from polymux.core.errors import MissingExtra
from polymux.spark.lake.lake import TaskOutput
from polymux.spark.lake.store import DataFile, LakeVersion

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

CAPTURES_TABLE = "captures"


def files_of_dates(version: LakeVersion, dates: Iterable[str]) -> list[DataFile]:
    """The files with rows of finished sessions that began on these dates."""
    wanted = frozenset(dates)
    return [
        file
        for file in version.all_files()
        if file.table != CAPTURES_TABLE and not file.provisional and file.date in wanted
    ]


def without_rows(
    file: DataFile, key: str, values: Iterable[str], output: TaskOutput
) -> list[DataFile] | None:
    """Write a file anew without the rows whose column `key` has one of `values`.

    Runs in a task.

    Returns:
        The new files, none if no row is left; or None if the file has no such row.
    """
    unwanted = pa.array(sorted(values), pa.string())
    storage = output.storage
    with storage.arrow_filesystem.open_input_file(storage.arrow_path(file.path)) as source:
        parquet = pq.ParquetFile(source)
        keys = parquet.read(columns=[key])[key]
        if not pc.any(pc.is_in(keys, value_set=unwanted)).as_py():
            return None
        with output.folder() as folder:
            told = recorded_options(parquet.metadata)
            layout = TableLayout(run=output.run, options=told, sorts_files=True)
            with TableWriter(folder / "kept", f"part-{uuid.uuid4().hex}", layout) as writer:
                for batch in parquet.iter_batches():
                    kept = batch.filter(pc.invert(pc.is_in(batch[key], value_set=unwanted)))
                    if kept.num_rows:
                        writer.emit(file.table, with_columns(kept, SCHEMAS[file.table]))
            place = folder / "stored" / Path(file.path).parent
            place.mkdir(parents=True)
            for path in (folder / "kept").rglob("*.parquet"):
                path.rename(place / path.name)
            return output.store(folder / "stored")
