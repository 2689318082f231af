"""The packets that findings belong to, for comments in a copy of the capture.

A violation belongs to the packet in which its frame ends, a stall to the packet that ends it. The
analysis of a session gives both as rows; `SessionFindings` collects them, and `locate` looks up the
places of their packets in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from polymux.analysis.schema.tables import SIDES
from polymux.capture import TcpSession
from polymux.capture.tcp.reassembly import PAYLOAD
from polymux.cli.support.output import rows_of
from polymux.report.render.wording import Stall, stall_sentence, violation_text

if TYPE_CHECKING:
    import pyarrow as pa

_FRAME_COLUMNS = ("sender", "frame_index", "byte_offset", "size")
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(slots=True)
class Finding:
    """A finding of one side: its text, and its place in the side's bytes or in time.

    `position` is that of a byte in the packet, -1 for a finding that is placed by `time_us`: in
    the side's first packet that is not earlier.
    """

    side: int
    text: str
    position: int = -1
    time_us: int = 0


@dataclass(slots=True)
class SessionFindings:
    """The findings of one session, from the rows that its analysis emits.

    Args:
        severities: of the violations that are findings here.
        stalls: whether stalls are, too.
    """

    severities: tuple[str, ...]
    stalls: bool = True
    found: list[Finding] = field(default_factory=list)
    _frames: list[pa.RecordBatch] = field(default_factory=list)  # emitted since other rows
    _frames_done: bool = False
    # Violations of frames that were not complete when they were found, by side and frame index.
    _incomplete: dict[tuple[str, int], list[Finding]] = field(default_factory=dict)

    def emit(self, table: str, batch: pa.RecordBatch) -> None:
        """Take the rows of `frames`, `violations` and `stalls`, as `analyze_session` emits them."""
        if table == "frames":
            if self._frames_done:
                self._frames, self._frames_done = [], False
            self._frames.append(batch)
            if self._incomplete:
                for row in rows_of(table, batch, _FRAME_COLUMNS):
                    for finding in self._incomplete.pop(_frame_key(row), ()):
                        finding.position = _last_byte(row)
            return
        self._frames_done = True
        for row in rows_of(table, batch):
            if table == "violations" and row["severity"] in self.severities:
                self._add_violation(row)
            elif table == "stalls" and self.stalls and row["cause"] != "sender-idle":
                detail = f": {row['detail']}" if row["detail"] else ""
                started, duration = row["started_at"], row["duration_us"]
                assert isinstance(started, datetime)  # columns of the table
                assert isinstance(duration, int)
                ended = (started - _EPOCH) // timedelta(microseconds=1) + duration
                text = f"stall: {stall_sentence(Stall.from_row(row))}{detail}"
                self.found.append(Finding(SIDES.index(str(row["sender"])), text, time_us=ended))

    def _add_violation(self, row: dict[str, object]) -> None:
        offset = row["byte_offset"]
        assert isinstance(offset, int)  # a column of the table
        text = f"{row['severity']}: {violation_text(row)}"
        finding = Finding(SIDES.index(str(row["sender"])), text, offset)
        self.found.append(finding)
        key = _frame_key(row)
        for batch in self._frames:
            for frame in _matching_frames(batch, key):
                finding.position = max(offset, _last_byte(frame))
                return
        self._incomplete.setdefault(key, []).append(finding)

    def locate(self, session: TcpSession) -> list[tuple[int, str]]:
        """The offset in the file of a byte of each finding's packet, and the finding's text.

        What lies after the last byte of its side is in the side's last packet, or in the
        session's last if the side sent no bytes.
        """
        self._incomplete.clear()
        by_position: tuple[list[Finding], list[Finding]] = ([], [])
        by_time: tuple[list[Finding], list[Finding]] = ([], [])
        for finding in self.found:
            (by_position if finding.position >= 0 else by_time)[finding.side].append(finding)
        for side in (0, 1):
            by_position[side].sort(key=lambda finding: finding.position)
            by_time[side].sort(key=lambda finding: finding.time_us)
        places: list[tuple[int, str]] = []
        next_position, last_offset = [0, 0], [-1, -1]
        for events in session.events() if self.found else ():
            for n in range(events.count):
                side, size = int(events.side[n]), int(events.size[n])
                begin = next_position[side]
                next_position[side] += size
                if events.kind[n] != PAYLOAD:
                    continue
                offset = last_offset[side] = int(events.offset[n])
                waiting = by_position[side]
                while waiting and waiting[0].position < begin + size:
                    finding = waiting.pop(0)
                    places.append((offset + max(0, finding.position - begin), finding.text))
                late = by_time[side]
                time_us = int(events.timestamp[n]) // 1000
                while late and late[0].time_us <= time_us:
                    places.append((offset, late.pop(0).text))
        for side in (0, 1):
            offset = last_offset[side] if last_offset[side] >= 0 else last_offset[1 - side]
            if offset >= 0:
                left = [*by_position[side], *by_time[side]]
                places += [(offset, finding.text) for finding in left]
        return places


def _frame_key(row: dict[str, object]) -> tuple[str, int]:
    index = row["frame_index"]
    assert isinstance(index, int)  # a column of both tables
    return str(row["sender"]), index


def _last_byte(row: dict[str, object]) -> int:
    offset, size = row["byte_offset"], row["size"]
    assert isinstance(offset, int)  # columns of the table
    assert isinstance(size, int)
    return offset + max(size, 1) - 1


def _matching_frames(batch: pa.RecordBatch, key: tuple[str, int]) -> list[dict[str, object]]:
    """The rows of a batch of frames with this sender and index: none or one."""
    import pyarrow.compute as pc

    same = pc.equal(batch.column("frame_index"), key[1])
    rows = rows_of("frames", batch.filter(same), _FRAME_COLUMNS)
    return [row for row in rows if row["sender"] == key[0]]
