"""The findings of an analysis as a table for people: one line for each stream and what it met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from ..analysis.hot.figures import duration_text
from ..analysis.tables import STALL_CAUSES
from ..report.visible import visible
from .worst import GIVEN_UP

MOST = 40  # lines shown; the tables hold the rest
KEPT = 10_000  # findings told apart; the rest is only counted
CAUSES = tuple(cause for cause in STALL_CAUSES if cause != "sender-idle")  # which is no finding

Key = tuple[int, str, str, str]  # how bad, session, stream, finding


@dataclass(slots=True)
class Finding:
    """One kind of trouble on one stream."""

    count: int = 0
    lasted_us: int = 0
    detail: str = ""
    longest_us: int = -1

    def add(self, detail: str, lasted_us: int = 0) -> None:
        """Once more; the longest occurrence, or the first, is the one that is told."""
        self.count += 1
        self.lasted_us += lasted_us
        if lasted_us > self.longest_us:
            self.longest_us, self.detail = lasted_us, detail

    def text(self) -> str:
        if self.count == 1:
            return self.detail
        together = f", {duration_text(self.lasted_us * 1000)} in all" if self.lasted_us else ""
        worst = "longest" if self.lasted_us else "first"
        return f"{self.count} times{together}; the {worst}: {self.detail}"


@dataclass(slots=True)
class Summary:
    """What was found in the tables of one analysis, in bounded memory."""

    found: dict[Key, Finding] = field(default_factory=dict)
    more: int = 0  # findings beyond those that are told apart

    def add(self, key: Key, detail: str, lasted_us: int = 0) -> None:
        finding = self.found.get(key)
        if finding is None:
            if len(self.found) >= KEPT:
                self.more += 1
                return
            finding = self.found[key] = Finding()
        finding.add(detail, lasted_us)


def summarise(out: str) -> Summary:
    """Read what is wrong from the tables."""
    summary = Summary()
    columns: tuple[str, ...] = ("session_id", "stream", "severity", "rule", "detail")
    for row in chosen(out, "violations", columns, severity=("error", "warning")):
        level = 0 if row["severity"] == "error" else 1
        key = (level, *where(row), f"{row['severity']}: {row['rule']}")
        summary.add(key, str(row["detail"] or ""))
    columns = ("session_id", "stream", "sender", "cause", "lasted_us", "detail")
    for row in chosen(out, "stalls", columns, cause=CAUSES):
        lasted = row["lasted_us"]
        assert isinstance(lasted, int)
        key = (2, *where(row), f"stall: {row['cause']} ({row['sender']})")
        summary.add(key, str(row["detail"] or duration_text(lasted * 1000)), lasted)
    columns = ("session_id", "stream", "ending", "reset_by", "error")
    for row in chosen(out, "streams", columns, ending=GIVEN_UP):
        by = f" by the {row['reset_by']}" if row["reset_by"] else ""
        summary.add((3, *where(row), f"{row['ending']}{by}"), str(row["error"] or ""))
    return summary


def summary_table(out: str) -> Table:
    """What is wrong, worst first."""
    summary = summarise(out)
    table = Table(title="What happened", title_justify="left")
    for name in ("session", "stream", "finding", "detail"):
        table.add_column(name, overflow="fold")
    keys = sorted(summary.found)[:MOST]
    sessions, names = session_words(out, keys), stream_names(out, keys)
    for key in keys:
        _, session, stream, finding = key
        name = names.get((session, stream), "")
        shown = f"{stream} {name}" if name else stream
        cells = (sessions.get(session, session), shown, finding, summary.found[key].text())
        table.add_row(*(Text(visible(cell, 200)) for cell in cells))
    left = len(summary.found) - len(keys) + summary.more
    if left:
        table.add_row("", "", f"and {left} more", "")
    if not keys:
        table.add_row("", "", "nothing wrong was found", "")
    return table


def session_words(out: str, keys: list[Key]) -> dict[str, str]:
    """Protocol and ends of the sessions that are listed."""
    columns = ("session_id", "protocol", "dialer", "acceptor")
    wanted = tuple({key[1] for key in keys})
    return {
        str(row["session_id"]): f"{row['protocol']} {row['dialer']} > {row['acceptor']}"
        for row in chosen(out, "sessions", columns, session_id=wanted)
    }


def stream_names(out: str, keys: list[Key]) -> dict[tuple[str, str], str]:
    """The names of the streams that are listed, where they have any."""
    sessions, streams = tuple({key[1] for key in keys}), tuple({key[2] for key in keys})
    columns = ("session_id", "stream", "name")
    found = chosen(out, "streams", columns, session_id=sessions, stream=streams)
    return {where(row): str(row["name"]) for row in found if row["name"]}


def where(row: dict[str, object]) -> tuple[str, str]:
    return str(row["session_id"]), str(row["stream"] or "")


def chosen(
    out: str, table: str, columns: tuple[str, ...], **wanted: tuple[str, ...]
) -> Iterator[dict[str, object]]:
    """The rows whose columns have one of the `wanted` values each; some columns only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from ..analysis.arrays import array_of
    from ..analysis.tables_out import read_batches

    for batch in read_batches(out, table):
        for column, values in wanted.items():
            batch = batch.filter(pc.is_in(batch.column(column), array_of(values, pa.string())))
        yield from batch.select(columns).to_pylist()
