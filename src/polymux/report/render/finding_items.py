"""Findings as the page shows them: each with its occurrences in words, and where to look."""

from __future__ import annotations

from polymux.report.load.aborted_streams import HEADLINES, ending_item
from polymux.report.load.findings import STALL_COLUMNS, VIOLATION_COLUMNS, Finding
from polymux.report.load.overview import SessionRow
from polymux.report.load.protocol_doubts import DOUBTED, doubt_item
from polymux.report.load.stream_selection import StreamRow
from polymux.report.load.top_rows import Row
from polymux.report.render.report_data import KEY, SIDES, Json, Material, place_of
from polymux.report.render.wording import (
    Stall,
    is_window_limited,
    stall_sentence,
    violation_sentence,
    window_sentence,
)


def findings_json(material: Material, rules: dict[str, int]) -> list[Json]:
    """All findings in order; `rules` gives each rule its place in the page's list."""
    made = [(finding, _items(material, finding)) for finding in material.found.groups]
    window = _window_finding(material)
    if window is not None:
        made.append(window)
    made.sort(key=lambda pair: pair[0].order())
    return [_finding(material, finding, items, rules) for finding, items in made]


def violation_text(material: Material, named: Json) -> str:
    """The sentence for a row of `violations`."""
    return violation_sentence(
        material.clean(named["rule"]) or "",
        str(named["sender"]),
        material.clean(named["stream"], KEY),
        material.clean(named["detail"]),
        str(named["certainty"]),
    )


def stall_text(material: Material, named: Json) -> str:
    """The sentence for a row of `stalls`, with the name of the stream it waited behind."""
    culprit = material.stream(named["session_id"], named["blocking_stream"])
    sender, lasted = str(named["sender"]), named["duration_us"]
    return stall_sentence(
        Stall(
            stream=material.clean(named["stream"], KEY) or "",
            sender=sender,
            duration_us=lasted if isinstance(lasted, int) else 0,
            cause=str(named["cause"]),
            culprit=material.clean(named["blocking_stream"], KEY),
            culprit_name=(material.clean(culprit.row["name"], KEY) or "") if culprit else "",
        )
    )


def _finding(
    material: Material, finding: Finding, items: list[Json], rules: dict[str, int]
) -> Json:
    page = material.found.pages.get(finding.rule or "")
    return {
        "level": finding.level,
        "title": page.sentence if page else None if finding.rule else finding.title,
        "rule": rules[finding.rule] if finding.rule else None,
        "cause": finding.cause,
        "count": finding.count,
        "possible": finding.possible,
        "lasted": finding.duration_us,
        "items": items,
    }


def _items(material: Material, finding: Finding) -> list[Json]:
    if finding.rule:
        return [_violation(material, row) for row in finding.rows]
    if finding.cause in HEADLINES:
        return [ending_item(material, row) for row in finding.rows]
    if finding.cause == DOUBTED:
        return [doubt_item(material, row) for row in finding.rows]
    if finding.rows:
        return [_stall(material, row) for row in finding.rows]
    return [{"text": text} for text in finding.sentences]


def _violation(material: Material, row: Row) -> Json:
    named = dict(zip(VIOLATION_COLUMNS, row, strict=True))
    return {
        "text": violation_text(material, named),
        "index": named["frame_index"],
        **place_of(material, named["session_id"], named["stream"], named["time"]),
    }


def _stall(material: Material, row: Row) -> Json:
    named = dict(zip(STALL_COLUMNS, row, strict=True))
    return {
        "text": stall_text(material, named),
        "detail": material.clean(named["detail"]),
        "lasted": named["duration_us"],
        **place_of(material, named["session_id"], named["stream"], named["started_at"]),
    }


def _window_finding(material: Material) -> tuple[Finding, list[Json]] | None:
    """Streams that went as fast as their window let them, and no faster: a pace, not a stall."""
    finding = Finding("note", "Streams were held to the pace of their window", cause="window")
    items: list[tuple[int, Json]] = []
    for session, streams in zip(material.detailed, material.streams, strict=True):
        for stream in streams:
            for side in SIDES:
                text = _window_text(session, stream, side)
                if text is None:
                    continue
                blocked = stream.number(f"blocked_us_{side}") or 0
                finding.count += 1
                finding.duration_us += blocked
                first, last = stream.number(f"first_at_{side}"), stream.number(f"last_at_{side}")
                place = place_of(material, session.id, stream.key, first)
                lasted = (last or 0) - (first or 0)
                items.append((-blocked, {"text": text, "lasted": lasted, **place}))
    items.sort(key=lambda item: item[0])
    shown = [item for _, item in items[: material.budget.examples]]
    return (finding, shown) if finding.count else None


def _window_text(session: SessionRow, stream: StreamRow, side: str) -> str | None:
    window, rtt = stream.number(f"peak_in_flight_bytes_{side}"), session.rtt_us
    first, last = stream.number(f"first_at_{side}"), stream.number(f"last_at_{side}")
    if first is None or last is None or window is None or rtt is None:
        return None
    sent = stream.number(f"bytes_{side}") or 0
    if not is_window_limited(window, rtt, sent, last - first, stream.number(f"blocked_us_{side}")):
        return None
    return window_sentence(window, rtt)
