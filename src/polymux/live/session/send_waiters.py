# mypyc: compiled
"""Streams whose senders wait for room in the send buffers, woken by weight."""

from collections import OrderedDict
from heapq import heappop, heappush

from mypy_extensions import i64

from polymux.core.send_scheduler import (
    SESSION_SEND_BUFFER_BYTES,
    STREAM_SEND_BUFFER_BYTES,
    SendScheduler,
)
from polymux.live.session.socket_writer import SocketWriter
from polymux.live.streams.base import StreamBase, wake_senders


class SendWaiters:
    """The streams whose senders wait for room, and how room is divided among them.

    The send scheduler can only share the connection among streams that have content queued, and
    there is no room for much content of many streams. So the room, too, is divided by weight:
    whenever a write has made some, the waiting streams are granted shares of it in turn
    (`SendScheduler.grant_room`), and a stream that has queued what it was granted waits again. What
    a large send has queued beyond the grant is paid for by later ones.

    Who is next is decided by `StreamBuffers.room_time`, as in start-time fair queueing: each share
    moves a stream's time on, the stream with the earliest time is granted the next share, and a
    stream that begins to wait is not earlier than the one granted last. So the order in which they
    ask gives no stream an advantage.

    A stream that was woken and found the room taken before it had queued its grant is woken before
    all others. Then come streams with a part of an earlier grant left, because they send little,
    then those that have to be granted a share; every other time one of these is granted first, so
    that no stream waits without end. A stream that lacks only send credit is not here: credit from
    the peer wakes its senders.
    """

    def __init__(self, scheduler: SendScheduler, socket_writer: SocketWriter) -> None:
        self._scheduler = scheduler
        self._socket_writer = socket_writer
        # Ordered: the first is removed in constant time, however many there are.
        self._retrying: OrderedDict[StreamBase, None] = OrderedDict()
        self._granted: OrderedDict[StreamBase, None] = OrderedDict()  # have a part of it left
        self._full: dict[StreamBase, None] = {}  # their own buffer has no room
        self._waiting: set[StreamBase] = set()
        self._by_time: list[tuple[int, int, StreamBase]] = []  # a heap of those that wait
        self._serial = 0  # of the last one in it
        self._time: i64 = 0  # of the stream that was granted a share last
        self._woken: dict[StreamBase, int] = {}  # last, with the room that each was to take
        self._waiting_first = False

    def __bool__(self) -> bool:
        return bool(self._retrying or self._granted or self._full or self._waiting)

    def add(self, stream: StreamBase, retrying: bool) -> None:
        """Register a stream if it lacks room.

        Args:
            stream: The stream whose sender is about to wait.
            retrying: The sender was woken before and found no room.
        """
        if self._scheduler.lacks_room(stream.buffers):
            self._place(stream, retrying or stream in self._woken)
            self._socket_writer.senders_waiting = True
            self._scheduler.contended = True

    def _place(self, stream: StreamBase, retrying: bool) -> None:
        """Let a stream wait among those that lack the same."""
        buffers = stream.buffers
        if buffers.queued_bytes >= STREAM_SEND_BUFFER_BYTES:
            self._full[stream] = None
        elif buffers.queue_grant > 0:
            if retrying:
                self._retrying[stream] = None
            else:
                self._granted[stream] = None
        elif stream not in self._waiting:
            self._waiting.add(stream)
            self._push(stream)

    def _push(self, stream: StreamBase) -> None:
        """Put a stream among those that are granted shares, with a time that is not too early."""
        buffers = stream.buffers
        if buffers.room_time < self._time:
            buffers.room_time = self._time
        self._serial += 1
        heappush(self._by_time, (buffers.room_time, self._serial, stream))

    def wake(self) -> None:
        """Wake as many streams as there is room for."""
        room = SESSION_SEND_BUFFER_BYTES - self._scheduler.ready_bytes
        self._woken = {}
        if len(self._full) > 0:
            self._place_no_longer_full()
        room -= self._wake_granted(self._retrying, room)
        if room > 0:
            if self._waiting_first and len(self._waiting) > 0:
                room -= self._grant_next()
            self._waiting_first = not self._waiting_first
        room -= self._wake_granted(self._granted, room)
        if room > 0:
            for stream in self._woken:
                self._push(stream)  # there is more room than they have been granted
        while room > 0 and len(self._by_time) > 0:
            room -= self._grant_next()
        if len(self._waiting) == 0:
            self._by_time.clear()
        others_wait = bool(self._retrying or self._granted or self._waiting)
        contended = len(self._woken) > 1 or others_wait
        self._scheduler.contended = contended
        self._socket_writer.senders_waiting = contended or len(self._full) > 0
        if others_wait and len(self._woken) > 0:
            # A woken caller need not send (`drain`): the next write sees what room is left.
            self._socket_writer.schedule_flush()

    def _place_no_longer_full(self) -> None:
        for stream in list(self._full):
            if stream.buffers.queued_bytes < STREAM_SEND_BUFFER_BYTES:
                del self._full[stream]
                self._place(stream, True)

    def _wake_granted(self, streams: OrderedDict[StreamBase, None], room: i64) -> i64:
        """Wake streams that have a grant while there is room; return the room they take."""
        taken: i64 = 0
        while taken < room and streams:
            stream, _ = streams.popitem(last=False)
            granted = self._scheduler.granted_room(stream.buffers)
            if granted > 0:
                taken += self._wake(stream, granted)
            else:  # another sender of the stream has queued meanwhile
                self._place(stream, False)
        return taken

    def _grant_next(self) -> i64:
        """Grant the next stream a share, and wake it if it may queue; return the room taken."""
        time, _, stream = heappop(self._by_time)
        buffers = stream.buffers
        again = stream in self._woken
        if time != buffers.room_time or not (again or stream in self._waiting):
            return 0  # an old entry
        if self._time < time:
            self._time = time
        granted = self._scheduler.grant_room(buffers)
        taken: i64 = 0
        if again:
            self._waiting.discard(stream)
            if granted > self._woken[stream]:
                taken = granted - self._woken[stream]
            self._woken[stream] += taken
        elif granted > 0:
            self._waiting.discard(stream)
            taken = self._wake(stream, granted)
        elif buffers.queue_grant > 0:  # another sender of the stream has filled its buffer
            self._waiting.discard(stream)
            self._place(stream, False)
        room = STREAM_SEND_BUFFER_BYTES - buffers.queued_bytes
        if buffers.queue_grant < room or stream in self._waiting:
            self._push(stream)
        return taken

    def _wake(self, stream: StreamBase, granted: i64) -> i64:
        """Wake the senders of a stream; return the room it takes: its grant, or a larger send."""
        wanted = wake_senders(stream)
        if not stream.waiting_senders:
            return 0  # they have been cancelled
        if wanted < granted:
            wanted = granted
        self._woken[stream] = wanted
        return wanted

    def clear(self) -> None:
        """Forget all streams."""
        self._retrying.clear()
        self._granted.clear()
        self._full.clear()
        self._waiting.clear()
        self._by_time.clear()
        self._woken.clear()
        self._socket_writer.senders_waiting = False
        self._scheduler.contended = False
