"""`polymux ls`: list sessions and streams, worst first."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import (
    CaptureRequest,
    capture_options,
    fail_on_option,
    format_option,
)
from polymux.cli.support.capture_walk import analyze_to_rows
from polymux.cli.support.exit_codes import fail_on_exit_code
from polymux.cli.support.next_command import next_command
from polymux.cli.support.output import (
    CSV,
    JSON,
    TABLE,
    CsvWriter,
    TableColumn,
    console,
    format_value,
    json_text,
    plural,
    print_table,
    timestamp_text,
)
from polymux.cli.support.sorted_spool import SortedSpool
from polymux.cli.support.stream_ranking import RankedStream, StreamProblems, StreamRanking
from polymux.report.render.wording import findings_sentence
from polymux.text.units import duration_text, size_text

if TYPE_CHECKING:
    from polymux.analysis.session.analyzer import SessionSummary

DEFAULT_TOP = 50  # most sessions in a table, and most streams unless --top is given
MAX_LISTED_STREAMS = 100_000  # most streams as JSON or CSV: the worst
MIN_ID_CHARS = 4  # fewest characters of an abbreviated session id
ID_CHARS = 16  # of a session id
MAX_NAME_CHARS = 24  # most characters of a stream's name
STREAM_COLUMNS = (
    "session_id", "stream", "opener", "name", "opened_at", "closed_at", "ending", "reset_by",
    "error", "bytes_dialer", "bytes_acceptor", "frames_dialer", "frames_acceptor",
    "ended_dialer", "ended_acceptor", "blocked_us_dialer", "blocked_us_acceptor",
    "last_at_dialer", "last_at_acceptor",
)  # fmt: skip
_CSV_SESSION_COLUMNS = ("session_id", "protocol", "version", "dialer", "acceptor", "note")


@click.command(epilog="Example: polymux ls talk.pcapng --port 9000=mplex", no_args_is_help=True)
@capture_options
@format_option
@fail_on_option
@click.option(
    "--top",
    type=click.IntRange(1),
    help="List this many streams (default: 50 in a table, otherwise all).",
)
@click.pass_context
def ls(
    context: click.Context,
    request: CaptureRequest,
    output_format: str,
    fail_on: str | None,
    top: int | None,
) -> None:
    """List the sessions and streams of CAPTURES, worst first, each with the reason."""
    from polymux.analysis.output.plain_rows import PlainRows

    options = request.analysis_options("streams", "violations", "stalls")
    max_streams = top or (DEFAULT_TOP if output_format == TABLE else MAX_LISTED_STREAMS)
    with LISTINGS[output_format](max_streams) as listing:
        rows = PlainRows(listing.add_rows, {"streams": STREAM_COLUMNS})
        code = analyze_to_rows(request, options, rows, listing.add_session)
        listing.write(request)
    totals = listing.totals
    context.exit(fail_on_exit_code(fail_on, totals.findings, totals.stalls, code))


@dataclass(slots=True)
class Totals:
    """Sums over all sessions."""

    sessions: int = 0
    streams: int = 0
    frames: int = 0
    findings: int = 0
    stalls: int = 0
    unfinished: int = 0
    balanced: bool = True

    def add(self, session: SessionSummary) -> None:
        self.sessions += 1
        self.streams += session.streams
        self.frames += session.frames
        self.findings += session.findings
        self.stalls += session.stalls
        self.unfinished += session.unfinished
        self.balanced &= session.balanced


def session_rank(session: SessionSummary) -> tuple[int, int]:
    """The place of a session in the order: most findings first, clean ones last, then by time."""
    return -2 * session.findings + (session.ending == "clean"), session.started_at


class Listing(ABC):
    """Takes the rows of each session, then the session; `write` prints all. A context manager.

    Memory is bounded: it grows by some fifty bytes with each session.
    """

    def __init__(self, max_streams: int) -> None:
        self.totals = Totals()
        self.ranking = StreamRanking(max_streams)

    def add_rows(self, table: str, rows: list[dict[str, object]]) -> None:
        """Take rows of `streams`, `violations` or `stalls`."""
        for row in rows:
            if table == "streams":
                self.add_stream(row)
            elif table == "violations":
                self.ranking.add_violation(row)
            else:
                self.ranking.add_stall(row)

    @abstractmethod
    def add_stream(self, row: dict[str, object]) -> None:
        """Take a row of `streams`, after the violations and stalls of the stream."""

    @abstractmethod
    def add_session(self, session: SessionSummary) -> None:
        """Take a session after its last row."""

    @abstractmethod
    def write(self, request: CaptureRequest) -> None:
        """Print everything; `request` is what `ls` was given."""

    @abstractmethod
    def close(self) -> None:
        """Free what the listing holds."""

    def __enter__(self) -> Listing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class JsonListing(Listing):
    """Prints the sessions, then the streams, as JSON lines."""

    def __init__(self, max_streams: int) -> None:
        super().__init__(max_streams)
        self._sessions = SortedSpool()
        self._streams = SortedSpool(max_streams)

    def add_stream(self, row: dict[str, object]) -> None:
        ranked = self.ranking.rank(row)
        text = json_text({"table": "streams", **row, "why": ranked.reason})
        self._streams.add((ranked.rank, ranked.weight), text.encode())

    def add_session(self, session: SessionSummary) -> None:
        self.totals.add(session)
        self.ranking.end_session()
        text = json_text({"table": "sessions", **session_json(session)})
        self._sessions.add(session_rank(session), text.encode())

    def write(self, request: CaptureRequest) -> None:
        for spool in (self._sessions, self._streams):
            for rows in spool.joined_rows():
                sys.stdout.write(rows.decode())

    def close(self) -> None:
        for spool in (self._sessions, self._streams):
            spool.close()


class CsvListing(Listing):
    """Prints a row per stream, with columns of its session, and per session without streams."""

    def __init__(self, max_streams: int) -> None:
        super().__init__(max_streams)
        self._pending: list[RankedStream] = []  # of the current session
        self._sessions = SortedSpool()
        self._streams = SortedSpool(max_streams)

    def add_stream(self, row: dict[str, object]) -> None:
        self._pending.append(self.ranking.rank(row))
        if len(self._pending) >= 2 * self.ranking.max_streams + 64:
            self._pending = sorted(self._pending)[: self.ranking.max_streams]

    def add_session(self, session: SessionSummary) -> None:
        self.totals.add(session)
        self.ranking.end_session()
        of_session = {name: getattr(session, name) for name in _CSV_SESSION_COLUMNS}
        for stream in self._pending:
            text = json_text({**of_session, **stream.row, "why": stream.reason})
            self._streams.add((stream.rank, stream.weight), text.encode())
        if not self._pending:
            text = json_text({**of_session, **dict.fromkeys(STREAM_COLUMNS[1:]), "why": None})
            self._sessions.add(session_rank(session), text.encode())
        self._pending = []

    def write(self, request: CaptureRequest) -> None:
        out = CsvWriter()
        for spool in (self._streams, self._sessions):
            for row in spool.rows():
                out.write(json.loads(row))

    def close(self) -> None:
        for spool in (self._sessions, self._streams):
            spool.close()


class TableListing(Listing):
    """Prints the worst sessions and streams as tables, then the totals."""

    def __init__(self, max_streams: int) -> None:
        super().__init__(max_streams)
        self._sessions: list[tuple[tuple[int, int, int], SessionSummary, str]] = []
        self._ids = array("Q")

    def add_stream(self, row: dict[str, object]) -> None:
        self.ranking.add_stream(row)

    def add_session(self, session: SessionSummary) -> None:
        self.totals.add(session)
        remark = remark_of(session, self.ranking.end_session())
        self._sessions.append(((*session_rank(session), self.totals.sessions), session, remark))
        self._ids.append(int(session.session_id, 16))
        if len(self._sessions) >= 2 * DEFAULT_TOP:
            self._sessions = self._worst_sessions()

    def _worst_sessions(self) -> list[tuple[tuple[int, int, int], SessionSummary, str]]:
        return sorted(self._sessions, key=lambda ranked: ranked[0])[:DEFAULT_TOP]

    def close(self) -> None:
        self._sessions.clear()

    def write(self, request: CaptureRequest) -> None:
        id_length = short_id_length(self._ids)
        worst = [(session, remark) for _, session, remark in self._worst_sessions()]
        print_sessions(worst, self.totals.sessions, id_length)
        streams = self.ranking.worst_streams()
        print_streams(streams, self.ranking.stream_count, id_length)
        print_totals(self.totals)
        if worst:
            command = next_command(request, [session for session, _ in worst], streams)
            console().print(f"next: {command}", markup=False, soft_wrap=True)


LISTINGS: dict[str, type[Listing]] = {JSON: JsonListing, CSV: CsvListing, TABLE: TableListing}


def session_json(summary: SessionSummary) -> dict[str, object]:
    row = summary.row()
    row["started_at"] = timestamp_text(summary.started_at)
    row["ended_at"] = timestamp_text(summary.ended_at)
    for name in ("findings", "stalls", "unfinished", "balanced"):
        row[name] = getattr(summary, name)
    return row


def short_id_length(ids: array[int]) -> int:
    """Return how many characters make all of these ids, of 16 hexadecimal digits, different."""
    length = MIN_ID_CHARS
    before = -1
    for each in sorted(ids):
        while length < ID_CHARS and before >= 0 and (before ^ each) >> 4 * (ID_CHARS - length) == 0:
            length += 1
        before = each
    return length


def print_sessions(sessions: list[tuple[SessionSummary, str]], total: int, id_length: int) -> None:
    """Print sessions with their remarks, of `total` in all."""
    columns = (
        TableColumn("session"),
        TableColumn("protocol"),
        TableColumn("dialer > acceptor", min_width=24, preferred_width=45),
        TableColumn("lasted", 2, right_aligned=True),
        TableColumn("streams", 3, right_aligned=True),
        TableColumn("findings", 1, right_aligned=True),
        TableColumn("ending", 4),
        TableColumn("frames", 5, right_aligned=True),
        TableColumn("bytes >", 6, right_aligned=True),
        TableColumn("bytes <", 6, right_aligned=True),
    )
    lines = []
    remarks = []
    for session, remark in sessions:
        short_id = session.session_id[:id_length]
        lines.append(
            (
                short_id,
                " ".join(filter(None, (session.protocol or "?", session.version, session.dialect))),
                f"{session.dialer} > {session.acceptor}",
                duration_text((session.ended_at - session.started_at) * 1000),
                session.streams,
                session.findings,
                session.ending,
                session.frames,
                size_cell(session.bytes_dialer),
                size_cell(session.bytes_acceptor),
            )
        )
        if remark:
            remarks.append((short_id, remark))
    print_table("Sessions", columns, lines)
    if total > len(sessions):
        console().print(f"and {total - len(sessions)} more; --format json lists them all")
    if remarks:
        print_table("", (TableColumn("session"), TableColumn("remark", min_width=24)), remarks)


def size_cell(size: object) -> str:
    """Format a size for a column whose heading names the unit."""
    return size_text(int(str(size))).removesuffix(" bytes").removesuffix(" byte")


def remark_of(session: SessionSummary, problems: StreamProblems) -> str:
    """Return the session's note, its findings outside of streams, and why it was not decoded."""
    parts = [session.note] if session.note else []
    if problems.findings:
        parts.append(problems.describe())
    if session.protocol is None:
        parts.append(session.evidence or "")
    return "; ".join(filter(None, parts))


