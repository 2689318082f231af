"""How much of each thing a report may hold.

A report is read by a person and must open at once, whatever the size of the capture: at most 5 MB.
Every part of it has a number here. What does not fit is counted and said on the page, never
silently dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

MAX_REPORT_BYTES: Final = 5_000_000  # mail and chat tools take it, browsers open it within a second


@dataclass(frozen=True, slots=True)
class Budget:
    """The caps. The defaults together come to about a megabyte and a half of page."""

    sessions: int = 600  # rows of the session table
    detailed_sessions: int = 40  # sessions with lanes, throughput, streams and frames
    streams: int = 1500  # rows of all stream tables together
    timelines: int = 192  # lanes of all sessions together; each costs two kilobytes
    timelines_per_session: int = 32  # more do not fit on a screen
    frames: int = 9000  # of all sessions together; about 40 bytes each
    violation_marks: int = 2000  # violations drawn on lanes, all sessions together
    stalls: int = 1600  # stalls drawn on lanes, all sessions together
    findings: int = 100  # findings; there are fewer rules than that
    examples_per_finding: int = 12  # occurrences shown a finding
    captures: int = 60  # files named
    text_chars: int = 160  # characters of a name, an error text or a detail
    payload_chars: int = 600_000  # bytes of payload shown, all frames together

    def scaled(self, factor: float) -> "Budget":
        """The same with every cap smaller by `factor`, each at least 4."""
        return Budget(**{f.name: max(4, int(getattr(self, f.name) * factor)) for f in fields(self)})


def fair_shares(demands: Sequence[int], total: int) -> list[int]:
    """Divide `total` among wants: nobody gets more than it wants, the rest is shared evenly.

    The sum of the shares is at most `total`. A want that is no more than an even share is met in
    full; what it leaves goes to the larger ones.
    """
    shares = [0] * len(demands)
    left = total
    order = sorted(range(len(demands)), key=lambda i: demands[i])
    for done, i in enumerate(order):
        shares[i] = max(0, min(demands[i], left // (len(order) - done)))
        left -= shares[i]
    return shares
