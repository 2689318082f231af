"""Streams whose senders wait for room in the send buffers, woken by weight."""

from polymux.core.send_scheduler import SESSION_SEND_BUFFER_BYTES, SendScheduler
from polymux.live.session.socket_writer import SocketWriter
from polymux.live.streams.duplex import Stream


class SendWaiters:
    """The streams whose senders wait for room, and how room is divided among them.

    The send scheduler can only share the connection among streams that have content queued, and
    there is no room for much content of many streams. So the room, too, is divided by weight:
    whenever a write has made some, the waiting streams are granted shares of it in turn
    (`SendScheduler.grant_room`), and a stream that has queued what it was granted waits again. What
    a large send has queued beyond the grant is paid for by later ones.

    A stream that was woken and found the room taken before it had queued its grant is woken before
    all others. Then come streams with a part of an earlier grant left, because they send little,
    then those that have to be granted a share; every other time one of these is granted first, so
    that no stream waits without end. A stream that lacks only send credit is not here: credit from
    the peer wakes its senders.
    """

    def __init__(self, scheduler: SendScheduler, socket_writer: SocketWriter) -> None:
        self._scheduler = scheduler
        self._socket_writer = socket_writer
        self._retrying: dict[Stream, None] = {}
        self._granted: dict[Stream, None] = {}  # have a part of their grant left
        self._waiting: dict[Stream, None] = {}
        self._woken: dict[Stream, int] = {}  # last, with the room that each was to take
        self._waiting_first = False

    def __bool__(self) -> bool:
        return bool(self._retrying) or bool(self._granted) or bool(self._waiting)

    def add(self, stream: Stream, retrying: bool) -> None:
        """Register a stream if it lacks room.

        Args:
            stream: The stream whose sender is about to wait.
            retrying: The sender was woken before and found no room.
        """
        if self._scheduler.lacks_room(stream.buffers):
            if stream.buffers.queue_grant <= 0:
                self._waiting.setdefault(stream)
            elif retrying or stream in self._woken:
                self._retrying.setdefault(stream)
            else:
                self._granted.setdefault(stream)
            self._socket_writer.senders_waiting = True
            self._scheduler.contended = True

    def wake(self) -> None:
        """Wake as many streams as there is room for."""
        room = SESSION_SEND_BUFFER_BYTES - self._scheduler.ready_bytes
        woken = self._woken = {}
        room -= self._wake_granted(self._retrying, room)
        if room > 0:
            if self._waiting_first and self._waiting:
                room -= self._grant(next(iter(self._waiting)))
            self._waiting_first = not self._waiting_first
        room -= self._wake_granted(self._granted, room)
        progress = True
        while room > 0 and progress:
            progress = False
            for stream in [*self._waiting, *woken]:
                before = stream.buffers.queue_grant
                room -= self._grant(stream)
                progress = progress or stream.buffers.queue_grant != before
                if room <= 0:
                    break
        contended = bool(self) or len(woken) > 1
        self._scheduler.contended = contended
        self._socket_writer.senders_waiting = contended

    def _wake_granted(self, streams: dict[Stream, None], room: int) -> int:
        """Wake streams that have a grant while there is room; return the room they take."""
        taken = 0
        for stream in list(streams) if room > 0 else ():
            granted = self._scheduler.granted_room(stream.buffers)
            if granted > 0:
                del streams[stream]
                taken += self._wake(stream, granted)
                if taken >= room:
                    break
            elif stream.buffers.queue_grant <= 0:  # another sender of the stream has used it
                del streams[stream]
                self._waiting[stream] = None
        return taken

    def _grant(self, stream: Stream) -> int:
        """Grant a stream one share and wake it if it may queue anything; return the room taken."""
        granted = self._scheduler.grant_room(stream.buffers)
        if stream in self._woken:
            more = max(0, granted - self._woken[stream])
            self._woken[stream] += more
            return more
        del self._waiting[stream]
        if granted > 0:
            return self._wake(stream, granted)
        self._waiting[stream] = None  # behind the others
        return 0

    def _wake(self, stream: Stream, granted: int) -> int:
        """Wake the senders of a stream; return the room it takes: its grant, or a larger send."""
        wanted = stream.wake_senders()
        if not stream.waiting_senders:
            return 0  # they have been cancelled
        self._woken[stream] = max(granted, wanted)
        return self._woken[stream]

    def clear(self) -> None:
        self._retrying.clear()
        self._granted.clear()
        self._waiting.clear()
        self._woken.clear()
        self._socket_writer.senders_waiting = False
        self._scheduler.contended = False
