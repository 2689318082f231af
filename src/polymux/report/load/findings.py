"""What is wrong, in the order a person needs it: errors, warnings, stalls, then the rest.

A finding is one rule or one cause with all that fell under it: how often, how long, and its most
telling occurrences, each as a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polymux.report.budget import Budget
from polymux.report.load.overview import Overview, SessionRow
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Best, Row, codes
from polymux.report.render.rule_pages import RulePage, rule_pages
from polymux.report.render.wording import STALL_HEADLINES, capture_sentence, gap_sentence
from polymux.text.sanitize import visible

VIOLATION_COLUMNS: Final = (
    "session_id",
    "sender",
    "frame_index",
    "rule",
    "byte_offset",
    "time",
    "stream",
    "severity",
    "certainty",
    "detail",
)
STALL_COLUMNS: Final = (
    "session_id",
    "stream",
    "sender",
    "started_at",
    "duration_us",
    "cause",
    "blocking_stream",
    "detail",
)
_CAUSES: Final = tuple(STALL_HEADLINES)
_LEVELS: Final = ("error", "warning", "stall", "note")


@dataclass(slots=True)
class Finding:
    """One rule or one cause. `rows` are the occurrences shown, as read from the table."""

    level: str  # error, warning, stall, note
    title: str
    rule: str | None = None
    cause: str | None = None
    count: int = 0
    possible: int = 0
    duration_us: int = 0
    rows: list[Row] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)  # where there are no rows

    def order(self) -> tuple[int, int, str]:
        """Worst first; before all else that a session was read as what it does not look like."""
        level = -1 if self.cause == "protocol" else _LEVELS.index(self.level)
        return (level, -(self.duration_us or self.count), self.title)


@dataclass(slots=True)
class Findings:
    """Everything found, and for each detailed session what is to be drawn on its lanes."""

    groups: list[Finding] = field(default_factory=list)
    left_out: int = 0  # findings beyond the budget
    pages: dict[str, RulePage] = field(default_factory=dict)
    marks: list[list[Row]] = field(default_factory=list)
    stalls: list[list[Row]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # rows of each severity, and stalls


def find(tables: Tables, seen: Overview, detailed: list[SessionRow], budget: Budget) -> Findings:
    """Read `violations` twice and `stalls` twice: counts first, then what to show."""
    found = Findings(counts=dict.fromkeys(_LEVELS, 0))
    rules = _count_violations(tables, seen.sessions, found)
    causes = _count_stalls(tables, found)
    ids = [session.id for session in detailed]
    _show_violations(tables, rules, ids, budget, found)
    _show_stalls(tables, causes, ids, budget, found)
    _capture_findings(seen, budget, found)
    found.pages = rule_pages([finding.rule for finding in found.groups if finding.rule])
    found.groups.sort(key=Finding.order)
    found.left_out = max(0, len(found.groups) - budget.groups)
    del found.groups[budget.groups :]
    return found


def _count_violations(
    tables: Tables, sessions: list[SessionRow], found: Findings
) -> dict[str, Finding]:
    import pyarrow as pa

    ids = [session.id for session in sessions]
    rules: dict[str, Finding] = {}
    columns = ("session_id", "rule", "severity", "certainty")
    for batch in tables.batches("violations", columns):
        table = pa.table([codes(batch["session_id"], ids), *batch.columns[1:]], names=columns)
        grouped = table.group_by(list(columns)).aggregate([([], "count_all")]).to_pydict()
        for session, rule, severity, certainty, count in zip(
            *(grouped[name] for name in (*columns, "count_all")), strict=True
        ):
            level = severity if severity in _LEVELS else "note"
            finding = rules.setdefault(rule, Finding(level, rule, rule=rule))
            finding.level = min(finding.level, level, key=_LEVELS.index)
            finding.count += count
            finding.possible += count if certainty == "possible" else 0
            found.counts[level] += count
            if session is not None:
                row = sessions[session]
                row.errors += count if level == "error" else 0
                row.warnings += count if level == "warning" else 0
                row.notes += count if level == "note" else 0
    return rules


def _count_stalls(tables: Tables, found: Findings) -> dict[str, Finding]:
    import pyarrow as pa

    causes: dict[str, Finding] = {}
    for batch in tables.batches("stalls", ("cause", "duration_us")):
        grouped = (
            pa.Table.from_batches([batch])
            .group_by("cause")
            .aggregate([("duration_us", "sum"), ([], "count_all")])
            .to_pydict()
        )
        for cause, lasted, count in zip(
            grouped["cause"], grouped["duration_us_sum"], grouped["count_all"], strict=True
        ):
            if cause not in STALL_HEADLINES:
                continue  # sender-idle is never a finding
            finding = causes.setdefault(
                cause, Finding("stall", STALL_HEADLINES[cause], cause=cause)
            )
            finding.count += count
            finding.duration_us += lasted or 0
            found.counts["stall"] += count
    return causes


def _show_violations(
    tables: Tables, rules: dict[str, Finding], ids: list[str], budget: Budget, found: Findings
) -> None:
    """Of each rule the first occurrences, and of each detailed session the heaviest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = sorted(rules)
    shown = Best([budget.examples] * len(names), keys=4)
    each = budget.marks // max(1, len(ids))
    marks = Best([each] * len(ids), keys=4)
    for batch in tables.batches("violations", VIOLATION_COLUMNS):
        at = pc.fill_null(batch["time"], 0)
        shown.offer(codes(batch["rule"], names), at, batch)
        light = pc.fill_null(codes(batch["severity"], ("error", "warning")), 2)
        rank = pc.add(pc.multiply(light, 1 << 60), pc.min_element_wise(at, pa.scalar(1 << 59)))
        marks.offer(codes(batch["session_id"], ids), rank, batch)
    for group, name in enumerate(names):
        rules[name].rows = shown.rows(group)
        found.groups.append(rules[name])
    found.marks = [marks.rows(group) for group in range(len(ids))]


