"""A following query without Spark: the same batches, offsets and tables, under a clock of ours."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.table_digest import digest_tables
from polymux.spark.batch.output_lock import LOCK_NAME
from polymux.spark.datasource.stream_reader import AllTablesReader
from polymux.spark.streaming.index_store import IndexStore
from polymux.spark.streaming.micro_batches import AvailableFiles, FolderFollower
from polymux.spark.streaming.offset import FolderOffset
from polymux.spark.streaming.open_sessions import SessionTimeouts
from polymux.spark.streaming.table_output import StreamingTables

BEGIN = 1_700_000_000_000  # milliseconds
ALL = 1 << 62


class Run:
    """Follows `inbox` into `out`. `kill` loses everything that is not an offset or a table."""

    def __init__(
        self, inbox: Path, out: Path, waits: SessionTimeouts, index_in_tasks: bool = True
    ) -> None:
        inbox.mkdir(exist_ok=True)
        self.index_in_tasks = index_in_tasks
        self.inbox = inbox
        self.out = out
        self.waits = waits
        self.now = BEGIN
        self.offsets: list[str] = [json.dumps(FolderOffset().to_dict())]
        self.kill()

    def kill(self) -> None:
        (self.out / LOCK_NAME).unlink(missing_ok=True)  # its process would be dead
        self.tables = StreamingTables(str(self.out), {"content": "true"})
        self.tables.checkpoint.mkdir(exist_ok=True)
        self.follower = FolderFollower(
            str(self.inbox),
            timeouts=self.waits,
            clock=lambda: self.now * 1_000_000,
            store=IndexStore(str(self.tables.index_folder)) if self.index_in_tasks else None,
        )

    def put(self, source: Path, name: str = "", size: int = -1) -> None:
        """A file appears, or the first bytes of it."""
        target = self.inbox / (name or source.name)
        target.write_bytes(source.read_bytes()[: size if size >= 0 else None])
        os.utime(target, (self.now / 1000, self.now / 1000))

    def step(self, seconds: float = 0.1, most: int = ALL) -> bool:
        """Time passes, and there is a batch if there is anything to do."""
        self.now += int(seconds * 1000)
        start = FolderOffset.from_dict(json.loads(self.offsets[-1]))
        end = self.follower.next_offset(start, most)
        if end == start:
            return False
        self.offsets.append(json.dumps(end.to_dict()))
        self.run_last()
        return True

    def step_available(self, available: AvailableFiles, most: int) -> bool:
        """A batch of a run that ends when these files are read; False if it has ended."""
        start = FolderOffset.from_dict(json.loads(self.offsets[-1]))
        end = self.follower.next_offset(start, most, available)
        if end == start:
            return False
        self.offsets.append(json.dumps(end.to_dict()))
        self.run_last()
        return True

    def run_last(self) -> None:
        """The last batch; it may have been run before."""
        start, end = (FolderOffset.from_dict(json.loads(offset)) for offset in self.offsets[-2:])
        reader = AllTablesReader(
            str(self.inbox),
            AnalysisOptions().with_content(),
            (),
            self.waits,
            ALL,
            str(self.tables.staging),
            index_folder=str(self.tables.index_folder),
        )
        told = [reader.write(work) for work in self.follower.plan_batch(start, end)]
        self.tables.publish(len(self.offsets) - 2, told)

    def settle(self) -> None:
        """Until nothing is open any more."""
        for _ in range(10):
            self.step(self.waits.idle_timeout + 1)

    def digest(self) -> dict[str, str]:
        return digest_tables(self.out)

    def open_sessions(self) -> int:
        import pyarrow.parquet as pq

        rows: int = pq.read_table(self.out / "open_sessions").num_rows
        return rows

    def clear(self) -> None:
        for path in (self.inbox, self.out):
            shutil.rmtree(path, ignore_errors=True)
