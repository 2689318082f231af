"""Findings as JSON for the page: sentences of their occurrences, and their locations."""

from __future__ import annotations

from polymux.analysis.schema.tables import SIDES
from polymux.report.load.findings import STALL_COLUMNS, VIOLATION_COLUMNS, FindingGroup
from polymux.report.load.overview import SessionRow
from polymux.report.load.protocol_mismatches import MISMATCH_CAUSE, mismatch_item
from polymux.report.load.stream_endings import ENDING_HEADLINES, ending_item
from polymux.report.load.stream_selection import StreamRow
from polymux.report.load.top_rows import Row
from polymux.report.render.report_data import MAX_KEY_CHARS, Json, ReportData, location_of
from polymux.report.render.wording import (
    Stall,
    is_window_limited,
    stall_sentence,
    violation_sentence,
    window_sentence,
)


def findings_json(data: ReportData, rules: dict[str, int]) -> list[Json]:
    """All findings in order; `rules` maps each rule to its index in the page's list."""
    made = [(finding, _items(data, finding)) for finding in data.findings.groups]
    window = _window_finding(data)
    if window is not None:
        made.append(window)
    made.sort(key=lambda pair: pair[0].sort_key())
    return [_finding_json(data, finding, items, rules) for finding, items in made]


def violation_row_text(data: ReportData, row: Json) -> str:
    """The sentence of a row of `violations`."""
    return violation_sentence(
        data.escaped(row["rule"]) or "",
        str(row["sender"]),
        data.escaped(row["stream"], MAX_KEY_CHARS),
        data.escaped(row["detail"]),
        str(row["certainty"]),
    )


def stall_row_text(data: ReportData, row: Json) -> str:
    """The sentence of a row of `stalls`, with the name of the blocking stream."""
    blocking = data.stream(row["session_id"], row["blocking_stream"])
    sender, duration = str(row["sender"]), row["duration_us"]
    return stall_sentence(
        Stall(
            stream=data.escaped(row["stream"], MAX_KEY_CHARS) or "",
            sender=sender,
            duration_us=duration if isinstance(duration, int) else 0,
            cause=str(row["cause"]),
            blocking_stream=data.escaped(row["blocking_stream"], MAX_KEY_CHARS),
            blocking_stream_name=(data.escaped(blocking.row["name"], MAX_KEY_CHARS) or "")
            if blocking
            else "",
        )
    )


def _finding_json(
    data: ReportData, finding: FindingGroup, items: list[Json], rules: dict[str, int]
) -> Json:
    page = data.findings.rule_pages.get(finding.rule or "")
    return {
        "level": finding.level,
        "title": page.sentence if page else None if finding.rule else finding.title,
        "rule": rules[finding.rule] if finding.rule else None,
        "cause": finding.cause,
        "count": finding.count,
        "possible": finding.possible_count,
        "lasted": finding.duration_us,
        "items": items,
    }


def _items(data: ReportData, finding: FindingGroup) -> list[Json]:
    if finding.rule:
        return [_violation_item(data, row) for row in finding.rows]
    if finding.cause in ENDING_HEADLINES:
        return [ending_item(data, row) for row in finding.rows]
    if finding.cause == MISMATCH_CAUSE:
        return [mismatch_item(data, row) for row in finding.rows]
    if finding.rows:
        return [_stall_item(data, row) for row in finding.rows]
    return [{"text": text} for text in finding.sentences]


def _violation_item(data: ReportData, row: Row) -> Json:
    named = dict(zip(VIOLATION_COLUMNS, row, strict=True))
    return {
        "text": violation_row_text(data, named),
        "index": named["frame_index"],
        **location_of(data, named["session_id"], named["stream"], named["time"]),
    }


def _stall_item(data: ReportData, row: Row) -> Json:
    named = dict(zip(STALL_COLUMNS, row, strict=True))
    return {
        "text": stall_row_text(data, named),
        "detail": data.escaped(named["detail"]),
        "lasted": named["duration_us"],
        **location_of(data, named["session_id"], named["stream"], named["started_at"]),
    }


def _window_finding(data: ReportData) -> tuple[FindingGroup, list[Json]] | None:
    """Streams whose window limited their throughput, which is not a stall."""
    finding = FindingGroup("note", "Streams were limited by their window", cause="window")
    items: list[tuple[int, Json]] = []
    for session, streams in zip(data.detailed, data.streams, strict=True):
        for stream in streams:
            for side in SIDES:
                text = _window_text(session, stream, side)
                if text is None:
                    continue
                blocked = stream.integer(f"blocked_us_{side}") or 0
                finding.count += 1
                finding.duration_us += blocked
                first, last = stream.integer(f"first_at_{side}"), stream.integer(f"last_at_{side}")
                place = location_of(data, session.id, stream.key, first)
                lasted = (last or 0) - (first or 0)
                items.append((-blocked, {"text": text, "lasted": lasted, **place}))
    items.sort(key=lambda item: item[0])
    shown = [item for _, item in items[: data.budget.examples_per_finding]]
    return (finding, shown) if finding.count else None


def _window_text(session: SessionRow, stream: StreamRow, side: str) -> str | None:
    window, rtt = stream.integer(f"peak_in_flight_bytes_{side}"), session.rtt_us
    first, last = stream.integer(f"first_at_{side}"), stream.integer(f"last_at_{side}")
    if first is None or last is None or window is None or rtt is None:
        return None
    sent = stream.integer(f"bytes_{side}") or 0
    if not is_window_limited(window, rtt, sent, last - first, stream.integer(f"blocked_us_{side}")):
        return None
    return window_sentence(window, rtt)
