"""A program that analyzes a capture with a reassembly that loses or doubles bytes.

    python -m tests.spark.batch.broken_reassembly CAPTURE FOLDER

Prints what came of each kind of damage, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import read_table
from polymux.capture import CaptureLimits, TcpSession, index_file
from polymux.capture.tcp.sessions import StreamBatch
from polymux.cli.commands.analyze import print_summary
from polymux.spark.batch.analyze_stage import analyze_flows
from polymux.spark.batch.pipeline import Analysis
from polymux.spark.batch.reference_shuffle import (
    MIN_BUCKETS,
    FlowSelection,
    ReferenceReader,
    ReferenceWriter,
)


def lost(kept: list[StreamBatch]) -> list[StreamBatch]:
    """One batch is missing."""
    return kept[1:]


def doubled(kept: list[StreamBatch]) -> list[StreamBatch]:
    """One batch comes twice."""
    return [kept[0], *kept]


def short(kept: list[StreamBatch]) -> list[StreamBatch]:
    """One piece is a byte short."""
    batch = kept[0]
    first = next(n for n in range(batch.count) if batch.size[n] > 1)
    batch.size[first] -= 1
    end = sum(batch.size[n] for n in range(first + 1))
    batch.data = batch.data[:end] + batch.data[end + 1 :]
    return kept


DAMAGES = (lost, doubled, short)
_honest = TcpSession.batches


def damage(change: Callable[[list[StreamBatch]], list[StreamBatch]] | None) -> None:
    """Let sessions give damaged batches, while the count of what was captured stays right.

    None: let them be.
    """

    def batches(self: TcpSession, batch_bytes: int = 1 << 19) -> Iterator[StreamBatch]:
        kept = list(_honest(self, batch_bytes))
        yield from change(kept) if change is not None else kept

    TcpSession.batches = batches  # type: ignore[method-assign]  # what this program is for


def analyzed(capture: str, out: Path) -> Analysis:
    """The two stages of the pipeline, in this process."""
    out.mkdir()
    rows = index_file(capture).rows
    with ReferenceWriter(str(out)) as writer:
        writer.add(rows)
    flows = ReferenceReader(str(out), [writer.result.name], FlowSelection(range(MIN_BUCKETS)))
    result = analyze_flows(flows, str(out), AnalysisOptions("mplex"), CaptureLimits())
    return Analysis(str(out), [], result, indexed_packets=sum(row.packets for row in rows))


def outcome(done: Analysis, out: Path) -> dict[str, object]:
    for table in ("violations", "stalls", "streams"):
        (out / table).mkdir(exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_summary(done, "")
    rows = read_table(out, "sessions").to_pylist()
    return {
        "sessions": done.total.sessions,
        "unbalanced": sorted(done.total.unbalanced),
        "conserved": done.conserved,
        "notes": {row["session_id"]: row["note"] for row in rows},
        "summary": printed.getvalue(),
    }


def main(capture: str, folder: Path) -> None:
    found = {}
    for change in (None, *DAMAGES):
        damage(change)
        name = change.__name__ if change is not None else "sound"
        found[name] = outcome(analyzed(capture, folder / name), folder / name)
    damage(None)
    missed = analyzed(capture, folder / "missed")
    missed.indexed_packets += 1
    found["missed"] = outcome(missed, folder / "missed")
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