def _show_stalls(
    tables: Tables, causes: dict[str, Finding], ids: list[str], budget: Budget, found: Findings
) -> None:
    """The longest of each cause, and the longest of each detailed session."""
    import pyarrow.compute as pc

    shown = Best([budget.examples] * len(_CAUSES), keys=4)
    each = budget.stalls // max(1, len(ids))
    drawn = Best([each] * len(ids), keys=4)
    for batch in tables.batches("stalls", STALL_COLUMNS):
        group = codes(batch["cause"], _CAUSES)
        rank = pc.negate(pc.fill_null(batch["duration_us"], 0))
        shown.offer(group, rank, batch)
        session = pc.if_else(pc.is_valid(group), codes(batch["session_id"], ids), None)
        drawn.offer(session, rank, batch)
    for group, cause in enumerate(_CAUSES):
        if cause in causes:
            causes[cause].rows = shown.rows(group)
            found.groups.append(causes[cause])
    found.stalls = [drawn.rows(group) for group in range(len(ids))]


def _capture_findings(seen: Overview, budget: Budget, found: Findings) -> None:
    for status, level in (("unreadable", "error"), ("damaged", "error"), ("truncated", "warning")):
        count = seen.statuses[status]
        if not count:
            continue
        files = "1 file is" if count == 1 else f"{count:,} files are"
        finding = Finding(level, f"{files} {status}", cause="capture", count=count)
        for row in seen.captures:
            if row["status"] == status and len(finding.sentences) < budget.examples:
                finding.sentences.append(_capture_line(row))
        found.groups.append(finding)
    if seen.gap_octets:
        finding = Finding("note", "Octets are missing", cause="gap", count=seen.gap_sessions)
        finding.sentences.append(gap_sentence(seen.gap_octets, seen.gap_sessions))
        found.groups.append(finding)


def _capture_line(row: dict[str, object]) -> str:
    offset = row["error_offset"]
    return capture_sentence(
        str(row["file"]),
        str(row["status"]),
        visible(str(row["error"])) if row["error"] else None,
        offset if isinstance(offset, int) else None,
    )
