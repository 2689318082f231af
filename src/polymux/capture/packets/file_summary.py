"""What reading a capture file came to: a row of the `captures` table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

WHOLE, TRUNCATED, DAMAGED, UNREADABLE = "whole", "truncated", "damaged", "unreadable"
STOPPED = "reading stopped at octet"


@dataclass(frozen=True, slots=True)
class FileSummary:
    """A row of the `captures` table."""

    file: str
    format: str | None
    status: str
    packets: int = 0
    tcp_packets: int = 0
    other_packets: int = 0
    fragments: int = 0
    octets: int = 0
    error: str | None = None
    offset: int | None = None


def combine(summaries: Iterable[FileSummary]) -> FileSummary:
    """One row for a file read in ranges, the same as if it had been read in one."""
    parts = list(summaries)
    failed = [part for part in parts if part.error is not None]
    worst = min(failed, key=_badness, default=parts[0])
    error = worst.error
    stop = failed[-1].error.find(STOPPED) if failed and failed[-1].error else -1
    if error and stop >= 0 and STOPPED not in error and failed[-1].error:
        error = f"{error}; {failed[-1].error[stop:]}"
    return replace(
        worst,
        error=error,
        packets=sum(part.packets for part in parts),
        tcp_packets=sum(part.tcp_packets for part in parts),
        other_packets=sum(part.other_packets for part in parts),
        fragments=sum(part.fragments for part in parts),
        octets=sum(part.octets for part in parts),
    )


def _badness(part: FileSummary) -> tuple[int, int]:
    """The worst status first, and of those the earliest offset."""
    return (UNREADABLE, DAMAGED, TRUNCATED, WHOLE).index(part.status), part.offset or 0
