"""`polymux ls`: sessions and streams at once, the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .failing import Failing
from .options import Asked, capture_options, fail_on_option, session_option
from .printing import (
    console,
    counted,
    for_people,
    instant_text,
    json_line,
    print_table,
    rows_of,
    shown,
)
from .reading import walk_captures
from .worst import Listed, Trouble, Worst

if TYPE_CHECKING:
    import pyarrow as pa

    from ..analysis.session_summary import SessionSummary

TOP = 50
EVERYTHING = 100_000  # lines kept for JSON; beyond it only the worst
_STREAM_COLUMNS = (
    "session_id", "stream", "opener", "name", "opened_at", "closed_at", "ending", "reset_by",
    "error", "octets_dialer", "octets_acceptor", "frames_dialer", "frames_acceptor",
    "blocked_us_dialer", "blocked_us_acceptor", "last_at_dialer", "last_at_acceptor",
)  # fmt: skip


@click.command(epilog="Example: polymux ls talk.pcapng --port 9000=mplex", no_args_is_help=True)
@capture_options
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
    fail_on: str | None,
    top: int | None,
) -> None:
    """List the sessions and streams of CAPTURES, worst first, with the reason why."""
    asked = Asked(captures, protocol, ports, filters, session)
    people = for_people(as_json)
    worst = Worst(top or (TOP if people else EVERYTHING))
    failing = Failing()
    sessions: list[SessionSummary] = []

    def emit(table: str, batch: pa.RecordBatch) -> None:
        if table == "streams":
            for row in rows_of(table, batch, _STREAM_COLUMNS):
                failing.row(table, row)
                worst.stream(row)
        elif table == "violations":
            for row in rows_of(table, batch):
                failing.row(table, row)
                worst.violation(row)
        else:
            for row in rows_of(table, batch):
                failing.row(table, row)
                worst.stall(row)

    plan = asked.plan("streams", "violations", "stalls")
    code = walk_captures(asked, plan, emit, sessions.append)
    listed = worst.take()
    sessions.sort(key=lambda each: (-each.findings, each.ending == "clean", each.started_at))
    if people:
        print_sessions(sessions, worst.loose)
        print_streams(listed, worst.streams)
        print_sums(sessions)
    else:
        for each in sessions:
            json_line({"table": "sessions", **session_json(each)})
        for entry in listed:
            json_line({"table": "streams", **entry.row, "why": entry.why})
    context.exit(failing.code(fail_on, code))


def session_json(summary: SessionSummary) -> dict[str, object]:
    row = summary.row()
    row |= {name: instant_text(int(str(row[name]))) for name in ("started_at", "ended_at")}
    return {**row, "findings": summary.findings, "balanced": summary.balanced}


def print_sessions(sessions: list[SessionSummary], loose: dict[str, Trouble]) -> None:
    from ..analysis.hot.figures import duration_text, size_text

    columns = (
        "session", "protocol", "dialer > acceptor", "lasted", "streams", "frames", "octets >",
        "octets <", "ending", "remarks",
    )  # fmt: skip
    lines = []
    for each in sessions[:TOP]:
        trouble = loose.get(each.session_id, Trouble())
        said = [f"{trouble.rule} outside any stream"] if trouble.errors + trouble.warnings else []
        said += [each.note] if each.note else []
        if each.protocol is None:
            said.append(each.evidence or "")
        lines.append(
            (
                each.session_id,
                " ".join(filter(None, (each.protocol or "?", each.version, each.dialect))),
                f"{each.dialer} > {each.acceptor}",
                duration_text((each.ended_at - each.started_at) * 1000),
                each.streams,
                each.frames,
                size_text(each.octets_dialer),
                size_text(each.octets_acceptor),
                each.ending,
                "; ".join(said),
            )
        )
    print_table("Sessions", columns, lines)
    if len(sessions) > TOP:
        console().print(f"and {len(sessions) - TOP} more; --json lists them all")


def print_streams(listed: list[Listed], total: int) -> None:
    from ..analysis.hot.figures import size_text

    if not listed:
        return
    columns = ("session", "stream", "name", "octets >", "octets <", "frames", "ending", "why")
    lines = []
    for entry in listed:
        row = entry.row
        frames = int(str(row["frames_dialer"])) + int(str(row["frames_acceptor"]))
        lines.append(
            (
                row["session_id"],
                row["stream"],
                shown(row["name"], 40),
                size_text(int(str(row["octets_dialer"]))),
                size_text(int(str(row["octets_acceptor"]))),
                frames,
                row["ending"],
                entry.why,
            )
        )
    print_table("Streams, worst first", columns, lines)
    if total > len(listed):
        console().print(f"and {total - len(listed)} more; --top shows more of them")


def print_sums(sessions: list[SessionSummary]) -> None:
    sums = (
        (len(sessions), "session"),
        (sum(each.streams for each in sessions), "stream"),
        (sum(each.frames for each in sessions), "frame"),
        (sum(each.findings for each in sessions), "violation"),
    )
    console().print(", ".join(counted(*each) for each in sums))
    if all(each.balanced for each in sessions):
        console().print("conservation: every octet is in a frame, a gap, the carrier or undecoded")
