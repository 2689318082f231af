"""The table of findings of `polymux analyze`: one line per stream and kind, worst first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polymux.analysis.detection.detector import MISMATCH_PREFIX
from polymux.analysis.schema.tables import UNFINISHED_ENDINGS
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

MAX_LINES = 40  # most lines printed; the tables have the rest
MAX_FINDINGS = 10_000  # most findings kept apart; more are only counted
MAX_NAME_CHARS = 24  # most characters of a stream's name
SHORT_ID_CHARS = 8  # characters of a session id, enough to find it in the tables

FindingKey = tuple[int, str, str, str]  # rank (lower is worse), session, stream, kind of finding


@dataclass(slots=True)
class StreamFinding:
    """One kind of finding on one stream: the longest occurrence, or the first, and the count."""

    description: str | Stall
    detail: str = ""
    count: int = 0
    duration_us: int = 0
    longest_us: int = -1

    def add(self, description: str | Stall, detail: str, duration_us: int) -> None:
        """Count one more occurrence."""
        self.count += 1
        self.duration_us += duration_us
        if duration_us > self.longest_us:
            self.longest_us, self.description, self.detail = duration_us, description, detail

    def text(self, blocking_stream_name: str) -> str:
        """The sentence, with the number of occurrences and their total duration."""
        sentence = self.description
        if isinstance(sentence, Stall):
            sentence = stall_sentence(replace(sentence, blocking_stream_name=blocking_stream_name))
        if self.count == 1:
            return sentence
        total = f", {duration_text(self.duration_us * 1000)} in total" if self.duration_us else ""
        return f"{sentence}; {self.count} times{total}"


@dataclass(slots=True)
class FindingsSummary:
    """The findings in the tables of one analysis, in bounded memory."""

    findings: dict[FindingKey, StreamFinding] = field(default_factory=dict)
    not_listed: int = 0  # findings beyond `MAX_FINDINGS`
    unfinished: int = 0  # streams that had not ended when the capture did

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
    """Read the findings from the tables below `out`."""
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
    """Print the findings, worst first, or that there are none."""
    summary = summarize_findings(out)
    keys = sorted(summary.findings)[:MAX_LINES]
    if not keys:
        console().print(no_findings_sentence(summary.unfinished))
        return
    blocking_streams = {
        (key[1], stall.blocking_stream)
        for key in keys
        if isinstance(stall := summary.findings[key].description, Stall) and stall.blocking_stream
    }
    sessions = session_labels(out, keys)
    names = stream_names(out, {*((key[1], key[2]) for key in keys), *blocking_streams})
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
        stall = finding.description
        blocking_name = (
            names.get((session, stall.blocking_stream or ""), "")
            if isinstance(stall, Stall)
            else ""
        )
        lines.append(
            (
                session[:SHORT_ID_CHARS],
                *sessions.get(session, ("", "")),
                stream,
                format_value(names.get((session, stream)), MAX_NAME_CHARS),
                format_value(finding.text(blocking_name), 400),
                format_value(finding.detail, 200),
            )
        )
    print_table("What happened, worst first", columns, lines)
    more = len(summary.findings) - len(keys) + summary.not_listed
    if more:
        console().print(f"and {more} more")


def protocol_mismatches(out: str) -> Iterator[dict[str, object]]:
    """Rows of sessions whose bytes look like another protocol than the one that was named."""
    import pyarrow.compute as pc

    from polymux.analysis.output.parquet import read_batches

    for batch in read_batches(out, "sessions"):
        mismatch = pc.starts_with(batch.column("note"), MISMATCH_PREFIX)
        yield from batch.filter(mismatch).select(["session_id", "note"]).to_pylist()


def session_labels(out: str, keys: list[FindingKey]) -> dict[str, tuple[str, str]]:
    """Protocol and endpoints of the sessions in `keys`, by session id."""
    columns = ("session_id", "protocol", "dialer", "acceptor")
    session_ids = tuple({key[1] for key in keys})
    return {
        str(row["session_id"]): (str(row["protocol"]), f"{row['dialer']} > {row['acceptor']}")
        for row in matching_rows(out, "sessions", columns, session_id=session_ids)
    }


def stream_names(out: str, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Names of these (session, stream) pairs, where they have one."""
    sessions, streams = tuple({pair[0] for pair in wanted}), tuple({pair[1] for pair in wanted})
    columns = ("session_id", "stream", "name")
    found = matching_rows(out, "streams", columns, session_id=sessions, stream=streams)
    return {stream_key(row): str(row["name"]) for row in found if row["name"]}


def stream_key(row: dict[str, object]) -> tuple[str, str]:
    return str(row["session_id"]), str(row["stream"] or "")


def matching_rows(
    out: str, table: str, columns: tuple[str, ...], **wanted: tuple[str, ...]
) -> Iterator[dict[str, object]]:
    """Yield the rows in which every column named in `wanted` has one of its values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.output.arrow_batches import make_array
    from polymux.analysis.output.parquet import read_batches

    for batch in read_batches(out, table):
        for column, values in wanted.items():
            batch = batch.filter(pc.is_in(batch.column(column), make_array(values, pa.string())))
        yield from batch.select(columns).to_pylist()
