"""The findings of an analysis for people: one line for each stream and what it met, worst first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polymux.analysis.detection.selection import MISMATCH_PREFIX
from polymux.analysis.session.summary import UNFINISHED_ENDINGS
from polymux.cli.support.output import TableColumn, console, format_value, print_table
from polymux.report.render.wording import (
    ABORTED_ENDINGS,
    STALL_HEADLINES,
    Stall,
    StreamEnding,
    ending_sentence,
    no_findings_sentence,
    stall_sentence,
    violation_text,
)
from polymux.text.units import duration_text

MAX_LINES = 40  # lines shown; the tables hold the rest
MAX_FINDINGS = 10_000  # findings told apart; the rest is only counted
MAX_NAME_CHARS = 24  # characters of a stream's name
SHORT_ID_CHARS = 8  # of a session's id, which is enough to find it in the tables

FindingKey = tuple[int, str, str, str]  # how bad, session, stream, kind of finding


@dataclass(slots=True)
class StreamFinding:
    """One kind of trouble on one stream; the longest occurrence, or the first, is told."""

    description: str | Stall
    detail: str = ""
    count: int = 0
    duration_us: int = 0
    longest_us: int = -1

    def add(self, description: str | Stall, detail: str, duration_us: int) -> None:
        """Once more."""
        self.count += 1
        self.duration_us += duration_us
        if duration_us > self.longest_us:
            self.longest_us, self.description, self.detail = duration_us, description, detail

    def text(self, blocking_stream_name: str) -> str:
        """The sentence, and how often it holds."""
        told = self.description
        if isinstance(told, Stall):
            told = stall_sentence(replace(told, blocking_stream_name=blocking_stream_name))
        if self.count == 1:
            return told
        together = (
            f", {duration_text(self.duration_us * 1000)} in total" if self.duration_us else ""
        )
        return f"{told}; {self.count} times{together}"


@dataclass(slots=True)
class FindingsSummary:
    """What was found in the tables of one analysis, in bounded memory."""

    findings: dict[FindingKey, StreamFinding] = field(default_factory=dict)
    not_listed: int = 0  # findings beyond those that are told apart
    unfinished: int = 0  # streams that were not over at the end

    def add(
        self, key: FindingKey, description: str | Stall, detail: str = "", duration_us: int = 0
    ) -> None:
        finding = self.findings.get(key)
        if finding is None:
            if len(self.findings) >= MAX_FINDINGS:
                self.not_listed += 1
                return
            finding = self.findings[key] = StreamFinding(description)
        finding.add(description, detail, duration_us)


def summarize_findings(out: str) -> FindingsSummary:
    """Read what is wrong from the tables."""
    summary = FindingsSummary()
    for row in protocol_mismatches(out):
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
    for row in matching_rows(out, "violations", columns, severity=("error", "warning")):
        level = 0 if row["severity"] == "error" else 1
        key = (level, *stream_key(row), f"{row['rule']} {row['sender']}")
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
    for row in matching_rows(out, "stalls", columns, cause=tuple(STALL_HEADLINES)):
        stall = Stall.from_row(row)
        key = (2, *stream_key(row), f"{stall.cause} {stall.sender}")
        summary.add(key, stall, str(row["detail"] or ""), stall.duration_us)
    columns = (
        "session_id", "stream", "ending", "opener", "reset_by", "error", "ended_dialer",
        "ended_acceptor",
    )  # fmt: skip
    for row in matching_rows(
        out, "streams", columns, ending=(*ABORTED_ENDINGS, *UNFINISHED_ENDINGS)
    ):
        if row["ending"] in UNFINISHED_ENDINGS:
            summary.unfinished += 1
        if row["ending"] in (*ABORTED_ENDINGS, "never-accepted"):
            key = (3, *stream_key(row), str(row["ending"]))
            summary.add(key, ending_sentence(StreamEnding.from_row(row)))
    return summary


def print_findings(out: str) -> None:
    """What is wrong, worst first; or that nothing is."""
    summary = summarize_findings(out)
    keys = sorted(summary.findings)[:MAX_LINES]
    if not keys:
        console().print(no_findings_sentence(summary.unfinished))
        return
    culprits = {
        (key[1], told.blocking_stream)
        for key in keys
        if isinstance(told := summary.findings[key].description, Stall) and told.blocking_stream
    }
    sessions = session_labels(out, keys)
    names = stream_names(out, {*((key[1], key[2]) for key in keys), *culprits})
    columns = (
        TableColumn("session"),
        TableColumn("protocol", 2),
        TableColumn("dialer > acceptor", 3),
        TableColumn("stream"),
        TableColumn("name", 1),
        TableColumn("what happened", min_width=40, preferred_width=60),
        TableColumn("detail", 4, min_width=24, preferred_width=40),
    )
    lines = []
    for key in keys:
        _, session, stream, _ = key
        finding = summary.findings[key]
        told = finding.description
        culprit = (
            names.get((session, told.blocking_stream or ""), "") if isinstance(told, Stall) else ""
        )
        lines.append(
            (
                session[:SHORT_ID_CHARS],
                *sessions.get(session, ("", "")),
                stream,
                format_value(names.get((session, stream)), MAX_NAME_CHARS),
                format_value(finding.text(culprit), 400),
                format_value(finding.detail, 200),
            )
        )
    print_table("What happened, worst first", columns, lines)
    left = len(summary.findings) - len(keys) + summary.not_listed
    if left:
        console().print(f"and {left} more")


def protocol_mismatches(out: str) -> Iterator[dict[str, object]]:
    """The sessions whose bytes look like another protocol than the one that was named."""
    import pyarrow.compute as pc

    from polymux.analysis.output.parquet import read_batches

    for batch in read_batches(out, "sessions"):
        doubt = pc.starts_with(batch.column("note"), MISMATCH_PREFIX)
        yield from batch.filter(doubt).select(["session_id", "note"]).to_pylist()


def session_labels(out: str, keys: list[FindingKey]) -> dict[str, tuple[str, str]]:
    """Protocol and ends of the sessions that are listed."""
    columns = ("session_id", "protocol", "dialer", "acceptor")
    wanted = tuple({key[1] for key in keys})
    return {
        str(row["session_id"]): (str(row["protocol"]), f"{row['dialer']} > {row['acceptor']}")
        for row in matching_rows(out, "sessions", columns, session_id=wanted)
    }


def stream_names(out: str, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The names of these streams, where they have any."""
    sessions, streams = tuple({pair[0] for pair in wanted}), tuple({pair[1] for pair in wanted})
    columns = ("session_id", "stream", "name")
    found = matching_rows(out, "streams", columns, session_id=sessions, stream=streams)
    return {stream_key(row): str(row["name"]) for row in found if row["name"]}


def stream_key(row: dict[str, object]) -> tuple[str, str]:
    return str(row["session_id"]), str(row["stream"] or "")


def matching_rows(
    out: str, table: str, columns: tuple[str, ...], **wanted: tuple[str, ...]
) -> Iterator[dict[str, object]]:
    """The rows whose columns have one of the `wanted` values each; some columns only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.arrow.arrays import make_array
    from polymux.analysis.output.parquet import read_batches

    for batch in read_batches(out, table):
        for column, values in wanted.items():
            batch = batch.filter(pc.is_in(batch.column(column), make_array(values, pa.string())))
        yield from batch.select(columns).to_pylist()
