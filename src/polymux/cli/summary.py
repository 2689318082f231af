"""The findings of an analysis as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 40  # lines shown; the tables hold the rest


def summary_table(out: str) -> Table:
    """What is wrong, worst first, then what was seen."""
    from ..analysis.tables_out import read_table
    from ..report.visible import visible

    sessions = {row["session_id"]: row for row in rows(read_table(out, "sessions"))}
    table = Table(title="What happened", title_justify="left")
    for name in ("session", "stream", "finding", "detail"):
        table.add_column(name, overflow="fold")
    lines = [
        (0, row["session_id"], row["stream"], f"{row['severity']}: {row['rule']}", row["detail"])
        for row in rows(read_table(out, "violations"))
        if row["severity"] != "note"
    ]
    lines += [
        (1, row["session_id"], row["stream"], f"stall: {row['cause']}", stall_text(row))
        for row in rows(read_table(out, "stalls"))
        if row["cause"] != "sender-idle"
    ]
    lines += [
        (2, row["session_id"], row["stream"], row["ending"], row["error"] or "")
        for row in rows(read_table(out, "streams"))
        if row["ending"] in ("reset", "rejected", "cancelled", "abandoned", "never-accepted")
    ]
    lines.sort(key=lambda line: (line[0], line[1], str(line[2])))
    for _, session_id, stream, finding, detail in lines[:MOST]:
        session = sessions[session_id]
        where = f"{session['protocol']} {session['dialer']} > {session['acceptor']}"
        table.add_row(
            *(Text(visible(str(text or ""))) for text in (where, stream, finding, detail))
        )
    if len(lines) > MOST:
        table.add_row("", "", f"and {len(lines) - MOST} more", "")
    if not lines:
        table.add_row("", "", "nothing wrong was found", "")
    return table


def stall_text(row: dict[str, object]) -> str:
    lasted = row["lasted_us"]
    assert isinstance(lasted, int)
    return f"{row['sender']} stood still for {lasted / 1000:.0f} ms; {row['detail'] or ''}"


def rows(table: pa.Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.to_pylist()
    return found
