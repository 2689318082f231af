"""Rows of the tables as lists by column name, of which `arrow_batches` makes record batches.

Without Arrow: a command that prints a few rows starts in half the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polymux.analysis.output.row_columns import HalfColumns, StreamColumns
from polymux.analysis.schema.tables import SIDES
from polymux.analysis.tracking.request_latency import PERCENTILES, RequesterLatency
from polymux.analysis.tracking.stall_evidence import StallRows
from polymux.core.rules import Violation

TableColumns = Mapping[str, Sequence[Any]]


def streams_columns(rows: StreamColumns, session_id: str) -> TableColumns:
    columns: dict[str, Sequence[Any]] = {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "opener": rows.opener,
        "stream_id": rows.stream_id,
        "incarnation": rows.incarnation,
        "name": _decode_texts(rows.name),
        "name_bytes": rows.name,
        "opened_at": rows.opened_at,
        "accepted_at": rows.accepted_at,
        "closed_at": rows.closed_at,
        "ending": rows.ending,
        "reset_by": rows.reset_by,
        "error": _decode_texts(rows.error),
    }
    for side, half in zip(SIDES, (rows.dialer, rows.acceptor), strict=True):
        columns |= _half_columns(side, half)
    return columns


def _half_columns(side: str, half: HalfColumns) -> dict[str, Sequence[Any]]:
    names = (
        "bytes", "units", "frames", "ended", "credit_granted", "peak_in_flight_bytes", "blocked_us",
        "first_at", "last_at", "window_bytes", "window_limit_bps", "throughput_bps", "stalled_us",
        "hol_blocked_us",
    )  # fmt: skip
    return {f"{name}_{side}": getattr(half, name) for name in names}


def violations_columns(violations: Sequence[Violation], session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(violations),
        "sender": [SIDES[violation.sender] for violation in violations],
        "frame_index": [violation.frame_index for violation in violations],
        "byte_offset": [violation.byte_offset for violation in violations],
        "time": [violation.time // 1000 for violation in violations],
        "stream": [violation.stream or None for violation in violations],
        "rule": [violation.rule.name for violation in violations],
        "origin": [violation.rule.origin.value for violation in violations],
        "severity": [violation.rule.severity.value for violation in violations],
        "certainty": [violation.certainty.value for violation in violations],
        "detail": [violation.detail or None for violation in violations],
    }


def stalls_columns(rows: StallRows, session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "sender": [SIDES[side] for side in rows.sender],
        "started_at": rows.started_us,
        "duration_us": rows.duration_us,
        "cause": rows.cause,
        "blocking_stream": [blocking or None for blocking in rows.blocking_stream],
        "detail": rows.detail,
    }


def requests_columns(rows: Sequence[RequesterLatency], session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(rows),
        "opener": [SIDES[row.side] for row in rows],
        "requests": [row.requests for row in rows],
        "answered": [row.answered for row in rows],
        **{
            f"latency_{name}_us": [row.percentile(share) for row in rows]
            for name, share in PERCENTILES
        },
        "latency_max_us": [row.max_us for row in rows],
    }


def _decode_texts(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode("utf-8", "replace") for value in values]
