"""Asking a Nerdbank peer for a wider window when ours to send runs out (v2, v3).

One request is out at a time for each channel. After a refusal the number of stalls before the next
request doubles, so that a peer that cannot give more is left in peace; one that does not know the
request never answers, and is never asked again.
"""

from dataclasses import dataclass

from polymux.core.endpoint import Endpoint
from polymux.core.frames import Frame
from polymux.core.streams import OPEN
from polymux.core.streams import Stream as Record
from polymux.protocols.nerdbank.codec import GROWTH_REQUEST, WINDOW_ADJUST

MOST = 1024  # stalls between two requests at most


@dataclass(slots=True)
class Asked:
    """What was asked for one channel: the window then, and how patient to be now."""

    window: int = 0
    patience: int = 1
    stalls: int = 0


class Growth:
    """The requests of one session."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._asked: dict[int, Asked] = {}
        endpoint.outbox.noting = endpoint.protocol.credit

    def ask(self) -> bool:
        """Streams have stalled: ask where it is time to; True if anything is to be sent."""
        outbox = self._endpoint.outbox
        stalled, outbox.stalled = outbox.stalled, []
        asked = [self._wants(record) for record in stalled]
        if len(self._asked) > 2 * self._endpoint.limits.streams:
            self._asked.clear()  # of channels long gone
        return any(asked)

    def _wants(self, record: Record) -> bool:
        endpoint = self._endpoint
        own = record.half(endpoint.side)
        if not record.accepted or record.over or own.state != OPEN or own.window <= 0:
            return False
        if (1 - endpoint.side, WINDOW_ADJUST, record.key) in endpoint.protocol.duties:
            return False  # asked, and not answered yet
        entry = self._asked.setdefault(record.serial, Asked())
        if entry.window and own.window <= entry.window:  # refused the last time
            entry.stalls += 1
            if entry.stalls < entry.patience:
                return False
            entry.patience = min(2 * entry.patience, MOST)
        else:
            entry.patience = 2
        entry.window = own.window
        entry.stalls = 0
        endpoint.answer(record, Frame(GROWTH_REQUEST, record.key))
        return True
