"""What a walk found out about a session as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polymux.analysis.schema.tables import TABLES

UNFINISHED_ENDINGS: Final = ("open", "half-closed", "never-accepted")
"""Endings of streams on which something was still to come when the capture ended."""


@dataclass(slots=True)
class SessionSummary:
    """A row of the `sessions` table, as plain values, and what a run prints about it.

    Instants are microseconds. `findings` are the violations of severity warning or worse and the
    `stalls`, those of an idle sender not among them; `unfinished` are the streams that were not
    over at the end, counted where the plan wants the streams. `balanced`: every byte is accounted
    for. `failure`: why the capture could not be read to the session's end, if so.
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
