"""Size limits of a report.

A report opens quickly whatever the size of the capture: it has at most 5 MB. Each part has a limit
here. What does not fit is counted on the page, never silently dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

MAX_REPORT_BYTES: Final = 5_000_000  # accepted by mail and chat tools, opened within a second


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits by part. A page that uses all default limits has about 1.5 MB."""

    sessions: int = 600  # rows of the session table
    detailed_sessions: int = 40  # sessions with timelines, throughput, streams and frames
    streams: int = 1500  # rows of all stream tables
    timelines: int = 192  # of all sessions; each takes 2 KB
    timelines_per_session: int = 32  # more do not fit a screen
    frames: int = 9000  # of all sessions; about 40 bytes each
    violation_marks: int = 2000  # violations drawn on timelines, of all sessions
    stalls: int = 1600  # stalls drawn on timelines, of all sessions
    findings: int = 100  # there are fewer rules than that
    examples_per_finding: int = 12  # occurrences shown per finding
    captures: int = 60  # capture files listed
    text_chars: int = 160  # of a name, an error text or a detail
    payload_chars: int = 600_000  # of payload in hexadecimal, of all frames

    def scaled(self, factor: float) -> "Budget":
        """The same limits multiplied by `factor`, each at least 4."""
        return Budget(**{f.name: max(4, int(getattr(self, f.name) * factor)) for f in fields(self)})


def fair_shares(demands: Sequence[int], total: int) -> list[int]:
    """Divide `total` among demands (max-min fairness).

    No share exceeds its demand, and the shares add up to at most `total`. A demand of no more than
    an even share is met in full; what it leaves is divided among the larger ones.
    """
    shares = [0] * len(demands)
    left = total
    order = sorted(range(len(demands)), key=lambda i: demands[i])
    for done, i in enumerate(order):
        shares[i] = max(0, min(demands[i], left // (len(order) - done)))
        left -= shares[i]
    return shares
