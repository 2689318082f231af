"""The result of a session's analysis: its row of `sessions`, and totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polymux.analysis.schema.tables import TABLES

UNFINISHED_ENDINGS: Final = ("open", "half-closed", "never-accepted")
"""Endings of streams that were not finished when the capture ended."""


@dataclass(slots=True)
class SessionSummary:
    """A row of the `sessions` table as plain values, and the totals that commands print.

    Timestamps are microseconds. `findings` counts the violations of severity warning or worse and
    the `stalls` (without those of an idle sender). `unfinished` counts the streams that had not
    ended, if the `streams` table was selected. `balanced` says whether every byte is accounted for.
    `read_error` says why the capture could not be read to the session's end, "" if it could.
    """

    session_id: str
    capture: list[str]
    protocol: str | None
    version: str | None
    dialect: str | None
    evidence: str | None
    vantage: str
    dialer: str
    acceptor: str
    started_at: int
    ended_at: int
    frames: int = 0
    streams: int = 0
    bytes_dialer: int = 0
    bytes_acceptor: int = 0
    payload_bytes_dialer: int = 0
    payload_bytes_acceptor: int = 0
    missing_bytes_dialer: int = 0
    missing_bytes_acceptor: int = 0
    undecoded_bytes_dialer: int = 0
    undecoded_bytes_acceptor: int = 0
    overhead_bytes_dialer: int = 0
    overhead_bytes_acceptor: int = 0
    violations: int = 0
    ending: str = "unknown"
    note: str | None = None
    rtt_us: int | None = None
    balanced: bool = True
    findings: int = 0
    stalls: int = 0
    unfinished: int = 0
    read_error: str = ""

    def row(self) -> dict[str, object]:
        """The columns of the table."""
        return {name: getattr(self, name) for name in TABLES["sessions"].column_names()}
