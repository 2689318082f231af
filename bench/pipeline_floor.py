"""The floor of the pipeline: the same work in plain processes, without Spark.

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
GROUPS_PER_CORE = 4  # so that all processes end at about the same time


@dataclass
class FlowGroup:
    """The flows of one process."""

    flows: list[list[FlowRefs]]
    out: str
    number: int


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """One warm process per core."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(CORES, mp_context=context) as pool:
        list(pool.map(abs, range(CORES * 4)))
        yield pool


def read(path: str) -> int:
    """Read a file in pieces of a megabyte, which stay in the processor's cache: the fastest way."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 20):
            total += len(data)
    return total


def read_whole(path: str) -> int:
    """Read a complete file into memory."""
    return len(Path(path).read_bytes())


def count_packets(path: str) -> int:
    """Scan the packet headers of a file. Return the number of packets."""
    return index_file(path).summary.packets


def index(path: str) -> tuple[FileSummary, list[FlowRefs]]:
    found = index_file(path)
    return found.summary, found.rows


def write_tables(group: FlowGroup) -> int:
    """Analyze the flows and write their rows. Return the number of frames."""
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
    """Reassemble the flows and count the bytes."""
    size = 0
    with FilePool() as files:
        for rows in group.flows:
            for session in sessions_of(rows, files.reader):
                size += sum(len(batch.data) for batch in session.batches())
    return size


def run_over_flows(
    pool: ProcessPoolExecutor, paths: Sequence[str], out: str, act: Callable[[FlowGroup], int]
) -> tuple[int, list[FileSummary]]:
    """Index the files in parallel, then run `act` for all flows. Return the sum of its results."""
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
    """Write all tables of these captures. Return the number of frames."""
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
