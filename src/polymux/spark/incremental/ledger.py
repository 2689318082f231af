"""The ledger of a lake: which captures its rows are of, and how far they reach.

It is a state file of the lake (`spark.lake`), written anew by each run. A capture is recognised by
its path, its size and its content: as long as size and modification time are as before it is not
even opened; otherwise samples of its content decide. On an object store it is its entity tag, and
of an object that is larger its head.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from polymux.capture import CaptureLimits, FileSummary
from polymux.capture.io.discovery import CaptureFile
from polymux.capture.io.remote import open_capture
from polymux.capture.io.sources import FileIdentity
from polymux.capture.packets.file_summary import UNREADABLE
from polymux.core.errors import CaptureError, MissingExtra, PolymuxError
from polymux.core.urls import without_credentials
from polymux.spark.batch.index_stage import SpanFacts

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

LEDGER_VERSION = 1
KEYS_SETTING = "keys"  # whether there were secrets of TLS sessions
MAX_NAMED = 3  # captures that an error names
FUTURE_NS = 86_400 * 1_000_000_000  # by how much clocks, or their time zones, may differ
_COLUMNS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("modified_ns", pa.int64(), nullable=False),
        pa.field("identity", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("sensor", pa.string(), nullable=False),
        pa.field("first_at", pa.int64(), nullable=False),
        pa.field("last_at", pa.int64(), nullable=False),
    ]
)


class ChangedCaptures(PolymuxError):
    """Captures that were read before have other content now; the text names them and the remedy."""


class OtherSettings(PolymuxError):
    """A lake was made with other options; the text names them."""


@dataclass(frozen=True, slots=True)
class ReadCapture:
    """A capture whose packets are in the lake.

    Attributes:
        path: Its path or URL, as in the table `captures`: without credentials.
        modified_ns: Its modification time when it was listed; 0 if the store says none.
        identity: What the file was (`FileIdentity`) as text; "" if it could not be opened.
        status: How reading it ended, as in the table.
        sensor: Where it was captured.
        first_at, last_at: Timestamps in nanoseconds of the first and last packet that was used, -1
            if there is none.
    """

    path: str
    modified_ns: int
    identity: str
    status: str
    sensor: str
    first_at: int
    last_at: int

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether it has packets from `begin` to before `end`, as far as its ends tell."""
        return self.last_at >= 0 and self.first_at < end and self.last_at >= begin


