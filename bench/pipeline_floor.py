"""What the pipeline is held against: the same work in plain processes, without Spark.

`python -m bench.pipeline_floor OUT CAPTURE...` writes all tables of the captures.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import TableWriter, write_empty_tables
from polymux.analysis.session.analyzer import analyze_flow
from polymux.capture import FilePool, FileSummary, FlowRefs, index_file, sessions_of

CORES = os.cpu_count() or 1
GROUPS_PER_CORE = 4  # parts of the flows for each process, so that all end at about the same time


@dataclass
class FlowGroup:
    """One process's part of the flows."""

    flows: list[list[FlowRefs]]
    out: str
    number: int


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """As many as there are cores, started and warm."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(CORES, mp_context=context) as pool:
        list(pool.map(abs, range(CORES * 4)))
        yield pool


def read(path: str) -> int:
    """Read a file, a megabyte of bytes after the other, and do nothing with them. They are gone
    before they leave the processor's cache: a file cannot be read faster."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 20):
            total += len(data)
    return total


def read_whole(path: str) -> int:
    """Read a file into memory, where somebody could look at it."""
    return len(Path(path).read_bytes())


def count_packets(path: str) -> int:
    """Walk the packet headers of a file; its packets."""
    return index_file(path).summary.packets


def index(path: str) -> tuple[FileSummary, list[FlowRefs]]:
    found = index_file(path)
    return found.summary, found.rows


def write_tables(group: FlowGroup) -> int:
    """Walk the flows and write their rows; the frames there were."""
    frames = 0
    with FilePool() as files, TableWriter(group.out, f"part-{group.number}") as writer:
        for rows in group.flows:
            for summary in analyze_flow(
                rows, files.reader, AnalysisOptions(), writer.emit, batcher=writer.batcher
            ):
                assert summary.balanced
                frames += summary.frames
    return frames


def count_stream_bytes(group: FlowGroup) -> int:
    """Reassemble the flows and count what comes out."""
    size = 0
    with FilePool() as files:
        for rows in group.flows:
            for session in sessions_of(rows, files.reader):
                size += sum(len(batch.data) for batch in session.batches())
    return size


def run_over_flows(
    pool: ProcessPoolExecutor, paths: Sequence[str], out: str, act: Callable[[FlowGroup], int]
) -> tuple[int, list[FileSummary]]:
    """Index the files side by side, then have `act` done for all flows; the sum of its results."""
    flows: dict[bytes, list[FlowRefs]] = {}
    summaries = []
    for summary, rows in pool.map(index, paths):
        summaries.append(summary)
        for row in rows:
            flows.setdefault(row.flow, []).append(row)
    sizes = {key: sum(row.packets for row in rows) for key, rows in flows.items()}
    shares = [
        FlowGroup([], out, number) for number in range(min(len(flows), CORES * GROUPS_PER_CORE))
    ]
    loads = [0] * len(shares)
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        least = loads.index(min(loads))
        loads[least] += sizes[key]
        shares[least].flows.append(flows[key])
    return sum(pool.map(act, shares)), summaries


def tables(pool: ProcessPoolExecutor, paths: Sequence[str], out: str) -> int:
    """All tables of these captures; the frames there were."""
    frames, summaries = run_over_flows(pool, paths, out, write_tables)
    with TableWriter(out, "part-captures") as writer:
        writer.add_captures(summaries)
    write_empty_tables(out)
    return frames


def main(arguments: list[str]) -> int:
    out, *paths = arguments
    Path(out).mkdir(parents=True)
    with processes() as pool:
        print(tables(pool, paths, out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
