"""Asking a Nerdbank peer for a wider window when ours to send runs out (v2, v3).

One request is out at a time for each channel. After a refusal the number of stalls before the next
request doubles, so that a peer that cannot give more is left in peace; one that does not know the
request never answers, and is never asked again.
"""

from dataclasses import dataclass

from polymux.core.endpoint import Endpoint
from polymux.core.frames import Frame
from polymux.core.streams import OPEN
from polymux.core.streams import StreamState as Record
from polymux.protocols.nerdbank.codec import GROWTH_REQUEST, WINDOW_ADJUST

MAX_STALLS_REQUIRED = 1024  # stalls between two requests at most


@dataclass(slots=True)
class GrowthRequest:
    """What was asked for one channel: the window then, and how patient to be now."""

    window: int = 0
    stalls_required: int = 1
    stalls: int = 0


class WindowGrowth:
    """The requests of one session."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._requests: dict[int, GrowthRequest] = {}
        endpoint.scheduler.report_blocked = endpoint.protocol.has_credit

    def request_where_due(self) -> bool:
        """Streams have stalled: ask where it is time to; True if anything is to be sent."""
        outbox = self._endpoint.scheduler
        stalled, outbox.blocked_streams = outbox.blocked_streams, []
        asked = [self._request_if_due(record) for record in stalled]
        if len(self._requests) > 2 * self._endpoint.limits.max_streams:
            self._requests.clear()  # of channels long gone
        return any(asked)

    def _request_if_due(self, state: Record) -> bool:
        endpoint = self._endpoint
        own = state.half(endpoint.side)
        if not state.accepted or state.over or own.state != OPEN or own.window <= 0:
            return False
        if (1 - endpoint.side, WINDOW_ADJUST, state.key) in endpoint.protocol.pending_replies:
            return False  # asked, and not answered yet
        entry = self._requests.setdefault(state.serial, GrowthRequest())
        if entry.window and own.window <= entry.window:  # refused the last time
            entry.stalls += 1
            if entry.stalls < entry.stalls_required:
                return False
            entry.stalls_required = min(2 * entry.stalls_required, MAX_STALLS_REQUIRED)
        else:
            entry.stalls_required = 2
        entry.window = own.window
        entry.stalls = 0
        endpoint.queue_frame(state, Frame(GROWTH_REQUEST, state.key))
        return True
