"""Room to send: who waits because too much already waits to leave, woken in turn."""

from typing import TYPE_CHECKING

from polymux.aio.streams.duplex import SESSION_SEND_BUFFER_BYTES, STREAM_SEND_BUFFER_BYTES, Stream

if TYPE_CHECKING:
    from polymux.aio.session.session import Session


class SendWaiters:
    """Streams whose senders wait for room, in the order they came.

    Those who only lack leave do not stand here: leave wakes them. Who was woken and found the room
    taken by somebody quicker is the first to be woken again.
    """

    def __init__(self, session: "Session") -> None:
        self._scheduler = session.endpoint.scheduler
        self._socket_writer = session.socket_writer
        self._retrying: dict[Stream, None] = {}
        self._waiting: dict[Stream, None] = {}

    def __bool__(self) -> bool:
        return bool(self._retrying) or bool(self._waiting)

    def add(self, stream: Stream, retrying: bool) -> None:
        if (
            stream.buffers.queued_bytes >= STREAM_SEND_BUFFER_BYTES
            or self._scheduler.ready_bytes >= SESSION_SEND_BUFFER_BYTES
        ):
            (self._retrying if retrying else self._waiting)[stream] = None
            self._socket_writer.senders_waiting = True

    def wake(self) -> None:
        """Wake as many as there is room for; the rest are not disturbed."""
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
