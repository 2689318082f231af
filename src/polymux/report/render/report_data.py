"""What the readers gathered for one report, and the small questions the writers ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polymux.report.budget import Budget
from polymux.report.load.findings import Findings
from polymux.report.load.frame_selection import Picked
from polymux.report.load.overview import Overview, SessionRow
from polymux.report.load.stream_selection import StreamRow
from polymux.report.load.timelines import SessionLanes
from polymux.text.sanitize import visible

Json = dict[str, object]

SIDES: Final = ("dialer", "acceptor")
KEY: Final = 40  # characters of a stream's key: more than any of ours has


@dataclass(slots=True)
class Material:
    """The lists run along `detailed`, which are the first of the listed sessions."""

    seen: Overview
    found: Findings
    detailed: list[SessionRow]
    streams: list[list[StreamRow]]
    lanes: list[SessionLanes]
    frames: list[Picked]
    payload: dict[tuple[int, str, int], str]
    budget: Budget
    notes: list[str] = field(default_factory=list)
    places: dict[str, int] = field(init=False)
    keyed: list[dict[str, StreamRow]] = field(init=False)

    def __post_init__(self) -> None:
        self.places = {session.id: i for i, session in enumerate(self.seen.sessions)}
        self.keyed = [{stream.key: stream for stream in streams} for streams in self.streams]

    def clean(self, value: object, limit: int = 0) -> str | None:
        """A text of unknown origin, fit to be looked at; None stays None."""
        return None if value is None else visible(str(value), limit or self.budget.text)

    def session(self, id: object) -> SessionRow | None:
        """The listed session with this id."""
        place = self.places.get(str(id))
        return None if place is None else self.seen.sessions[place]

    def stream(self, id: object, key: object) -> StreamRow | None:
        """The listed stream with this key in the session with this id."""
        place = self.places.get(str(id))
        if place is None or place >= len(self.keyed) or key is None:
            return None
        return self.keyed[place].get(str(key))


def since(session: SessionRow, at: object) -> int | None:
    """Microseconds from the session's start; None where there is no instant."""
    return at - session.started if isinstance(at, int) else None


def place_of(material: Material, id: object, stream: object, at: object) -> Json:
    """Where to look: the session if it is listed, and the time from its start."""
    session, listed = material.session(id), material.stream(id, stream)
    return {
        "session": material.places.get(str(id)),
        "id": material.clean(id, 12),
        "stream": material.clean(stream, KEY),
        "name": material.clean(listed.row["name"], KEY) if listed else None,
        "at": since(session, at) if session else None,
    }
