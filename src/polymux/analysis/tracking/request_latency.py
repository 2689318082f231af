"""How long requests took, where a protocol has requests and replies (Streamux).

A latency is the time from a request's first octets to the end of its reply. Percentiles come from
counts in steps of less than one percent, so memory does not grow with the number of requests and
the order in which they ended changes nothing.
"""

from __future__ import annotations

from typing import Final

from polymux.core.protocol import Protocol
from polymux.core.streams import UNSEEN, Stream

STEPS: Final = 128  # for each doubling
PERCENTILES: Final = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))
_EXCHANGE: Final = {"Request", "Reply"}


class AskerRow:
    """The requests of one side of a session. Latencies are whole microseconds."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.requests = 0
        self.answered = 0
        self.longest: int | None = None
        self._counts: dict[int, int] = {}

    def add(self, us: int) -> None:
        """A request was answered after so long."""
        self.answered += 1
        self.longest = us if self.longest is None else max(self.longest, us)
        step = _step(us)
        self._counts[step] = self._counts.get(step, 0) + 1

    def latency(self, share: float) -> int | None:
        """Microseconds within which this share of the answers came; None if none did."""
        wanted = -int(-share * self.answered // 1)  # rounded up
        seen = 0
        for step in sorted(self._counts):
            seen += self._counts[step]
            if seen >= wanted:
                assert self.longest is not None
                return min(_upper(step), self.longest)
        return None


class Latencies:
    """Both sides of a session; `rows` are those that asked anything."""

    def __init__(self) -> None:
        self._askers = (AskerRow(0), AskerRow(1))
        self._apt: bool | None = None  # does the protocol have requests at all?

    def add(self, protocol: Protocol, stream: Stream) -> None:
        """A stream is over, or the capture is."""
        if self._apt is None:
            self._apt = has_requests(protocol)
        if not self._apt or stream.opener > 1:
            return
        asker = self._askers[int(stream.opener)]
        asker.requests += 1
        if (
            protocol.ending(stream) == "clean"
            and stream.opened_at != UNSEEN
            and stream.closed_at != UNSEEN
        ):
            asker.add(max(0, int(stream.closed_at - stream.opened_at) // 1000))

    def rows(self) -> list[AskerRow]:
        return [asker for asker in self._askers if asker.requests]


def has_requests(protocol: Protocol) -> bool:
    """Is every stream of this protocol a request and its reply?"""
    return {kind.name for kind in protocol.kinds.values()} >= _EXCHANGE


def _step(us: int) -> int:
    """The step a time falls into: exact up to STEPS, then STEPS for each doubling."""
    if us < STEPS:
        return us
    doublings = us.bit_length() - STEPS.bit_length()
    return (doublings + 1) * STEPS + (us >> doublings) - STEPS


def _upper(step: int) -> int:
    """The longest time that falls into a step."""
    if step < STEPS:
        return step
    doublings, place = divmod(step, STEPS)
    return (place + STEPS + 1 << doublings - 1) - 1
