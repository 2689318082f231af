"""`polymux ls`: sessions and streams at once, the worst first."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import (
    CaptureRequest,
    capture_options,
    fail_on_option,
    format_option,
    session_option,
)
from polymux.cli.support.capture_walk import analyze_captures
from polymux.cli.support.exit_codes import fail_on_exit_code
from polymux.cli.support.output import (
    CSV,
    TABLE,
    CsvWriter,
    TableColumn,
    chosen_format,
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

DEFAULT_TOP = 50
MAX_LISTED_STREAMS = 100_000  # lines kept for programs; beyond it only the worst
MIN_ID_CHARS = 4  # characters of a session's id at least
MAX_NAME_CHARS = 24  # characters of a stream's name
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
@session_option
@fail_on_option
@click.option("--top", type=click.IntRange(1), help="Streams to list; 50 for people.")
@click.pass_context
def ls(
    context: click.Context,
    captures: tuple[str, ...],
    protocol: str,
    ports: tuple[str, ...],
    filters: tuple[str, ...],
    session: str,
    as_json: bool,
    form: str | None,
    fail_on: str | None,
    top: int | None,
) -> None:
    """List the sessions and streams of CAPTURES, worst first, with the reason why."""
    asked = CaptureRequest(captures, protocol, ports, filters, session)
    form = chosen_format(as_json, form)
    worst = StreamRanking(top or (DEFAULT_TOP if form == TABLE else MAX_LISTED_STREAMS))
    sessions: list[SessionSummary] = []

    def emit(table: str, batch: pa.RecordBatch) -> None:
        if table == "streams":
            for row in rows_of(table, batch, STREAM_COLUMNS):
                worst.add_stream(row)
        elif table == "violations":
            for row in rows_of(table, batch):
                worst.add_violation(row)
        else:
            for row in rows_of(table, batch):
                worst.add_stall(row)

    plan = asked.analysis_options("streams", "violations", "stalls")
    code = analyze_captures(asked, plan, emit, sessions.append)
    listed = worst.worst_streams()
    sessions.sort(key=lambda each: (-each.findings, each.ending == "clean", each.started_at))
    if form == TABLE:
        short = short_id_length([each.session_id for each in sessions])
        print_sessions(sessions, worst.session_problems, short)
        print_streams(listed, worst.stream_count, short)
        print_totals(sessions)
    elif form == CSV:
        write_csv(sessions, listed)
    else:
        for each in sessions:
            json_line({"table": "sessions", **session_json(each)})
        for entry in listed:
            json_line({"table": "streams", **entry.row, "why": entry.reason})
    found = sum(each.findings for each in sessions)
    stalls = sum(each.stalls for each in sessions)
    context.exit(fail_on_exit_code(fail_on, found, stalls, code))


def session_json(summary: SessionSummary) -> dict[str, object]:
    row = summary.row()
    row |= {name: timestamp_text(int(str(row[name]))) for name in ("started_at", "ended_at")}
    counts = ("findings", "stalls", "unfinished", "balanced")
    return {**row, **{name: getattr(summary, name) for name in counts}}


def write_csv(sessions: list[SessionSummary], streams: list[RankedStream]) -> None:
    """One row a stream, with what tells its session; a session without a stream has a row too."""
    out = CsvWriter()
    left = {each.session_id: each for each in sessions}
    known = dict(left)
    for entry in streams:
        id = str(entry.row["session_id"])
        left.pop(id, None)
        of = {name: getattr(known[id], name) for name in _CSV_SESSION_COLUMNS}
        out.write({**of, **entry.row, "why": entry.reason})
    for each in left.values():
        of = {name: getattr(each, name) for name in _CSV_SESSION_COLUMNS}
        out.write({**of, **dict.fromkeys(STREAM_COLUMNS[1:]), "why": None})


def short_id_length(ids: list[str]) -> int:
    """How many characters tell these ids apart."""
    need = MIN_ID_CHARS
    for one, other in pairwise(sorted(ids)):
        while one[:need] == other[:need] and need < len(one):
            need += 1
    return need


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
    for each in sessions[:DEFAULT_TOP]:
        id = each.session_id[:id_length]
        lines.append(
            (
                id,
                " ".join(filter(None, (each.protocol or "?", each.version, each.dialect))),
                f"{each.dialer} > {each.acceptor}",
                duration_text((each.ended_at - each.started_at) * 1000),
                each.streams,
                each.findings,
                each.ending,
                each.frames,
                size_cell(each.bytes_dialer),
                size_cell(each.bytes_acceptor),
            )
        )
        said = remark_of(each, session_problems.get(each.session_id, StreamProblems()))
        if said:
            remarks.append((id, said))
    print_table("Sessions", columns, lines)
    if len(sessions) > DEFAULT_TOP:
        console().print(f"and {len(sessions) - DEFAULT_TOP} more; --format json lists them all")
    if remarks:
        print_table("", (TableColumn("session"), TableColumn("remark", min_width=24)), remarks)


def size_cell(size: object) -> str:
    """A size under a heading that names the unit."""
    return size_text(int(str(size))).removesuffix(" bytes").removesuffix(" byte")


def remark_of(session: SessionSummary, problems: StreamProblems) -> str:
    """What is to be known of a session besides its columns and its streams."""
    said = [session.note] if session.note else []
    if problems.findings:
        said.append(problems.describe())
    if session.protocol is None:
        said.append(session.evidence or "")
    return "; ".join(filter(None, said))


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
    for entry in streams:
        row = entry.row
        lines.append(
            (
                str(row["session_id"])[:id_length],
                row["stream"],
                format_value(row["name"], MAX_NAME_CHARS),
                size_cell(row["bytes_dialer"]),
                size_cell(row["bytes_acceptor"]),
                int(str(row["frames_dialer"])) + int(str(row["frames_acceptor"])),
                row["ending"],
                entry.reason,
            )
        )
    print_table("\nStreams, worst first", columns, lines)
    if total > len(streams):
        console().print(f"and {total - len(streams)} more; --top shows more of them")


def print_totals(sessions: list[SessionSummary]) -> None:
    sums = (
        (len(sessions), "session"),
        (sum(each.streams for each in sessions), "stream"),
        (sum(each.frames for each in sessions), "frame"),
    )
    stalls = sum(each.stalls for each in sessions)
    violations = sum(each.findings for each in sessions) - stalls
    found = findings_sentence(violations, stalls, sum(each.unfinished for each in sessions))
    console().print(f"\n{', '.join(plural(*each) for each in sums)}\n{found}")
    if all(each.balanced for each in sessions):
        console().print("conservation: every byte is in a frame, a gap, the carrier or undecoded")
