"""Telling that content is missing: a sentence on standard error and a JSON object in its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from polymux.analysis.schema.tables import SIDES
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.output import plural, timestamp_text, warn

if TYPE_CHECKING:
    from polymux.analysis.tracking.missing_content import MissingRange

NOT_CAPTURED, NOT_DECODED = "not-captured", "not-decoded"
MAX_SENTENCES = 8  # ranges that are described on standard error; more are only counted
MAX_PENDING = 65_536  # ranges that wait for their place; with more, they are reported early
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MissingReport:
    """Reports the ranges that are missing from sessions, each between the rows it lies between.

    `on_missing` takes the ranges of a session before its rows, `before_row` is called with each
    row that is printed, `end_session` after its last one, and `close` at the end.

    Args:
        write: Prints the JSON object of a range; None if the output has no room for one.
        senders: The sides whose ranges are reported.
        only_content: Whether ranges that surely hold no content of the streams are left out.
        stream: With `only_content`, the only stream of interest; "": all of them.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, object]], None] | None,
        senders: tuple[str, ...] = SIDES,
        *,
        only_content: bool = False,
        stream: str = "",
    ) -> None:
        self._write = write
        self._senders = senders
        self._only_content = only_content
        self._stream = stream
        self._pending: tuple[deque[dict[str, object]], ...] = (deque(), deque())
        self._reported = 0
        self._unsaid_bytes = 0

    def on_missing(self, session_id: str, missing: MissingRange) -> None:
        """Take a range, which is reported when its place is reached."""
        if SIDES[missing.sender] not in self._senders or not self._is_of_interest(missing):
            return
        pending = self._pending[missing.sender]
        pending.append(marker(session_id, missing))
        if len(pending) > MAX_PENDING:
            self._report(pending.popleft())

    def before_row(self, row: Mapping[str, object]) -> None:
        """Report the ranges that come before a row with a sender, a frame index and a time."""
        at, index = row["time"], row["frame_index"]
        assert isinstance(at, datetime)  # the types of the columns
        assert isinstance(index, int)
        row_us = (at - _EPOCH) // timedelta(microseconds=1)
        for side, pending in zip(SIDES, self._pending, strict=True):
            while pending and (
                _number(pending[0], "frame_index") <= index
                if row["sender"] == side
                else _number(pending[0], "time") < row_us
            ):
                self._report(pending.popleft())

    def end_session(self) -> None:
        """No more rows of the session follow: report the rest."""
        for pending in self._pending:
            while pending:
                self._report(pending.popleft())

    def close(self) -> None:
        """No more sessions follow: count the ranges that were not described."""
        self.end_session()
        more = self._reported - MAX_SENTENCES
        if more > 0:
            warn(
                f"{plural(more, 'more range')} of {plural(self._unsaid_bytes, 'byte')} in all "
                f"{'is' if more == 1 else 'are'} missing; --json lists each in its place"
            )

    def exit_code(self, code: int) -> int:
        """The exit code, if `code` is that of everything else: missing content is as torn input."""
        return EXIT_UNREADABLE if self._reported else code

    def _is_of_interest(self, missing: MissingRange) -> bool:
        if not self._only_content:
            return True
        if not missing.inside_frame:
            # It can be anything, unless it is the end of a frame of another stream.
            return not (missing.stream and self._stream) or missing.stream == self._stream
        return missing.is_content and self._stream in ("", missing.stream)

    def _report(self, found: dict[str, object]) -> None:
        self._reported += 1
        if self._reported <= MAX_SENTENCES:
            warn(sentence(found))
        else:
            self._unsaid_bytes += _number(found, "size") if found["size"] is not None else 0
        if self._write is not None:
            self._write({**found, "time": timestamp_text(_number(found, "time"))})


def marker(session_id: str, missing: MissingRange) -> dict[str, object]:
    """The keys of a range in JSON, except that `time` is a number of microseconds."""
    return {
        "missing": NOT_DECODED if missing.captured else NOT_CAPTURED,
        "session_id": session_id,
        "sender": SIDES[missing.sender],
        "stream": missing.stream or None,
        "frame_index": int(missing.frame_index),
        "byte_offset": int(missing.byte_offset) if missing.byte_offset >= 0 else None,
        "size": int(missing.size) if missing.size >= 0 else None,
        "zeros": missing.is_content,
        "time": int(missing.timestamp // 1000),
    }


def sentence(found: Mapping[str, object]) -> str:
    """One line about a range: whose bytes, how many, where and when."""
    size = found["size"]
    sender = found["sender"]
    if size is None:
        what = f"bytes of the {sender} were not captured, how many is not known"
    else:
        were = "was" if size == 1 else "were"
        how = "captured" if found["missing"] == NOT_CAPTURED else "decoded, as others are missing"
        what = f"{plural(_number(found, 'size'), 'byte')} of the {sender} {were} not {how}"
    place = [f"stream {found['stream']}"] if found["stream"] else []
    if found["byte_offset"] is not None:
        place += [f"byte {found['byte_offset']}", f"frame {found['frame_index']}"]
    place.append(timestamp_text(_number(found, "time")))
    zeros = "; the content has zeros in their place" if found["zeros"] else ""
    return f"session {found['session_id']}: {what} ({', '.join(place)}){zeros}"


def _number(found: Mapping[str, object], key: str) -> int:
    number = found[key]
    assert isinstance(number, int)  # as `marker` made it
    return number
