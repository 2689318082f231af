"""The findings of an analysis for people: one line for each stream and what it met, worst first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polymux.analysis.options import DOUBT
from polymux.analysis.session.summary import UNFINISHED
from polymux.cli.support.output import Column, console, print_table, shown
from polymux.report.render.wording import (
    GIVEN_UP,
    STALL_HEADLINES,
    Ending,
    Stall,
    ending_sentence,
    nothing_sentence,
    stall_sentence,
    violation_text,
)
from polymux.text.units import duration_text

MOST = 40  # lines shown; the tables hold the rest
KEPT = 10_000  # findings told apart; the rest is only counted
NAME = 24  # characters of a stream's name
SHORT_ID = 8  # of a session's id, which is enough to find it in the tables

Key = tuple[int, str, str, str]  # how bad, session, stream, kind of finding


@dataclass(slots=True)
class Finding:
    """One kind of trouble on one stream; the longest occurrence, or the first, is told."""

    told: str | Stall
    detail: str = ""
    count: int = 0
    duration_us: int = 0
    longest_us: int = -1

    def add(self, told: str | Stall, detail: str, duration_us: int) -> None:
        """Once more."""
        self.count += 1
        self.duration_us += duration_us
        if duration_us > self.longest_us:
            self.longest_us, self.told, self.detail = duration_us, told, detail

    def text(self, culprit_name: str) -> str:
        """The sentence, and how often it holds."""
        told = self.told
        if isinstance(told, Stall):
            told = stall_sentence(replace(told, culprit_name=culprit_name))
        if self.count == 1:
            return told
        together = f", {duration_text(self.duration_us * 1000)} in all" if self.duration_us else ""
        return f"{told}; {self.count} times{together}"


@dataclass(slots=True)
class Summary:
    """What was found in the tables of one analysis, in bounded memory."""

    found: dict[Key, Finding] = field(default_factory=dict)
    more: int = 0  # findings beyond those that are told apart
    unfinished: int = 0  # streams that were not over at the end

    def add(self, key: Key, told: str | Stall, detail: str = "", duration_us: int = 0) -> None:
        finding = self.found.get(key)
        if finding is None:
            if len(self.found) >= KEPT:
                self.more += 1
                return
            finding = self.found[key] = Finding(told)
        finding.add(told, detail, duration_us)


def summarise(out: str) -> Summary:
    """Read what is wrong from the tables."""
    summary = Summary()
    for row in doubted(out):
        summary.add((-1, str(row["session_id"]), "", "protocol"), str(row["note"]))
    columns: tuple[str, ...] = (
        "session_id",
        "stream",
        "sender",
        "severity",
        "certainty",
        "rule",
        "detail",
    )
    for row in chosen(out, "violations", columns, severity=("error", "warning")):
        level = 0 if row["severity"] == "error" else 1
        key = (level, *where(row), f"{row['rule']} {row['sender']}")
        summary.add(key, violation_text(row))
    columns = (
        "session_id",
        "stream",
        "sender",
        "cause",
        "duration_us",
        "blocking_stream",
        "detail",
    )
    for row in chosen(out, "stalls", columns, cause=tuple(STALL_HEADLINES)):
        stall = Stall.of(row)
        key = (2, *where(row), f"{stall.cause} {stall.sender}")
        summary.add(key, stall, str(row["detail"] or ""), stall.duration_us)
    columns = (
        "session_id", "stream", "ending", "opener", "reset_by", "error", "ended_dialer",
        "ended_acceptor",
    )  # fmt: skip
    for row in chosen(out, "streams", columns, ending=(*GIVEN_UP, *UNFINISHED)):
        if row["ending"] in UNFINISHED:
            summary.unfinished += 1
        if row["ending"] in (*GIVEN_UP, "never-accepted"):
            key = (3, *where(row), str(row["ending"]))
            summary.add(key, ending_sentence(Ending.of(row)))
    return summary


def print_findings(out: str) -> None:
    """What is wrong, worst first; or that nothing is."""
    summary = summarise(out)
    keys = sorted(summary.found)[:MOST]
    if not keys:
        console().print(nothing_sentence(summary.unfinished))
        return
    culprits = {
        (key[1], told.culprit)
        for key in keys
        if isinstance(told := summary.found[key].told, Stall) and told.culprit
    }
    sessions = session_words(out, keys)
    names = stream_names(out, {*((key[1], key[2]) for key in keys), *culprits})
    columns = (
        Column("session"), Column("protocol", 2), Column("dialer > acceptor", 3),
        Column("stream"), Column("name", 1), Column("what happened", least=40, best=60),
        Column("detail", 4, least=24, best=40),
    )  # fmt: skip
    lines = []
    for key in keys:
        _, session, stream, _ = key
        finding = summary.found[key]
        told = finding.told
        culprit = names.get((session, told.culprit or ""), "") if isinstance(told, Stall) else ""
        lines.append(
            (
                session[:SHORT_ID],
                *sessions.get(session, ("", "")),
                stream,
                shown(names.get((session, stream)), NAME),
                shown(finding.text(culprit), 400),
                shown(finding.detail, 200),
            )
        )
    print_table("What happened, worst first", columns, lines)
    left = len(summary.found) - len(keys) + summary.more
    if left:
        console().print(f"and {left} more")


def doubted(out: str) -> Iterator[dict[str, object]]:
    """The sessions whose bytes look like another protocol than the one that was named."""
    import pyarrow.compute as pc

    from polymux.analysis.output.parquet import read_batches

    for batch in read_batches(out, "sessions"):
        doubt = pc.starts_with(batch.column("note"), DOUBT)
        yield from batch.filter(doubt).select(["session_id", "note"]).to_pylist()


def session_words(out: str, keys: list[Key]) -> dict[str, tuple[str, str]]:
    """Protocol and ends of the sessions that are listed."""
    columns = ("session_id", "protocol", "dialer", "acceptor")
    wanted = tuple({key[1] for key in keys})
    return {
        str(row["session_id"]): (str(row["protocol"]), f"{row['dialer']} > {row['acceptor']}")
        for row in chosen(out, "sessions", columns, session_id=wanted)
    }


def stream_names(out: str, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The names of these streams, where they have any."""
    sessions, streams = tuple({pair[0] for pair in wanted}), tuple({pair[1] for pair in wanted})
    columns = ("session_id", "stream", "name")
    found = chosen(out, "streams", columns, session_id=sessions, stream=streams)
    return {where(row): str(row["name"]) for row in found if row["name"]}


def where(row: dict[str, object]) -> tuple[str, str]:
    return str(row["session_id"]), str(row["stream"] or "")


def chosen(
    out: str, table: str, columns: tuple[str, ...], **wanted: tuple[str, ...]
) -> Iterator[dict[str, object]]:
    """The rows whose columns have one of the `wanted` values each; some columns only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.arrow.arrays import array_of
    from polymux.analysis.output.parquet import read_batches

    for batch in read_batches(out, table):
        for column, values in wanted.items():
            batch = batch.filter(pc.is_in(batch.column(column), array_of(values, pa.string())))
        yield from batch.select(columns).to_pylist()
