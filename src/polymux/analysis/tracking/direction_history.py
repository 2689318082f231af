# mypyc: compiled
"""What is known of one direction of a session, for the causes of its stalls."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.busy_runs import Runs
from polymux.analysis.tracking.intervals import Spans
from polymux.analysis.tracking.stall_rows import IDLE, SLOW_READER, TRANSPORT
from polymux.analysis.tracking.stall_text import closed_text
from polymux.analysis.tracking.stream_tracker import Track
from polymux.text.units import duration_text

MISSING: Final = 1024  # gaps remembered
QUANTUM: Final[i64] = 16384  # octets a fair sender gives one stream before the next has its turn


class Path:
    """What is known of one direction: its runs, and the spans in which TCP held it up."""

    def __init__(self, runs: Runs, closed: Spans, repaired: Spans) -> None:
        self.runs: Runs = runs
        self.closed: Spans = closed  # the receiver offered no window, or too small a one
        self.repaired: Spans = repaired  # octets were being sent again
        self.missing: list[tuple[int, int]] = []  # octets that were not captured passed here
        self.held: list[Track] = []  # streams with a pause that the culprit's next frame decides

    def lose(self, began: i64, ended: i64) -> None:
        """Octets are missing: they passed between these two instants."""
        if len(self.missing) >= MISSING:
            self.missing = self.missing[MISSING // 2 :]
        self.missing.append((int(began), int(ended)))

    def lost(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) in which octets are missing."""
        covered: i64 = 0
        for since, until in reversed(self.missing):
            if until <= began:
                break
            start: i64 = since if since > began else began
            stop: i64 = until if until < ended else ended
            if stop > start:
                covered += stop - start
        return covered

    def held_up(self, began: i64, ended: i64) -> tuple[str, str]:
        """Did TCP hold up what was to pass here? The cause, and what was seen of it."""
        lasted = ended - began
        closed = self.closed.overlap(began, ended)
        if closed * 2 >= lasted:
            return SLOW_READER, closed_text(closed)
        repaired = self.repaired.overlap(began, ended)
        if repaired * 2 >= lasted:
            return TRANSPORT, f"octets were lost and sent again for {duration_text(repaired)}"
        missing = self.lost(began, ended)
        if missing * 2 >= lasted:
            return TRANSPORT, f"octets of {duration_text(missing)} were not captured"
        return IDLE, f"the sender sent nothing for {duration_text(lasted)}"
