"""Exports for other viewers: Perfetto traces and qlog files, written row by row.

Both take the rows of `frames`, `violations`, `stalls` and `streams` as the analysis emits them, so
memory does not grow with the capture but for one entry for each stream (Perfetto's tracks).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import IO, Protocol

from polymux.analysis.session.analyzer import SessionSummary

Row = Mapping[str, object]
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
QLOG_NAMESPACE = "polymux"
QLOG_SCHEMA = "urn:polymux:qlog:events:multiplexing"
_RECORD_SEPARATOR = "\x1e"
# Field numbers of Perfetto's protos: Trace, TracePacket, TrackDescriptor, TrackEvent,
# DebugAnnotation.
_TRACE_PACKET = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 11, 60
_UUID, _TRACK_NAME, _PARENT_UUID = 1, 2, 5
_ANNOTATIONS, _TYPE, _TRACK_UUID, _CATEGORIES, _NAME = 4, 9, 11, 22, 23
_INT_VALUE, _STRING_VALUE, _ANNOTATION_NAME = 4, 6, 10
_SLICE_BEGIN, _SLICE_END, _INSTANT = 1, 2, 3
_SEQUENCE = 1
_NO_ROW: Row = MappingProxyType({})


class TraceWriter(Protocol):
    """Writes the rows of an analysis as a trace."""

    def row(self, table: str, row: Row) -> None:
        """Write one row of `frames`, `violations`, `stalls` or `streams`."""

    def session(self, summary: SessionSummary) -> None:
        """Write what is known of a session after its last row."""


def microseconds(time: object) -> int | None:
    """A time of a table in microseconds since 1970; None for no time."""
    if not isinstance(time, datetime):
        return None
    return (time - EPOCH) // timedelta(microseconds=1)


class QlogWriter:
    """qlog as JSON text sequences (RFC 7464), with events of a namespace of our own.

    An event is named `polymux:frame`, `violation`, `stall`, `stream` or `session`; `group_id` is
    the session, `data` has the columns of the table that are not null.
    """

    def __init__(self, out: IO[bytes], title: str) -> None:
        self._out = out
        self._put(
            {
                "file_schema": "urn:ietf:params:qlog:file:sequential",
                "serialization_format": "application/qlog+json-seq",
                "title": title,
                "trace": {
                    "common_fields": {
                        "time_format": "relative_to_epoch",
                        "reference_time": {
                            "clock_type": "system",
                            "epoch": "1970-01-01T00:00:00.000Z",
                        },
                    },
                    "vantage_point": {"type": "network", "flow": "unknown"},
                    "event_schemas": [QLOG_SCHEMA],
                },
            }
        )

    def row(self, table: str, row: Row) -> None:
        time = row.get("time") or row.get("started_at") or row.get("opened_at")
        data = {
            name: value if not isinstance(value, datetime) else (microseconds(value) or 0) / 1000
            for name, value in row.items()
            if value is not None and name != "session_id" and value is not time
        }
        event = table.removesuffix("s")
        self._event(event, microseconds(time) or 0, str(row["session_id"]), data)

    def session(self, summary: SessionSummary) -> None:
        row = summary.row()
        data = {name: value for name, value in row.items() if value is not None}
        del data["session_id"]
        self._event("session", summary.started_at, summary.session_id, data)

    def _event(self, name: str, time_us: int, group: str, data: dict[str, object]) -> None:
        self._put(
            {
                "time": time_us / 1000,
                "name": f"{QLOG_NAMESPACE}:{name}",
                "group_id": group,
                "data": data,
            }
        )

    def _put(self, record: Mapping[str, object]) -> None:
        text = json.dumps(record, ensure_ascii=True, default=_json_value)
        self._out.write(f"{_RECORD_SEPARATOR}{text}\n".encode())


def _json_value(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


class PerfettoWriter:
    """A Perfetto trace of track events: a track for each session, stream and stalled side.

    The life of a stream is a slice, a stall a slice below it; frames and violations are instants.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._tracks: dict[tuple[str, ...], int] = {}

    def row(self, table: str, row: Row) -> None:
        session, stream = str(row["session_id"]), row.get("stream")
        track = self._track((session, str(stream)) if stream else (session,))
        if table == "frames":
            name = f"{row['kind']} {'>' if row['sender'] == 'dialer' else '<'}"
            self._instant(track, row["time"], name, "frame", row)
        elif table == "violations":
            self._instant(track, row["time"], str(row["rule"]), "violation", row)
        elif table == "stalls":
            side = self._track((session, str(stream), f"stalls of the {row['sender']}"))
            duration = row["duration_us"]
            assert isinstance(duration, int)  # a column of the table
            start = microseconds(row["started_at"]) or 0
            self._slice(side, start, start + duration, str(row["cause"]), "stall", row)
        elif table == "streams":
            opened = microseconds(row["opened_at"])
            last = [row["closed_at"], row["last_at_dialer"], row["last_at_acceptor"]]
            ends = [end for end in map(microseconds, last) if end is not None]
            if opened is not None and ends:
                name = str(row["name"] or stream)
                self._slice(track, opened, max(ends), name, "stream", row)

    def session(self, summary: SessionSummary) -> None:
        track = self._track((summary.session_id,))
        name = f"{summary.protocol or 'undetected'} {summary.dialer} > {summary.acceptor}"
        row = {name: value for name, value in summary.row().items() if value is not None}
        self._slice(track, summary.started_at, summary.ended_at, name, "session", row)

    def _track(self, path: tuple[str, ...]) -> int:
        """The uuid of a track, which is described when it is used first."""
        known = self._tracks.get(path)
        if known is not None:
            return known
        parent = self._track(path[:-1]) if len(path) > 1 else None
        uuid = self._tracks[path] = len(self._tracks) + 1
        descriptor = _number(_UUID, uuid) + _text(_TRACK_NAME, path[-1])
        if parent is not None:
            descriptor += _number(_PARENT_UUID, parent)
        self._packet(_message(_TRACK_DESCRIPTOR, descriptor))
        return uuid

    def _instant(self, track: int, time: object, name: str, category: str, row: Row) -> None:
        self._event(_INSTANT, track, microseconds(time) or 0, name, category, row)

    def _slice(self, track: int, start: int, end: int, name: str, category: str, row: Row) -> None:
        self._event(_SLICE_BEGIN, track, start, name, category, row)
        self._event(_SLICE_END, track, max(start, end))

    def _event(
        self,
        kind: int,
        track: int,
        time_us: int,
        name: str = "",
        category: str = "",
        row: Row = _NO_ROW,
    ) -> None:
        event = _number(_TYPE, kind) + _number(_TRACK_UUID, track)
        if name:
            event += _text(_CATEGORIES, category) + _text(_NAME, name)
        for column, value in row.items():
            if isinstance(value, int) and 0 <= value < 1 << 63:
                annotation = _number(_INT_VALUE, value)
            elif isinstance(value, str):
                annotation = _text(_STRING_VALUE, value)
            else:
                continue
            event += _message(_ANNOTATIONS, _text(_ANNOTATION_NAME, column) + annotation)
        timestamp = max(0, time_us) * 1000  # unsigned in Perfetto
        self._packet(_number(_TIMESTAMP, timestamp) + _message(_TRACK_EVENT, event))

    def _packet(self, body: bytes) -> None:
        self._out.write(_message(_TRACE_PACKET, body + _number(_SEQUENCE_ID, _SEQUENCE)))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))