@dataclass
class Ledger:
    """The captures that a lake has the packets of, by path.

    Attributes:
        settings: The options that decide what the rows are, as text; the same for all runs.
        captures: What was read.
        newest: Up to when each sensor was captured, in nanoseconds (`newest_packets`).
        heard: When a run has last read a capture of each sensor, by the clock of its driver, in
            nanoseconds since 1970.
    """

    settings: dict[str, str] = field(default_factory=dict)
    captures: dict[str, ReadCapture] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the content of the state file."""
        rows = [self.captures[path] for path in sorted(self.captures)]
        columns = {name: [getattr(row, name) for row in rows] for name in _COLUMNS.names}
        head = {
            "version": LEDGER_VERSION,
            "settings": self.settings,
            "newest": self.newest,
            "heard": self.heard,
        }
        table = pa.table(columns, schema=_COLUMNS).replace_schema_metadata(
            {"polymux-ledger": json.dumps(head, sort_keys=True)}
        )
        out = io.BytesIO()
        pq.write_table(table, out, compression="zstd")
        return out.getvalue()

    @classmethod
    def decode(cls, content: bytes) -> Ledger:
        """Read the content of a state file.

        Raises:
            PolymuxError: It is of another version of polymux, which counted differently.
        """
        table = pq.read_table(io.BytesIO(content))
        head = json.loads((table.schema.metadata or {})[b"polymux-ledger"])
        if head["version"] != LEDGER_VERSION:
            raise PolymuxError(
                f"the ledger of the lake has version {head['version']}, and this polymux writes "
                f"version {LEDGER_VERSION}: analyze the captures into a new lake"
            )
        columns = [table[name].to_pylist() for name in _COLUMNS.names]
        captures = {row[0]: ReadCapture(*row) for row in zip(*columns, strict=True)}
        return cls(head["settings"], captures, head["newest"], head["heard"])

    def check_settings(self, settings: Mapping[str, str]) -> None:
        """Raise OtherSettings if the lake was made with others. Key logs may be added."""
        for name, value in settings.items():
            before = self.settings.get(name, value)
            if name == KEYS_SETTING and value == "true":
                continue
            if name == KEYS_SETTING and before != value:
                raise OtherSettings(
                    "the lake was made with key logs: name them again with --keys (keys=); "
                    "without them TLS sessions that are analyzed again would lose their frames"
                )
            if before != value:
                raise OtherSettings(
                    f"the lake was made with {name}={before!r}, not {value!r}: use the same "
                    "options, or another directory"
                )

    def compare(
        self, files: Iterable[CaptureFile], limits: CaptureLimits
    ) -> tuple[list[CaptureFile], list[CaptureFile], list[CaptureFile]]:
        """Divide captures into those that are new, those to be read again because they have grown
        or could not be read, and those whose content is another.

        Captures that are as they were are in none of them.

        Raises:
            CaptureError: One that was read before and seems to have changed cannot be opened.
        """
        new: list[CaptureFile] = []
        grown: list[CaptureFile] = []
        changed: list[CaptureFile] = []
        for file in files:
            known = self.captures.get(without_credentials(file.path))
            if known is None:
                new.append(file)
            elif not known.identity:
                grown.append(file)
            else:
                identity = FileIdentity.parse(known.identity)
                if file.size == identity.size and file.modified_ns == known.modified_ns:
                    continue
                if not _begins_with(file.path, identity, limits):
                    changed.append(file)
                elif file.size != identity.size:
                    grown.append(file)
        return new, grown, changed

    def without(self, paths: Collection[str]) -> Ledger:
        """Return the ledger without these captures."""
        captures = {path: found for path, found in self.captures.items() if path not in paths}
        return Ledger(self.settings, captures, self.newest, self.heard)

    def updated(
        self,
        spans: Iterable[tuple[FileSummary, SpanFacts]],
        files: Iterable[CaptureFile],
        settings: Mapping[str, str],
        now_ns: int,
    ) -> Ledger:
        """Return the ledger after a run that has read `files` whole, with what their index said.

        `now_ns` is the time of the run, in nanoseconds since 1970.
        """
        modified = {without_credentials(file.path): file.modified_ns for file in files}
        captures, heard = dict(self.captures), dict(self.heard)
        read: set[str] = set()
        for summary, facts in spans:
            path = summary.file
            if path not in modified:
                continue
            before = captures[path] if path in read else None
            read.add(path)
            times = [(facts.first_at, facts.last_at)] if facts.last_at >= 0 else []
            if before is not None and before.last_at >= 0:
                times.append((before.first_at, before.last_at))
            captures[path] = ReadCapture(
                path,
                modified[path],
                # Of a file that grows, the part that all spans have seen.
                _smaller(facts.identity, before.identity if before is not None else ""),
                summary.status if before is None else _worse(before.status, summary.status),
                summary.sensor,
                min((first for first, _ in times), default=-1),
                max((last for _, last in times), default=-1),
            )
            heard[summary.sensor] = now_ns
        newest = newest_packets(captures.values(), now_ns)
        return Ledger(dict(settings), captures, newest, heard)

    def unheard(self, now_ns: int, silent_ns: int) -> frozenset[str]:
        """Return the sensors of which no run has read a capture for longer than `silent_ns`."""
        return frozenset(name for name, at in self.heard.items() if now_ns - at > silent_ns)


def newest_packets(captures: Iterable[ReadCapture], now_ns: int) -> dict[str, int]:
    """Return up to when each sensor was captured: the time of its newest packet; -1: it has none.

    A packet with a time in the future, by more than `FUTURE_NS`, says nothing about that: a capture
    with others reaches to `now_ns` then, and one without is passed over. Only if a sensor has no
    other capture, its clock or that of this machine is wrong as a whole, and its packets count.
    """
    limit = now_ns + FUTURE_NS
    newest: dict[str, int] = {}
    ahead: dict[str, int] = {}
    for capture in captures:
        if capture.first_at > limit:
            ahead[capture.sensor] = max(ahead.get(capture.sensor, -1), capture.last_at)
        else:
            last = capture.last_at if capture.last_at <= limit else now_ns
            newest[capture.sensor] = max(newest.get(capture.sensor, -1), last)
    return {**ahead, **{name: at for name, at in newest.items() if at >= 0 or name not in ahead}}


def changed_captures(files: Iterable[CaptureFile]) -> ChangedCaptures:
    """The error for captures whose content is another than that which was read."""
    names = [without_credentials(file.path) for file in files]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ChangedCaptures(
        f"{', '.join(names[:MAX_NAMED])}{more}: not the capture that was read before: its content "
        "has changed; --reprocess DATE, with a day of its packets, reads it again"
    )


def _begins_with(path: str, identity: FileIdentity, limits: CaptureLimits) -> bool:
    """Whether a file is the one of this identity, or begins with it.

    Raises:
        CaptureError: It cannot be opened.
    """
    source = open_capture(path, limits)
    try:
        now = source.version()
        if identity.has_grown(source, now):
            return True
        identity.check(source, now)
    except CaptureError:
        return False
    finally:
        source.close()
    return True


def _smaller(one: str, other: str) -> str:
    if not one or not other:
        return one or other
    return min(one, other, key=lambda text: FileIdentity.parse(text).size)


def _worse(one: str, other: str) -> str:
    return UNREADABLE if UNREADABLE in (one, other) else other if one == "whole" else one
