"""Findings: errors, warnings, stalls, then notes.

A finding is a rule or a cause with all its occurrences: their number, their total duration, and the
most significant ones, each as a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polymux.report.budget import Budget
from polymux.report.load.overview import Overview, SessionRow
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Row, TopRows, index_in
from polymux.report.render.rule_pages import RulePage, rule_pages
from polymux.report.render.wording import STALL_HEADLINES, capture_sentence, gap_sentence
from polymux.text.sanitize import escape_hidden

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
class FindingGroup:
    """One rule or cause. `rows` are the occurrences shown, as read from the table."""

    level: str  # error, warning, stall, note
    title: str
    rule: str | None = None
    cause: str | None = None
    count: int = 0
    possible_count: int = 0
    duration_us: int = 0
    rows: list[Row] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)  # shown instead of rows

    def sort_key(self) -> tuple[int, int, str]:
        """Sort key: worst first; a protocol mismatch before everything else."""
        level = -1 if self.cause == "protocol" else _LEVELS.index(self.level)
        return (level, -(self.duration_us or self.count), self.title)


@dataclass(slots=True)
class Findings:
    """All findings, and the violations and stalls drawn on the timelines of detailed sessions."""

    groups: list[FindingGroup] = field(default_factory=list)
    left_out_count: int = 0  # findings over the budget
    rule_pages: dict[str, RulePage] = field(default_factory=dict)
    session_violations: list[list[Row]] = field(default_factory=list)
    session_stalls: list[list[Row]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # violations by severity, and stalls


def load_findings(
    tables: Tables, overview: Overview, detailed: list[SessionRow], budget: Budget
) -> Findings:
    """Read `violations` and `stalls` twice: first to count, then to select what is shown."""
    found = Findings(counts=dict.fromkeys(_LEVELS, 0))
    rules = _count_violations(tables, overview.sessions, found)
    causes = _count_stalls(tables, found)
    ids = [session.id for session in detailed]
    _select_violations(tables, rules, ids, budget, found)
    _select_stalls(tables, causes, ids, budget, found)
    _add_capture_findings(overview, budget, found)
    found.rule_pages = rule_pages([finding.rule for finding in found.groups if finding.rule])
    found.groups.sort(key=FindingGroup.sort_key)
    found.left_out_count = max(0, len(found.groups) - budget.findings)
    del found.groups[budget.findings :]
    return found


def _count_violations(
    tables: Tables, sessions: list[SessionRow], findings: Findings
) -> dict[str, FindingGroup]:
    import pyarrow as pa

    ids = [session.id for session in sessions]
    rules: dict[str, FindingGroup] = {}
    columns = ("session_id", "rule", "severity", "certainty")
    for batch in tables.batches("violations", columns):
        table = pa.table([index_in(batch["session_id"], ids), *batch.columns[1:]], names=columns)
        grouped = table.group_by(list(columns)).aggregate([([], "count_all")]).to_pydict()
        for session, rule, severity, certainty, count in zip(
            *(grouped[name] for name in (*columns, "count_all")), strict=True
        ):
            level = severity if severity in _LEVELS else "note"
            finding = rules.setdefault(rule, FindingGroup(level, rule, rule=rule))
            finding.level = min(finding.level, level, key=_LEVELS.index)
            finding.count += count
            finding.possible_count += count if certainty == "possible" else 0
            findings.counts[level] += count
            if session is not None:
                row = sessions[session]
                row.errors += count if level == "error" else 0
                row.warnings += count if level == "warning" else 0
                row.notes += count if level == "note" else 0
    return rules


def _count_stalls(tables: Tables, findings: Findings) -> dict[str, FindingGroup]:
    import pyarrow as pa

    causes: dict[str, FindingGroup] = {}
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
                cause, FindingGroup("stall", STALL_HEADLINES[cause], cause=cause)
            )
            finding.count += count
            finding.duration_us += lasted or 0
            findings.counts["stall"] += count
    return causes


def _select_violations(
    tables: Tables,
    rules: dict[str, FindingGroup],
    ids: list[str],
    budget: Budget,
    findings: Findings,
) -> None:
    """Select the first violations of each rule, and the most severe of each detailed session."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = sorted(rules)
    shown = TopRows([budget.examples_per_finding] * len(names), key_columns=4)
    each = budget.violation_marks // max(1, len(ids))
    marks = TopRows([each] * len(ids), key_columns=4)
    for batch in tables.batches("violations", VIOLATION_COLUMNS):
        at = pc.fill_null(batch["time"], 0)
        shown.add(index_in(batch["rule"], names), at, batch)
        light = pc.fill_null(index_in(batch["severity"], ("error", "warning")), 2)
        rank = pc.add(pc.multiply(light, 1 << 60), pc.min_element_wise(at, pa.scalar(1 << 59)))
        marks.add(index_in(batch["session_id"], ids), rank, batch)
    for group, name in enumerate(names):
        rules[name].rows = shown.rows(group)
        findings.groups.append(rules[name])
    findings.session_violations = [marks.rows(group) for group in range(len(ids))]


def _select_stalls(
    tables: Tables,
    causes: dict[str, FindingGroup],
    ids: list[str],
    budget: Budget,
    findings: Findings,
) -> None:
    """Select the longest stalls of each cause, and of each detailed session."""
    import pyarrow.compute as pc

    shown = TopRows([budget.examples_per_finding] * len(_CAUSES), key_columns=4)
    each = budget.stalls // max(1, len(ids))
    drawn = TopRows([each] * len(ids), key_columns=4)
    for batch in tables.batches("stalls", STALL_COLUMNS):
        group = index_in(batch["cause"], _CAUSES)
        rank = pc.negate(pc.fill_null(batch["duration_us"], 0))
        shown.add(group, rank, batch)
        session = pc.if_else(pc.is_valid(group), index_in(batch["session_id"], ids), None)
        drawn.add(session, rank, batch)
    for group, cause in enumerate(_CAUSES):
        if cause in causes:
            causes[cause].rows = shown.rows(group)
            findings.groups.append(causes[cause])
    findings.session_stalls = [drawn.rows(group) for group in range(len(ids))]


def _add_capture_findings(overview: Overview, budget: Budget, findings: Findings) -> None:
    for status, level in (("unreadable", "error"), ("damaged", "error"), ("truncated", "warning")):
        count = overview.capture_statuses[status]
        if not count:
            continue
        files = "1 file is" if count == 1 else f"{count:,} files are"
        finding = FindingGroup(level, f"{files} {status}", cause="capture", count=count)
        for row in overview.captures:
            if row["status"] == status and len(finding.sentences) < budget.examples_per_finding:
                finding.sentences.append(_capture_line(row))
        findings.groups.append(finding)
    if overview.missing_bytes:
        finding = FindingGroup(
            "note",
            "Bytes are missing from the capture",
            cause="gap",
            count=overview.sessions_with_gaps,
        )
        finding.sentences.append(gap_sentence(overview.missing_bytes, overview.sessions_with_gaps))
        findings.groups.append(finding)


def _capture_line(row: dict[str, object]) -> str:
    offset = row["error_offset"]
    return capture_sentence(
        str(row["file"]),
        str(row["status"]),
        escape_hidden(str(row["error"])) if row["error"] else None,
        offset if isinstance(offset, int) else None,
    )
