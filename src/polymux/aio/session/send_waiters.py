"""Room to send: who waits because too much already waits to leave, woken in turn."""

from typing import TYPE_CHECKING

from polymux.aio.streams.duplex import LANE_ROOM, ROOM, Stream

if TYPE_CHECKING:
    from polymux.aio.session.session import Session


class Room:
    """Streams whose senders wait for room, in the order they came.

    Those who only lack leave do not stand here: leave wakes them. Who was woken and found the room
    taken by somebody quicker is the first to be woken again.
    """

    def __init__(self, session: "Session") -> None:
        self._outbox = session.endpoint.outbox
        self._leaving = session._leaving
        self._first: dict[Stream, None] = {}
        self._then: dict[Stream, None] = {}

    def __bool__(self) -> bool:
        return bool(self._first) or bool(self._then)

    def join(self, stream: Stream, again: bool) -> None:
        if stream.lane.queued >= LANE_ROOM or self._outbox.queued >= ROOM:
            (self._first if again else self._then)[stream] = None
            self._leaving.crowded = True

    def wake(self) -> None:
        """Wake as many as there is room for; the rest are not disturbed."""
        room = ROOM - self._outbox.queued
        for waiting in (self._first, self._then):
            for stream in list(waiting) if room > 0 else ():
                if stream.lane.queued < LANE_ROOM:
                    del waiting[stream]
                    room -= stream._wake_writers()
                    if room <= 0:
                        break
        self._leaving.crowded = bool(self)

    def clear(self) -> None:
        self._first.clear()
        self._then.clear()
        self._leaving.crowded = False
