"""Messages that are being put together: bytes that were taken from the receive buffer and are not
the application's yet.

They are bounded for all streams of a session together (`Limits.assembly_buffer_bytes`). A stream
that would exceed the bound leaves its data unread, so that its window or the session's read
backpressure holds the peer up. Two rules keep that from ending in a deadlock: the message that was
begun first always goes on, and a message that is complete is always taken.
"""

from typing import TYPE_CHECKING

from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface

if TYPE_CHECKING:
    from polymux.live.streams.base import StreamBase


class Assembly(SessionComponent[SessionInterface]):
    """The unfinished messages of one session.

    Attributes:
        total_bytes: Bytes of all of them.
    """

    def __init__(self, session: SessionInterface) -> None:
        super().__init__(session)
        self.total_bytes = 0
        self._held: dict[StreamBase, int] = {}  # bytes by stream, the oldest message first
        self._waiting: set[StreamBase] = set()  # streams that leave their data unread

    def held_by(self, stream: "StreamBase") -> int:
        """Return how many bytes of an unfinished message the stream holds."""
        return self._held.get(stream, 0)

    def hold(self, stream: "StreamBase", size: int) -> None:
        """Count `size` bytes as what the stream's message has by now."""
        self.total_bytes += size - self._held.get(stream, 0)
        self._held[stream] = size
        self.session.read_backpressure.on_assembled()

    def must_wait(self, stream: "StreamBase") -> bool:
        """Return whether an unfinished message must leave its data unread for now."""
        session = self.session
        limits = session.endpoint.limits
        if self.total_bytes < limits.assembly_buffer_bytes:
            return False
        if next(iter(self._held), stream) is stream:
            return False
        if stream not in self._waiting:
            self._waiting.add(stream)
            session.endpoint.counters.count("assembly_buffer_bytes")
        return True

    def release(self, stream: "StreamBase") -> None:
        """The stream's message is complete or given up: let those that wait look again."""
        self._waiting.discard(stream)
        size = self._held.pop(stream, None)
        if size is not None:
            self.total_bytes -= size
            waiting, self._waiting = self._waiting, set()
            for other in waiting:
                other.wake_reader()
