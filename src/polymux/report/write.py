"""Tables in, one HTML file out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polymux.capture.io.atomic_write import DEFAULT_FILE_MODE, write_atomically
from polymux.capture.io.paths import PRIVATE_FILE
from polymux.core.errors import UnwritableOutput
from polymux.report.budget import MAX_REPORT_BYTES, Budget
from polymux.report.load.aborted_streams import load_stream_endings
from polymux.report.load.findings import load_findings
from polymux.report.load.frame_selection import select_frames
from polymux.report.load.overview import load_overview
from polymux.report.load.payloads import PayloadOption, load_payloads
from polymux.report.load.protocol_doubts import load_protocol_mismatches
from polymux.report.load.stream_selection import select_streams
from polymux.report.load.tables import ReportError, Tables
from polymux.report.load.timelines import load_timelines
from polymux.report.render.html import render
from polymux.report.render.page_model import build_page_model
from polymux.report.render.report_data import ReportData
from polymux.text.sanitize import escape_hidden

# How often each table is read for one report.
_READS_PER_TABLE: Final = {
    "captures": 1, "sessions": 2, "requests": 1, "streams": 2, "violations": 3, "stalls": 4,
    "timeline": 1, "frames": 1,
}  # fmt: skip
_BUDGET_FACTORS: Final = (1.0, 0.5, 0.2, 0.05, 0.01)


class UnwritableReport(ReportError, UnwritableOutput):
    """The page cannot be put in its place."""


@dataclass(frozen=True, slots=True)
class ReportInfo:
    """What was written: where, how large, how much of the tables it shows, what it found."""

    path: Path
    size_bytes: int
    sessions: int
    sessions_detailed: int
    frames: int
    frames_shown: int
    errors: int
    warnings: int
    notes: int
    stalls: int


def write_report(
    tables_dir: str | os.PathLike[str],
    out_html: str | os.PathLike[str],
    *,
    title: str = "polymux report",
    payload: str = "none",
    progress: Callable[[int], None] | None = None,
) -> ReportInfo:
    """Write the report on the tables under `tables_dir` to `out_html`, replacing it whole.

    The file is at most 5 MB whatever the size of the tables, needs no network and runs nothing
    that came from a capture. `payload` is `none`, `hash`, `head:N` or `full`, and needs the
    `content` table; with any but `none` only the file's owner can read it (mode 0600). `progress`
    is told how many more rows were read. Raises ReportError if a table cannot be read, MissingExtra
    if pyarrow or jinja2 is not installed; a report that stood there before is then still whole.
    """
    choice = PayloadOption.parse(payload)
    tables = Tables(Path(tables_dir), progress)
    for factor in _BUDGET_FACTORS:
        material = _load_report_data(tables, Budget().scaled(factor), choice)
        page = render(escape_hidden(title, 200), build_page_model(material)).encode("utf-8")
        if len(page) <= MAX_REPORT_BYTES:
            break
    else:
        raise UnwritableReport(
            f"{tables_dir}: the report does not fit into {MAX_REPORT_BYTES:,} bytes"
        )
    _replace(Path(out_html), page, private=choice.mode != "none")
    counts = material.findings.counts
    return ReportInfo(
        path=Path(out_html),
        size_bytes=len(page),
        sessions=material.overview.session_count,
        sessions_detailed=len(material.detailed),
        frames=material.overview.totals["frames"],
        frames_shown=sum(len(picked.rows) for picked in material.frames),
        errors=counts["error"],
        warnings=counts["warning"],
        notes=counts["note"],
        stalls=counts["stall"],
    )


def rows_to_read(tables_dir: str | os.PathLike[str]) -> int:
    """About how many rows a report on these tables reads: some tables are read more than once."""
    tables = Tables(Path(tables_dir))
    return sum(tables.row_count(table) * times for table, times in _READS_PER_TABLE.items())


def _load_report_data(tables: Tables, budget: Budget, payload_option: PayloadOption) -> ReportData:
    seen = load_overview(tables, budget)
    detailed = seen.sessions[: budget.detailed_sessions]
    found = load_findings(tables, seen, detailed, budget)
    found.groups += [
        *load_protocol_mismatches(tables, budget),
        *load_stream_endings(tables, budget),
    ]
    streams = select_streams(tables, detailed, found, budget)
    lanes = load_timelines(tables, detailed, streams)
    frames = select_frames(tables, detailed, streams, found, budget)
    wanted = {
        (group, str(row[0]), row[1])
        for group, picked in enumerate(frames)
        for row in picked.rows
        if isinstance(row[1], int)
    }
    ids = [session.id for session in detailed]
    shown = load_payloads(tables, ids, wanted, payload_option, budget.payload_chars)
    material = ReportData(seen, found, detailed, streams, lanes, frames, shown, budget)
    for name in tables.missing_tables:
        material.notes.append(f"The table {name} is missing, so what it holds is not shown.")
    if payload_option.mode != "none" and not shown:
        material.notes.append("Payload was asked for, but there is no content to show.")
    return material


def _replace(path: Path, page: bytes, private: bool) -> None:
    """Put the page in place at once: a reader sees the old file or the new one, never half."""
    mode = PRIVATE_FILE if private else DEFAULT_FILE_MODE
    try:
        write_atomically(path, page, sync=False, mode=mode)
    except OSError as failure:
        raise UnwritableReport(f"{path}: cannot be written: {failure.strerror}") from None
