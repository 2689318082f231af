# mypyc: compiled
"""Rows of the timeline: of one session, and of several together."""

from librt.vecs import append, vec
from mypy_extensions import i64, u8

from polymux.analysis.output.string_dictionary import LabelPlaces


class TimelineRows:
    """Columns, `count` rows of them. `stream` is a place among `streams`, -1 for none; `blocked` is
    -1 where the half needs no leave."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.streams: LabelPlaces = LabelPlaces()
        self.stream: vec[i64] = vec[i64]()
        self.sender: vec[u8] = vec[u8]()
        self.bucket: vec[i64] = vec[i64]()
        self.frames: vec[i64] = vec[i64]()
        self.content: vec[i64] = vec[i64]()
        self.blocked: vec[i64] = vec[i64]()

    def put(
        self, stream: i64, sender: i64, bucket: i64, frames: i64, content: i64, blocked: i64
    ) -> None:
        self.stream = append(self.stream, stream)
        self.sender = append(self.sender, u8(sender))
        self.bucket = append(self.bucket, bucket)
        self.frames = append(self.frames, frames)
        self.content = append(self.content, content)
        self.blocked = append(self.blocked, blocked)
        self.count += 1


class SharedTimeline:
    """Rows of several sessions; `session` is the place of each row's session in `sessions`."""

    def __init__(self) -> None:
        self.rows: TimelineRows = TimelineRows()
        self.sessions: dict[str, int] = {}
        self.session: vec[i64] = vec[i64]()

    def add(self, rows: TimelineRows, session: str) -> None:
        own: i64 = self.sessions.setdefault(session, len(self.sessions))
        to = self.rows
        places: vec[i64] = vec[i64]()
        for label in rows.streams.labels:
            places = append(places, to.streams.of(label))
        for i in range(rows.count):
            stream = rows.stream[i]
            if stream >= 0:
                stream = places[stream]
            sender = i64(rows.sender[i])
            to.put(stream, sender, rows.bucket[i], rows.frames[i], rows.content[i], rows.blocked[i])
            self.session = append(self.session, own)
