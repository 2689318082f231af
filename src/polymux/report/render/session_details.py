"""The details of one session as JSON: timelines, totals, streams, violations, stalls, frames.

Times are microseconds from the session's start; parallel lists keep the page small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from polymux.analysis.schema.tables import SIDES
from polymux.report.load.findings import STALL_COLUMNS, VIOLATION_COLUMNS
from polymux.report.load.frame_selection import FRAME_COLUMNS
from polymux.report.load.overview import SessionRow
from polymux.report.load.stream_selection import StreamRow
from polymux.report.render.finding_items import stall_row_text, violation_row_text
from polymux.report.render.report_data import MAX_KEY_CHARS, Json, ReportData, us_since_start
from polymux.report.render.wording import STALL_HEADLINES

_CAUSES: Final = tuple(STALL_HEADLINES)
_BOTH_SIDES: Final = {  # key on the page -> stem of the column that exists once for each side
    "bytes": "bytes", "units": "units", "frames": "frames", "credit": "credit_granted",
    "inFlight": "peak_in_flight_bytes", "blocked": "blocked_us", "holBlocked": "hol_blocked_us",
}  # fmt: skip
_LEVELS: Final = ("error", "warning", "note")
_VERDICTS: Final = {"clean": "0", "crossed": "1", "violation": "2"}


def session_details_json(
    data: ReportData, group: int, rules: dict[str, int], kinds: dict[str, int]
) -> Json:
    """The details of a session; `kinds` collects the names of frame kinds of all sessions."""
    session, timelines = data.detailed[group], data.timelines[group]
    streams = data.streams[group]
    stream_index = {stream.key: index for index, stream in enumerate(streams)}
    return {
        "width": timelines.width_us,
        "total": [timelines.total_bytes(0), timelines.total_bytes(1)],
        "lanes": [
            [lane.encode(0), lane.encode(1), lane.blocked_spans(timelines.width_us)]
            for lane in timelines.timelines
        ],
        "rest": [timelines.other_streams.encode(0), timelines.other_streams.encode(1)],
        "streams": _stream_columns(data, session, streams),
        "marks": _violation_marks(data, group, stream_index, rules),
        "stalls": _stalls(data, group, stream_index),
        "frames": _frame_columns(data, group, stream_index, kinds),
        "allFrames": data.frames[group].complete,
    }


def _violation_marks(
    data: ReportData, group: int, stream_index: dict[str, int], rules: dict[str, int]
) -> list[list[object]]:
    made: list[list[object]] = []
    for row in data.findings.session_violations[group]:
        mark = dict(zip(VIOLATION_COLUMNS, row, strict=True))
        made.append(
            [
                us_since_start(data.detailed[group], mark["time"]),
                stream_index.get(str(mark["stream"]), -1),
                _side(mark["sender"]),
                rules[str(mark["rule"])],
                mark["frame_index"],
                _LEVELS.index(str(mark["severity"])) if mark["severity"] in _LEVELS else 2,
                violation_row_text(data, mark),
            ]
        )
    return made


def _stalls(data: ReportData, group: int, stream_index: dict[str, int]) -> list[list[object]]:
    made: list[list[object]] = []
    for row in data.findings.session_stalls[group]:
        stall = dict(zip(STALL_COLUMNS, row, strict=True))
        made.append(
            [
                us_since_start(data.detailed[group], stall["started_at"]),
                stall["duration_us"],
                stream_index.get(str(stall["stream"]), -1),
                _side(stall["sender"]),
                _CAUSES.index(str(stall["cause"])),
                stall_row_text(data, stall),
            ]
        )
    return made


def _stream_columns(
    data: ReportData, session: SessionRow, streams: list[StreamRow]
) -> dict[str, Sequence[object]]:
    def each(column: str) -> list[object]:
        return [stream.row[column] for stream in streams]

    def instants(column: str) -> list[int | None]:
        return [us_since_start(session, value) for value in each(column)]

    made: dict[str, Sequence[object]] = {
        "key": [data.escaped(stream.key, MAX_KEY_CHARS) for stream in streams],
        "name": [data.escaped(name) for name in each("name")],
        "error": [data.escaped(error) for error in each("error")],
        "lane": [int(stream.has_timeline) for stream in streams],
        "found": [[stream.errors, stream.warnings, stream.stalls] for stream in streams],
        "ending": each("ending"),
        "resetBy": each("reset_by"),
    }
    for name in ("opened_at", "accepted_at", "closed_at"):
        made[name[:-3]] = instants(name)
    for side, letter in zip(SIDES, "DA", strict=True):
        made["first" + letter] = instants(f"first_at_{side}")
        made["last" + letter] = instants(f"last_at_{side}")
        for key, stem in _BOTH_SIDES.items():
            made[key + letter] = each(f"{stem}_{side}")
    return made


def _frame_columns(
    data: ReportData, group: int, stream_index: dict[str, int], kinds: dict[str, int]
) -> Json:
    session, rows = data.detailed[group], data.frames[group].rows
    column = {name: [row[i] for row in rows] for i, name in enumerate(FRAME_COLUMNS)}
    made: Json = {
        "at": _deltas(us_since_start(session, at) for at in column["time"]),
        "side": "".join("da"[_side(sender)] for sender in column["sender"]),
        "verdict": "".join(_VERDICTS.get(str(word), "0") for word in column["verdict"]),
        "kind": [kinds.setdefault(str(kind), len(kinds)) for kind in column["kind"]],
        "stream": [
            -1 if key is None else stream_index.get(str(key), -2) for key in column["stream"]
        ],
        "index": column["frame_index"],
        "offset": column["byte_offset"],
        "size": column["size"],
        "payload": column["payload_bytes"],
        "amount": column["amount"],
    }
    if data.payloads:
        made["data"] = [
            data.payloads.get((group, str(row[0]), row[1])) if isinstance(row[1], int) else None
            for row in rows
        ]
    return made


def _deltas(values: Iterable[int | None]) -> list[int]:
    """Differences of consecutive values, which need fewer digits."""
    steps: list[int] = []
    before = 0
    for value in values:
        now = before if value is None else value
        steps.append(now - before)
        before = now
    return steps


def _side(sender: object) -> int:
    return 1 if sender == "acceptor" else 0
