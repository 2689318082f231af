"""Streams whose senders wait for room in the send buffers, woken in order."""

from polymux.core.send_scheduler import SendScheduler
from polymux.live.session.socket_writer import SocketWriter
from polymux.live.streams.duplex import SESSION_SEND_BUFFER_BYTES, STREAM_SEND_BUFFER_BYTES, Stream


class SendWaiters:
    """A FIFO of streams whose senders wait for room.

    A stream that lacks only send credit is not in it: credit from the peer wakes its senders. A
    stream that was woken and found the room taken again is woken before all others.
    """

    def __init__(self, scheduler: SendScheduler, socket_writer: SocketWriter) -> None:
        self._scheduler = scheduler
        self._socket_writer = socket_writer
        self._retrying: dict[Stream, None] = {}
        self._waiting: dict[Stream, None] = {}

    def __bool__(self) -> bool:
        return bool(self._retrying) or bool(self._waiting)

    def add(self, stream: Stream, retrying: bool) -> None:
        """Register a stream if its own buffer or the session's is full.

        Args:
            stream: The stream whose sender is about to wait.
            retrying: The sender was woken before and found no room.
        """
        if (
            stream.buffers.queued_bytes >= STREAM_SEND_BUFFER_BYTES
            or self._scheduler.ready_bytes >= SESSION_SEND_BUFFER_BYTES
        ):
            (self._retrying if retrying else self._waiting)[stream] = None
            self._socket_writer.senders_waiting = True

    def wake(self) -> None:
        """Wake as many streams as there is room for."""
        room = SESSION_SEND_BUFFER_BYTES - self._scheduler.ready_bytes
        for waiting in (self._retrying, self._waiting):
            for stream in list(waiting) if room > 0 else ():
                if stream.buffers.queued_bytes < STREAM_SEND_BUFFER_BYTES:
                    del waiting[stream]
                    room -= stream.wake_senders()
                    if room <= 0:
                        break
        self._socket_writer.senders_waiting = bool(self)

    def clear(self) -> None:
        self._retrying.clear()
        self._waiting.clear()
        self._socket_writer.senders_waiting = False
