"""Request latencies, for protocols with requests and replies (Streamux).

A latency is the time from a request's first bytes to the end of its reply. Percentiles come from a
log-linear histogram whose buckets are less than one percent wide, so memory does not grow with the
number of requests and the result does not depend on their order.
"""

from __future__ import annotations

from typing import Final

from polymux.core.protocol import Protocol
from polymux.core.streams import NOT_YET, StreamState

STEPS_PER_DOUBLING: Final = 128  # histogram buckets for each doubling of the latency
PERCENTILES: Final = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))


class RequesterLatency:
    """The requests of one side of a session. Latencies are integer microseconds."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.requests = 0
        self.answered = 0
        self.max_us: int | None = None
        self._counts: dict[int, int] = {}

    def add(self, us: int) -> None:
        """Add a request that was answered after `us` microseconds."""
        self.answered += 1
        self.max_us = us if self.max_us is None else max(self.max_us, us)
        step = _step(us)
        self._counts[step] = self._counts.get(step, 0) + 1

    def percentile(self, fraction: float) -> int | None:
        """Microseconds within which this fraction of the replies came; None if there was none."""
        rank = -int(-fraction * self.answered // 1)  # rounded up
        seen = 0
        for step in sorted(self._counts):
            seen += self._counts[step]
            if seen >= rank:
                assert self.max_us is not None
                return min(_upper_bound(step), self.max_us)
        return None


class RequestLatencies:
    """The latencies of both sides of a session, each stream of which is a request and its reply."""

    def __init__(self) -> None:
        self._requesters = (RequesterLatency(0), RequesterLatency(1))

    def add(self, protocol: Protocol, stream: StreamState) -> None:
        """Add a stream that is closed, or that the capture ended on."""
        if stream.opener > 1:
            return
        requester = self._requesters[int(stream.opener)]
        requester.requests += 1
        if (
            protocol.ending(stream) == "clean"
            and stream.opened_at != NOT_YET
            and stream.closed_at != NOT_YET
        ):
            requester.add(max(0, int(stream.closed_at - stream.opened_at) // 1000))

    def rows(self) -> list[RequesterLatency]:
        """The sides that sent requests."""
        return [requester for requester in self._requesters if requester.requests]


def _step(us: int) -> int:
    """The bucket of a latency: one per microsecond up to STEPS_PER_DOUBLING, then log-linear."""
    if us < STEPS_PER_DOUBLING:
        return us
    doublings = us.bit_length() - STEPS_PER_DOUBLING.bit_length()
    return (doublings + 1) * STEPS_PER_DOUBLING + (us >> doublings) - STEPS_PER_DOUBLING


def _upper_bound(step: int) -> int:
    """The longest latency in a bucket."""
    if step < STEPS_PER_DOUBLING:
        return step
    doublings, place = divmod(step, STEPS_PER_DOUBLING)
    return (place + STEPS_PER_DOUBLING + 1 << doublings - 1) - 1
