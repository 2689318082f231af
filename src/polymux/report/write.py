"""Tables in, one HTML file out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polymux.capture.io.paths import open_private
from polymux.core.errors import UnwritableOutput
from polymux.report.budget import MAX_OCTETS, Budget
from polymux.report.load.aborted_streams import endings
from polymux.report.load.findings import find
from polymux.report.load.frame_selection import pick
from polymux.report.load.overview import look
from polymux.report.load.payloads import Payload, read_payload
from polymux.report.load.protocol_doubts import doubts
from polymux.report.load.stream_selection import choose
from polymux.report.load.tables import ReportError, Tables
from polymux.report.load.timelines import draw
from polymux.report.render.html import render
from polymux.report.render.page_model import build
from polymux.report.render.report_data import Material
from polymux.text.sanitize import visible

# How often each table is read for one report.
_READ: Final = {
    "captures": 1, "sessions": 2, "requests": 1, "streams": 2, "violations": 3, "stalls": 4,
    "timeline": 1, "frames": 1,
}  # fmt: skip
_FACTORS: Final = (1.0, 0.5, 0.2, 0.05, 0.01)


class UnwritablePage(ReportError, UnwritableOutput):
    """The page cannot be put in its place."""


@dataclass(frozen=True, slots=True)
class ReportInfo:
    """What was written: where, how large, how much of the tables it shows, what it found."""

    path: Path
    octets: int
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
    choice = Payload.parse(payload)
    tables = Tables(Path(tables_dir), progress)
    for factor in _FACTORS:
        material = _gather(tables, Budget().scaled(factor), choice)
        page = render(visible(title, 200), build(material)).encode("utf-8")
        if len(page) <= MAX_OCTETS:
            break
    else:
        raise UnwritablePage(f"{tables_dir}: the report does not fit into {MAX_OCTETS:,} octets")
    _replace(Path(out_html), page, private=choice.word != "none")
    counts = material.found.counts
    return ReportInfo(
        path=Path(out_html),
        octets=len(page),
        sessions=material.seen.session_count,
        sessions_detailed=len(material.detailed),
        frames=material.seen.sums["frames"],
        frames_shown=sum(len(picked.rows) for picked in material.frames),
        errors=counts["error"],
        warnings=counts["warning"],
        notes=counts["note"],
        stalls=counts["stall"],
    )


def rows_to_read(tables_dir: str | os.PathLike[str]) -> int:
    """About how many rows a report on these tables reads: some tables are read more than once."""
    tables = Tables(Path(tables_dir))
    return sum(tables.rows(table) * times for table, times in _READ.items())


def _gather(tables: Tables, budget: Budget, choice: Payload) -> Material:
    seen = look(tables, budget)
    detailed = seen.sessions[: budget.detailed]
    found = find(tables, seen, detailed, budget)
    found.groups += [*doubts(tables, budget), *endings(tables, budget)]
    streams = choose(tables, detailed, found, budget)
    lanes = draw(tables, detailed, streams)
    frames = pick(tables, detailed, streams, found, budget)
    wanted = {
        (group, str(row[0]), row[1])
        for group, picked in enumerate(frames)
        for row in picked.rows
        if isinstance(row[1], int)
    }
    ids = [session.id for session in detailed]
    shown = read_payload(tables, ids, wanted, choice, budget.payload)
    material = Material(seen, found, detailed, streams, lanes, frames, shown, budget)
    for name in tables.missing:
        material.notes.append(f"The table {name} is missing, so what it holds is not shown.")
    if choice.word != "none" and not shown:
        material.notes.append("Payload was asked for, but there is no content to show.")
    return material


def _replace(path: Path, page: bytes, private: bool) -> None:
    """Put the page in place at once: a reader sees the old file or the new one, never half."""
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)
        with open_private(part) if private else part.open("wb") as file:
            file.write(page)
        os.replace(part, path)
    except OSError as failure:
        part.unlink(missing_ok=True)
        raise UnwritablePage(f"{path}: cannot be written: {failure.strerror}") from None
