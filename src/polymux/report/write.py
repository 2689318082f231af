"""Write the report of an analysis to one HTML file."""

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
from polymux.report.load.findings import load_findings
from polymux.report.load.frame_selection import select_frames
from polymux.report.load.overview import load_overview
from polymux.report.load.payloads import PayloadOption, load_payloads
from polymux.report.load.protocol_mismatches import load_protocol_mismatches
from polymux.report.load.stream_endings import load_stream_endings
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
    """The report file cannot be written."""


@dataclass(frozen=True, slots=True)
class ReportInfo:
    """What was written: path, size, how much of the tables it shows, and its findings."""

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
    """Write the report of the tables under `tables_dir` to `out_html`, replacing it atomically.

    The file has at most 5 MB whatever the size of the tables, needs no network and executes nothing
    from a capture.

    Args:
        tables_dir: the output directory of an analysis.
        out_html: the file to write.
        title: title of the page.
        payload: content shown of each frame: `none`, `hash`, `head:N` or `full`. Any but `none`
            needs the `content` table and makes the file readable by its owner only (mode 0600).
        progress: called with the number of rows read since the last call.

    Returns:
        What was written.

    Raises:
        ReportError: a table cannot be read, or the file cannot be written. An existing report is
            left unchanged.
        MissingExtra: pyarrow or jinja2 is not installed.
    """
    payload_option = PayloadOption.parse(payload)
    tables = Tables(Path(tables_dir), progress)
    for factor in _BUDGET_FACTORS:
        data = _load_report_data(tables, Budget().scaled(factor), payload_option)
        page = render(escape_hidden(title, 200), build_page_model(data)).encode("utf-8")
        if len(page) <= MAX_REPORT_BYTES:
            break
    else:
        raise UnwritableReport(
            f"{tables_dir}: the report does not fit into {MAX_REPORT_BYTES:,} bytes"
        )
    _replace(Path(out_html), page, private=payload_option.mode != "none")
    counts = data.findings.counts
    return ReportInfo(
        path=Path(out_html),
        size_bytes=len(page),
        sessions=data.overview.session_count,
        sessions_detailed=len(data.detailed),
        frames=data.overview.totals["frames"],
        frames_shown=sum(len(selected.rows) for selected in data.frames),
        errors=counts["error"],
        warnings=counts["warning"],
        notes=counts["note"],
        stalls=counts["stall"],
    )


def rows_to_read(tables_dir: str | os.PathLike[str]) -> int:
    """Approximate number of rows that `write_report` reads; it reads some tables more than once."""
    tables = Tables(Path(tables_dir))
    return sum(tables.row_count(table) * times for table, times in _READS_PER_TABLE.items())


def _load_report_data(tables: Tables, budget: Budget, payload_option: PayloadOption) -> ReportData:
    overview = load_overview(tables, budget)
    detailed = overview.sessions[: budget.detailed_sessions]
    findings = load_findings(tables, overview, detailed, budget)
    findings.groups += [
        *load_protocol_mismatches(tables, budget),
        *load_stream_endings(tables, budget),
    ]
    streams = select_streams(tables, detailed, findings, budget)
    timelines = load_timelines(tables, detailed, streams)
    frames = select_frames(tables, detailed, streams, findings, budget)
    wanted = {
        (group, str(row[0]), row[1])
        for group, selected in enumerate(frames)
        for row in selected.rows
        if isinstance(row[1], int)
    }
    ids = [session.id for session in detailed]
    payloads = load_payloads(tables, ids, wanted, payload_option, budget.payload_chars)
    data = ReportData(overview, findings, detailed, streams, timelines, frames, payloads, budget)
    for name in tables.missing_tables:
        data.notes.append(f"The table {name} is missing, so what it holds is not shown.")
    if payload_option.mode != "none" and not payloads:
        data.notes.append("Payload was requested, but there is no content to show.")
    return data


def _replace(path: Path, page: bytes, private: bool) -> None:
    """Put the page in place at once: a reader sees the old file or the new one, never half."""
    mode = PRIVATE_FILE if private else DEFAULT_FILE_MODE
    try:
        write_atomically(path, page, sync=False, mode=mode)
    except OSError as failure:
        raise UnwritableReport(f"{path}: cannot be written: {failure.strerror}") from None
