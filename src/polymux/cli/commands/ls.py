"""`polymux ls`: list sessions and streams, worst first."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import (
    CaptureRequest,
    capture_options,
    fail_on_option,
    format_option,
)
from polymux.cli.support.capture_walk import analyze_captures
from polymux.cli.support.exit_codes import fail_on_exit_code
from polymux.cli.support.output import (
    CSV,
    TABLE,
    CsvWriter,
    TableColumn,
    console,
    format_value,
    json_line,
    plural,
    print_table,
    rows_of,
    timestamp_text,
)
from polymux.cli.support.stream_ranking import RankedStream, StreamProblems, StreamRanking
from polymux.report.render.wording import findings_sentence
from polymux.text.units import duration_text, size_text

if TYPE_CHECKING:
    import pyarrow as pa

    from polymux.analysis.session.summary import SessionSummary

DEFAULT_TOP = 50  # most sessions in a table, and most streams unless --top is given
MAX_LISTED_STREAMS = 100_000  # most streams as JSON or CSV: the worst
MIN_ID_CHARS = 4  # fewest characters of an abbreviated session id
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
    as_table = output_format == TABLE
    ranking = StreamRanking(top or (DEFAULT_TOP if as_table else MAX_LISTED_STREAMS))
    sessions: list[SessionSummary] = []

    def emit(table: str, batch: pa.RecordBatch) -> None:
        if table == "streams":
            for row in rows_of(table, batch, STREAM_COLUMNS):
                ranking.add_stream(row)
        elif table == "violations":
            for row in rows_of(table, batch):
                ranking.add_violation(row)
        else:
            for row in rows_of(table, batch):
                ranking.add_stall(row)

    options = request.analysis_options("streams", "violations", "stalls")
    code = analyze_captures(request, options, emit, sessions.append)
    streams = ranking.worst_streams()
    sessions.sort(
        key=lambda session: (-session.findings, session.ending == "clean", session.started_at)
    )
    if as_table:
        id_length = short_id_length([session.session_id for session in sessions])
        print_sessions(sessions, ranking.session_problems, id_length)
        print_streams(streams, ranking.stream_count, id_length)
        print_totals(sessions)
    elif output_format == CSV:
        write_csv(sessions, streams)
    else:
        for session in sessions:
            json_line({"table": "sessions", **session_json(session)})
        for stream in streams:
            json_line({"table": "streams", **stream.row, "why": stream.reason})
    findings = sum(session.findings for session in sessions)
    stalls = sum(session.stalls for session in sessions)
    context.exit(fail_on_exit_code(fail_on, findings, stalls, code))


def session_json(summary: SessionSummary) -> dict[str, object]:
    row = summary.row()
    row |= {name: timestamp_text(int(str(row[name]))) for name in ("started_at", "ended_at")}
    counts = ("findings", "stalls", "unfinished", "balanced")
    return {**row, **{name: getattr(summary, name) for name in counts}}


def write_csv(sessions: list[SessionSummary], streams: list[RankedStream]) -> None:
    """Write a row per stream, with columns of its session, and per session without streams."""
    out = CsvWriter()
    by_id = {session.session_id: session for session in sessions}
    without_streams = dict(by_id)
    for stream in streams:
        session_id = str(stream.row["session_id"])
        without_streams.pop(session_id, None)
        of_session = {name: getattr(by_id[session_id], name) for name in _CSV_SESSION_COLUMNS}
        out.write({**of_session, **stream.row, "why": stream.reason})
    for session in without_streams.values():
        of_session = {name: getattr(session, name) for name in _CSV_SESSION_COLUMNS}
        out.write({**of_session, **dict.fromkeys(STREAM_COLUMNS[1:]), "why": None})


def short_id_length(ids: list[str]) -> int:
    """Return how many characters make all of these ids different."""
    length = MIN_ID_CHARS
    for first, second in pairwise(sorted(ids)):
        while first[:length] == second[:length] and length < len(first):
            length += 1
    return length


def print_sessions(
    sessions: list[SessionSummary], session_problems: dict[str, StreamProblems], id_length: int
) -> None:
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
    for session in sessions[:DEFAULT_TOP]:
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
        remark = remark_of(session, session_problems.get(session.session_id, StreamProblems()))
        if remark:
            remarks.append((short_id, remark))
    print_table("Sessions", columns, lines)
    if len(sessions) > DEFAULT_TOP:
        console().print(f"and {len(sessions) - DEFAULT_TOP} more; --format json lists them all")
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


def print_totals(sessions: list[SessionSummary]) -> None:
    sums = (
        (len(sessions), "session"),
        (sum(session.streams for session in sessions), "stream"),
        (sum(session.frames for session in sessions), "frame"),
    )
    stalls = sum(session.stalls for session in sessions)
    violations = sum(session.findings for session in sessions) - stalls
    unfinished = sum(session.unfinished for session in sessions)
    sentence = findings_sentence(violations, stalls, unfinished)
    console().print(f"\n{', '.join(plural(*count) for count in sums)}\n{sentence}")
    if all(session.balanced for session in sessions):
        console().print("conservation: every byte of every session is accounted for")
