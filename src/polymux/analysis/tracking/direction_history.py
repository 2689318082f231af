# mypyc: compiled
"""What stall classification knows about one direction of a session."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.busy_runs import BusyRuns
from polymux.analysis.tracking.intervals import Intervals
from polymux.analysis.tracking.stall_rows import SENDER_IDLE, SLOW_READER, TRANSPORT
from polymux.analysis.tracking.stall_text import window_closed_text
from polymux.analysis.tracking.stream_tracker import StreamTracker
from polymux.text.units import duration_text

MAX_GAPS: Final = 1024  # gaps remembered; beyond, the older half is dropped
FAIR_QUANTUM_BYTES: Final[i64] = 16384  # a fair scheduler sends this of a stream before the next


class DirectionHistory:
    """The runs of frames of one direction, and the intervals in which TCP delayed it."""

    def __init__(
        self, runs: BusyRuns, window_closed: Intervals, retransmissions: Intervals
    ) -> None:
        self.runs: BusyRuns = runs
        # The receiver's TCP window was closed, or too small for the next segment:
        self.window_closed: Intervals = window_closed
        self.retransmissions: Intervals = retransmissions
        self.gaps: list[tuple[int, int]] = []  # (start, end) of bytes that were not captured
        # Streams with an unresolved head-of-line suspect (see `stalls`):
        self.hol_suspects: list[StreamTracker] = []

    def add_gap(self, began: i64, ended: i64) -> None:
        """Bytes that passed between `began` and `ended` were not captured."""
        if len(self.gaps) >= MAX_GAPS:
            self.gaps = self.gaps[MAX_GAPS // 2 :]
        self.gaps.append((int(began), int(ended)))

    def gap_overlap(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) covered by gaps."""
        covered: i64 = 0
        for since, until in reversed(self.gaps):
            if until <= began:
                break
            start: i64 = since if since > began else began
            stop: i64 = until if until < ended else ended
            if stop > start:
                covered += stop - start
        return covered

    def transport_cause(self, began: i64, ended: i64) -> tuple[str, str]:
        """The cause and detail of a pause by what TCP shows; `sender-idle` if it shows nothing."""
        lasted = ended - began
        closed_ns = self.window_closed.overlap(began, ended)
        if closed_ns * 2 >= lasted:
            return SLOW_READER, window_closed_text(closed_ns)
        resent_ns = self.retransmissions.overlap(began, ended)
        if resent_ns * 2 >= lasted:
            return TRANSPORT, f"bytes were lost and sent again for {duration_text(resent_ns)}"
        missing_ns = self.gap_overlap(began, ended)
        if missing_ns * 2 >= lasted:
            return TRANSPORT, f"bytes of {duration_text(missing_ns)} were not captured"
        return SENDER_IDLE, f"the sender sent nothing for {duration_text(lasted)}"
