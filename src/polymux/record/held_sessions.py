"""Sessions that write while they are not read, because the disk is full.

What a collector writes is recorded too, and waits in memory for space. Hardly anything is written
then, because nothing is answered: keep-alives, at intervals that the peer may have asked for. So
the memory is bounded by ending sessions: those that have written more than their share when half of
it is used, and any that writes when all is. The other half is for new sessions.
"""

from __future__ import annotations

from collections.abc import Collection

from polymux.aio import Session


class HeldSessions:
    """How often each session has written since the disk is full, as far as `overdue` has seen.

    Args:
        most: Packets and callbacks that may wait in memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent: dict[Session, int] = {}  # bytes
        self._writes: dict[Session, int] = {}

    def overdue(self, sessions: Collection[Session], waiting: int) -> list[Session]:
        """Return the sessions that have to end. Call it regularly, with all that are open.

        Args:
            sessions: They are held.
            waiting: What waits in memory now.
        """
        before, self._sent = self._sent, {session: session.bytes_sent for session in sessions}
        writing = [each for each, sent in self._sent.items() if sent > before.get(each, sent)]
        known = self._writes
        self._writes = {session: known.get(session, 0) for session in sessions}
        for session in writing:
            self._writes[session] += 1
        if waiting >= self._most:
            return writing
        if 2 * waiting < self._most:
            return []
        share = self._most // 2 // len(sessions) if sessions else 0
        return [session for session in writing if self._writes[session] > share]
