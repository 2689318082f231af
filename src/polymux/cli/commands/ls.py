"""`polymux ls`: sessions and streams at once, the worst first."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import (
    Asked,
    capture_options,
    fail_on_option,
    format_option,
    session_option,
)
from polymux.cli.support.capture_walk import walk_captures
from polymux.cli.support.exit_codes import exit_code
from polymux.cli.support.output import (
    CSV,
    TABLE,
    Column,
    CsvLines,
    chosen_format,
    console,
    counted,
    instant_text,
    json_line,
    print_table,
    rows_of,
    shown,
)
from polymux.cli.support.stream_ranking import Listed, Trouble, Worst
from polymux.report.render.wording import findings_sentence
from polymux.text.units import duration_text, size_text

if TYPE_CHECKING:
    import pyarrow as pa

    from polymux.analysis.session.summary import SessionSummary

TOP = 50
EVERYTHING = 100_000  # lines kept for programs; beyond it only the worst
SHORT_ID = 4  # characters of a session's id at least
NAME = 24  # characters of a stream's name
STREAM_COLUMNS = (
    "session_id", "stream", "opener", "name", "opened_at", "closed_at", "ending", "reset_by",
    "error", "bytes_dialer", "bytes_acceptor", "frames_dialer", "frames_acceptor",
    "ended_dialer", "ended_acceptor", "blocked_us_dialer", "blocked_us_acceptor",
    "last_at_dialer", "last_at_acceptor",
)  # fmt: skip
_CSV_SESSION = ("session_id", "protocol", "version", "dialer", "acceptor", "note")


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
    asked = Asked(captures, protocol, ports, filters, session)
    form = chosen_format(as_json, form)
    worst = Worst(top or (TOP if form == TABLE else EVERYTHING))
    sessions: list[SessionSummary] = []

    def emit(table: str, batch: pa.RecordBatch) -> None:
        if table == "streams":
            for row in rows_of(table, batch, STREAM_COLUMNS):
                worst.stream(row)
        elif table == "violations":
            for row in rows_of(table, batch):
                worst.violation(row)
        else:
            for row in rows_of(table, batch):
                worst.stall(row)

    plan = asked.plan("streams", "violations", "stalls")
    code = walk_captures(asked, plan, emit, sessions.append)
    listed = worst.take()
    sessions.sort(key=lambda each: (-each.findings, each.ending == "clean", each.started_at))
    if form == TABLE:
        short = short_ids([each.session_id for each in sessions])
        print_sessions(sessions, worst.loose, short)
        print_streams(listed, worst.streams, short)
        print_sums(sessions)
    elif form == CSV:
        write_csv(sessions, listed)
    else:
        for each in sessions:
            json_line({"table": "sessions", **session_json(each)})
        for entry in listed:
            json_line({"table": "streams", **entry.row, "why": entry.why})
    found = sum(each.findings for each in sessions)
    stalls = sum(each.stalls for each in sessions)
    context.exit(exit_code(fail_on, found, stalls, code))


def session_json(summary: SessionSummary) -> dict[str, object]:
    row = summary.row()
    row |= {name: instant_text(int(str(row[name]))) for name in ("started_at", "ended_at")}
    counts = ("findings", "stalls", "unfinished", "balanced")
    return {**row, **{name: getattr(summary, name) for name in counts}}


def write_csv(sessions: list[SessionSummary], listed: list[Listed]) -> None:
    """One row a stream, with what tells its session; a session without a stream has a row too."""
    out = CsvLines()
    left = {each.session_id: each for each in sessions}
    known = dict(left)
    for entry in listed:
        id = str(entry.row["session_id"])
        left.pop(id, None)
        of = {name: getattr(known[id], name) for name in _CSV_SESSION}
        out.put({**of, **entry.row, "why": entry.why})
    for each in left.values():
        of = {name: getattr(each, name) for name in _CSV_SESSION}
        out.put({**of, **dict.fromkeys(STREAM_COLUMNS[1:]), "why": None})


def short_ids(ids: list[str]) -> int:
    """How many characters tell these ids apart."""
    need = SHORT_ID
    for one, other in pairwise(sorted(ids)):
        while one[:need] == other[:need] and need < len(one):
            need += 1
    return need


def print_sessions(sessions: list[SessionSummary], loose: dict[str, Trouble], short: int) -> None:
    columns = (
        Column("session"), Column("protocol"),
        Column("dialer > acceptor", least=24, best=45), Column("lasted", 2, right=True),
        Column("streams", 3, right=True), Column("findings", 1, right=True),
        Column("ending", 4), Column("frames", 5, right=True), Column("octets >", 6, right=True),
        Column("octets <", 6, right=True),
    )  # fmt: skip
    lines = []
    remarks = []
    for each in sessions[:TOP]:
        id = each.session_id[:short]
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
                amount(each.bytes_dialer),
                amount(each.bytes_acceptor),
            )
        )
        said = remark_of(each, loose.get(each.session_id, Trouble()))
        if said:
            remarks.append((id, said))
    print_table("Sessions", columns, lines)
    if len(sessions) > TOP:
        console().print(f"and {len(sessions) - TOP} more; --format json lists them all")
    if remarks:
        print_table("", (Column("session"), Column("remark", least=24)), remarks)


def amount(octets: object) -> str:
    """A size under a heading that names the unit."""
    return size_text(int(str(octets))).removesuffix(" octets").removesuffix(" octet")


def remark_of(session: SessionSummary, loose: Trouble) -> str:
    """What is to be known of a session besides its columns and its streams."""
    said = [session.note] if session.note else []
    if loose.findings:
        said.append(loose.said())
    if session.protocol is None:
        said.append(session.evidence or "")
    return "; ".join(filter(None, said))


def print_streams(listed: list[Listed], total: int, short: int) -> None:
    if not listed:
        return
    columns = (
        Column("session"), Column("stream"), Column("name", 1), Column("octets >", 2, right=True),
        Column("octets <", 2, right=True), Column("frames", 4, right=True), Column("ending", 3),
        Column("why", least=40, best=60),
    )  # fmt: skip
    lines = []
    for entry in listed:
        row = entry.row
        lines.append(
            (
                str(row["session_id"])[:short],
                row["stream"],
                shown(row["name"], NAME),
                amount(row["bytes_dialer"]),
                amount(row["bytes_acceptor"]),
                int(str(row["frames_dialer"])) + int(str(row["frames_acceptor"])),
                row["ending"],
                entry.why,
            )
        )
    print_table("\nStreams, worst first", columns, lines)
    if total > len(listed):
        console().print(f"and {total - len(listed)} more; --top shows more of them")


def print_sums(sessions: list[SessionSummary]) -> None:
    sums = (
        (len(sessions), "session"),
        (sum(each.streams for each in sessions), "stream"),
        (sum(each.frames for each in sessions), "frame"),
    )
    stalls = sum(each.stalls for each in sessions)
    violations = sum(each.findings for each in sessions) - stalls
    found = findings_sentence(violations, stalls, sum(each.unfinished for each in sessions))
    console().print(f"\n{', '.join(counted(*each) for each in sums)}\n{found}")
    if all(each.balanced for each in sessions):
        console().print("conservation: every octet is in a frame, a gap, the carrier or undecoded")