def print_streams(streams: list[RankedStream], total: int, id_length: int) -> None:
    if not streams:
        return
    columns = (
        TableColumn("session"),
        TableColumn("stream"),
        TableColumn("name", 1),
        TableColumn("bytes >", 2, right_aligned=True),
        TableColumn("bytes <", 2, right_aligned=True),
        TableColumn("frames", 4, right_aligned=True),
        TableColumn("ending", 3),
        TableColumn("why", min_width=40, preferred_width=60),
    )
    lines = []
    for stream in streams:
        row = stream.row
        lines.append(
            (
                str(row["session_id"])[:id_length],
                row["stream"],
                format_value(row["name"], MAX_NAME_CHARS),
                size_cell(row["bytes_dialer"]),
                size_cell(row["bytes_acceptor"]),
                int(str(row["frames_dialer"])) + int(str(row["frames_acceptor"])),
                row["ending"],
                stream.reason,
            )
        )
    print_table("\nStreams, worst first", columns, lines)
    if total > len(streams):
        console().print(f"and {total - len(streams)} more; --top shows more of them")


def print_totals(totals: Totals) -> None:
    sums = (
        (totals.sessions, "session"),
        (totals.streams, "stream"),
        (totals.frames, "frame"),
    )
    sentence = findings_sentence(totals.findings - totals.stalls, totals.stalls, totals.unfinished)
    console().print(f"\n{', '.join(plural(*count) for count in sums)}\n{sentence}")
    if totals.balanced:
        console().print("conservation: every byte of every session is accounted for")
