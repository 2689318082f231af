# mypyc: compiled
"""Rows of the timeline: of one session, and of several sessions together."""

from librt.vecs import append, vec
from mypy_extensions import i64, u8

from polymux.analysis.output.string_dictionary import StringDictionary


class TimelineRows:
    """Columns of the `timeline` table with `row_count` rows.

    `label_index` is an index into `stream_labels`, -1 for none; `blocked_us` is -1 where the half
    needs no credit.
    """

    def __init__(self) -> None:
        self.row_count: i64 = 0
        self.stream_labels: StringDictionary = StringDictionary()
        self.label_index: vec[i64] = vec[i64]()
        self.sender: vec[u8] = vec[u8]()
        self.bucket: vec[i64] = vec[i64]()
        self.frames: vec[i64] = vec[i64]()
        self.content_bytes: vec[i64] = vec[i64]()
        self.blocked_us: vec[i64] = vec[i64]()

    def add(
        self,
        label_index: i64,
        sender: i64,
        bucket: i64,
        frames: i64,
        content_bytes: i64,
        blocked_us: i64,
    ) -> None:
        self.label_index = append(self.label_index, label_index)
        self.sender = append(self.sender, u8(sender))
        self.bucket = append(self.bucket, bucket)
        self.frames = append(self.frames, frames)
        self.content_bytes = append(self.content_bytes, content_bytes)
        self.blocked_us = append(self.blocked_us, blocked_us)
        self.row_count += 1


class SharedTimelineRows:
    """Rows of several sessions; `session_index` is each row's index into `sessions`."""

    def __init__(self) -> None:
        self.rows: TimelineRows = TimelineRows()
        self.sessions: dict[str, int] = {}
        self.session_index: vec[i64] = vec[i64]()

    def add(self, rows: TimelineRows, session_id: str) -> None:
        own: i64 = self.sessions.setdefault(session_id, len(self.sessions))
        to = self.rows
        label_indices: vec[i64] = vec[i64]()
        for label in rows.stream_labels.strings:
            label_indices = append(label_indices, to.stream_labels.index_of(label))
        for i in range(rows.row_count):
            stream = rows.label_index[i]
            if stream >= 0:
                stream = label_indices[stream]
            sender = i64(rows.sender[i])
            to.add(
                stream,
                sender,
                rows.bucket[i],
                rows.frames[i],
                rows.content_bytes[i],
                rows.blocked_us[i],
            )
            self.session_index = append(self.session_index, own)
