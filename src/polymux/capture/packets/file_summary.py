"""The result of reading a capture file: a row of the `captures` table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polymux.capture.packets.flows import DEFAULT_SENSOR

WHOLE, TRUNCATED, DAMAGED, UNREADABLE = "whole", "truncated", "damaged", "unreadable"
STATUSES = (WHOLE, TRUNCATED, DAMAGED, UNREADABLE)  # each worse than the one before
STOPPED_AT = "reading stopped at byte"


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What reading a capture file found: a row of the `captures` table.

    `format` is "pcap" or "pcapng", with "+gzip" or the like if compressed; None if unknown.
    `status` is one of `STATUSES`. `bytes` are those read, decompressed. `error` says what was
    wrong, first at byte `error_offset`; both are None for a complete file. `sensor` is where it was
    captured (see `flows`).
    """

    file: str
    format: str | None
    status: str
    packets: int = 0
    tcp_packets: int = 0
    other_packets: int = 0
    fragments: int = 0
    bytes: int = 0
    error: str | None = None
    error_offset: int | None = None
    sensor: str = DEFAULT_SENSOR


def merge_summaries(summaries: Iterable[FileSummary]) -> FileSummary:
    """The summary of a file from those of its ranges, equal to that of reading it in one range.

    Args:
        summaries: At least one, in the order of the ranges.
    """
    parts = list(summaries)
    failed = [part for part in parts if part.error is not None]
    worst = min(failed, key=_status_rank, default=parts[0])
    error = worst.error
    stop = failed[-1].error.find(STOPPED_AT) if failed and failed[-1].error else -1
    if error and stop >= 0 and STOPPED_AT not in error and failed[-1].error:
        error = f"{error}; {failed[-1].error[stop:]}"
    return replace(
        worst,
        error=error,
        packets=sum(part.packets for part in parts),
        tcp_packets=sum(part.tcp_packets for part in parts),
        other_packets=sum(part.other_packets for part in parts),
        fragments=sum(part.fragments for part in parts),
        bytes=sum(part.bytes for part in parts),
    )


def _status_rank(part: FileSummary) -> tuple[int, int]:
    """Sort key: the worst status first, then the lowest offset."""
    return -STATUSES.index(part.status), part.error_offset or 0
