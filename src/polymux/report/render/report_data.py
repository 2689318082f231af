"""The data loaded for one report, and lookups in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polymux.report.budget import Budget
from polymux.report.load.findings import Findings
from polymux.report.load.frame_selection import SelectedFrames
from polymux.report.load.overview import Overview, SessionRow
from polymux.report.load.stream_selection import StreamRow
from polymux.report.load.timelines import SessionTimelines
from polymux.text.sanitize import escape_hidden

Json = dict[str, object]

MAX_KEY_CHARS: Final = 40  # of a stream's key: more than any valid key has


@dataclass(slots=True)
class ReportData:
    """The data of one report.

    `streams`, `timelines` and `frames` have one entry for each session in `detailed`, which are the
    first of the listed sessions.
    """

    overview: Overview
    findings: Findings
    detailed: list[SessionRow]
    streams: list[list[StreamRow]]
    timelines: list[SessionTimelines]
    frames: list[SelectedFrames]
    payloads: dict[tuple[int, str, int], str]
    budget: Budget
    notes: list[str] = field(default_factory=list)
    session_index: dict[str, int] = field(init=False)
    streams_by_key: list[dict[str, StreamRow]] = field(init=False)

    def __post_init__(self) -> None:
        self.session_index = {session.id: i for i, session in enumerate(self.overview.sessions)}
        self.streams_by_key = [
            {stream.key: stream for stream in streams} for streams in self.streams
        ]

    def escaped(self, value: object, limit: int = 0) -> str | None:
        """A text from a capture with hidden characters escaped; None stays None."""
        return None if value is None else escape_hidden(str(value), limit or self.budget.text_chars)

    def session(self, id: object) -> SessionRow | None:
        """The listed session with this id."""
        index = self.session_index.get(str(id))
        return None if index is None else self.overview.sessions[index]

    def stream(self, id: object, key: object) -> StreamRow | None:
        """The listed stream with this key in the session with this id."""
        index = self.session_index.get(str(id))
        if index is None or index >= len(self.streams_by_key) or key is None:
            return None
        return self.streams_by_key[index].get(str(key))


def us_since_start(session: SessionRow, time_us: object) -> int | None:
    """Microseconds from the session's start; None if there is no time."""
    return time_us - session.started_us if isinstance(time_us, int) else None


def location_of(data: ReportData, id: object, stream: object, time_us: object) -> Json:
    """The location of a finding: the session if it is listed, the stream, and the time."""
    session, listed = data.session(id), data.stream(id, stream)
    return {
        "session": data.session_index.get(str(id)),
        "id": data.escaped(id, 12),
        "stream": data.escaped(stream, MAX_KEY_CHARS),
        "name": data.escaped(listed.row["name"], MAX_KEY_CHARS) if listed else None,
        "at": us_since_start(session, time_us) if session else None,
    }
