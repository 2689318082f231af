"""Stage 2: walk the flows of a task, one after another, and write their rows as Parquet.

Payload never travels through the JVM: references do, and the walk reads what they point to. Rows go
to files of this attempt's own; back to Spark goes one line of counts and file names.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.plan import Plan
from ..analysis.tables_out import TableWriter
from ..analysis.walk import walk_flow
from ..capture import CaptureLimits, Files
from .index_stage import flow_rows

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = "told string"
TOLD = 20  # sessions of each kind that are named one by one


@dataclass
class Outcome:
    """What one task, or the whole run, came to."""

    files: list[str] = field(default_factory=list)  # written, relative to the staging folder
    sessions: int = 0
    streams: int = 0
    frames: int = 0
    octets: int = 0
    violations: int = 0
    findings: int = 0
    stalls: int = 0
    unbalanced: list[str] = field(default_factory=list)  # sessions whose octets do not add up
    unbalanced_count: int = 0
    failures: list[str] = field(default_factory=list)  # files that could not be read on

    def add(self, other: Outcome) -> None:
        self.files += other.files
        self.sessions += other.sessions
        self.streams += other.streams
        self.frames += other.frames
        self.octets += other.octets
        self.violations += other.violations
        self.findings += other.findings
        self.stalls += other.stalls
        self.unbalanced_count += other.unbalanced_count
        self.unbalanced = (self.unbalanced + other.unbalanced)[:TOLD]
        self.failures = (self.failures + other.failures)[:TOLD]


def walker(
    staging: str, plan: Plan, limits: CaptureLimits
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function a task runs over the shuffled rows of its flows."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        outcome = walk_flows(pa.Table.from_batches(parts), staging, plan, limits)
        yield pa.record_batch({"told": pa.array([json.dumps(asdict(outcome))])})

    return run


def walk_flows(table: pa.Table, staging: str, plan: Plan, limits: CaptureLimits) -> Outcome:
    """Walk every flow in these rows; the files are this attempt's own, whatever else runs."""
    outcome = Outcome()
    writer = TableWriter(staging, f"part-{uuid.uuid4().hex}")
    with Files(limits) as files, writer:
        for rows in flow_rows(table).values():
            for summary in walk_flow(rows, files.reader, plan, writer.emit, limits=limits):
                outcome.sessions += 1
                outcome.streams += summary.streams
                outcome.frames += summary.frames
                outcome.octets += summary.octets_dialer + summary.octets_acceptor
                outcome.violations += summary.violations
                outcome.findings += summary.findings
                if not summary.balanced:
                    outcome.unbalanced_count += 1
                    outcome.unbalanced.append(summary.session_id)
                if summary.failure:
                    outcome.failures.append(summary.failure)
        rows_by_table = writer.rows()
        outcome.stalls = rows_by_table.get("stalls", 0)
        outcome.files = [
            str(Path(table_name) / f"{writer.name}.parquet") for table_name in rows_by_table
        ]
    outcome.unbalanced = outcome.unbalanced[:TOLD]
    outcome.failures = outcome.failures[:TOLD]
    return outcome
