# mypyc: compiled
"""What is known of one direction of a session, for the causes of its stalls."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.busy_runs import BusyRuns
from polymux.analysis.tracking.intervals import Intervals
from polymux.analysis.tracking.stall_rows import SENDER_IDLE, SLOW_READER, TRANSPORT
from polymux.analysis.tracking.stall_text import window_closed_text
from polymux.analysis.tracking.stream_tracker import StreamTracker
from polymux.text.units import duration_text

MAX_GAPS: Final = 1024  # gaps remembered
FAIR_QUANTUM_BYTES: Final[i64] = (
    16384  # bytes a fair sender gives one stream before the next has its turn
)


class DirectionHistory:
    """What is known of one direction: its runs, and the spans in which TCP held it up."""

    def __init__(
        self, runs: BusyRuns, window_closed: Intervals, retransmissions: Intervals
    ) -> None:
        self.runs: BusyRuns = runs
        self.window_closed: Intervals = (
            window_closed  # the receiver offered no window, or too small a one
        )
        self.retransmissions: Intervals = retransmissions  # bytes were being sent again
        self.gaps: list[tuple[int, int]] = []  # bytes that were not captured passed here
        self.hol_suspects: list[
            StreamTracker
        ] = []  # streams with a pause that the culprit's next frame decides

    def add_gap(self, began: i64, ended: i64) -> None:
        """Bytes are missing: they passed between these two instants."""
        if len(self.gaps) >= MAX_GAPS:
            self.gaps = self.gaps[MAX_GAPS // 2 :]
        self.gaps.append((int(began), int(ended)))

    def gap_overlap(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) in which bytes are missing."""
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
        """Did TCP hold up what was to pass here? The cause, and what was seen of it."""
        lasted = ended - began
        closed = self.window_closed.overlap(began, ended)
        if closed * 2 >= lasted:
            return SLOW_READER, window_closed_text(closed)
        repaired = self.retransmissions.overlap(began, ended)
        if repaired * 2 >= lasted:
            return TRANSPORT, f"bytes were lost and sent again for {duration_text(repaired)}"
        missing = self.gap_overlap(began, ended)
        if missing * 2 >= lasted:
            return TRANSPORT, f"bytes of {duration_text(missing)} were not captured"
        return SENDER_IDLE, f"the sender sent nothing for {duration_text(lasted)}"
