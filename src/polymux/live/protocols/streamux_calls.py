"""Runs a handler task for every Streamux call; the task is cancelled with the call."""

from collections.abc import Awaitable, Callable
from typing import cast

from polymux.live.session.stream_tasks import StreamTaskRunner
from polymux.live.streams.duplex import Stream
from polymux.live.streams.exchanges import Call

CallHandler = Callable[[Call], Awaitable[None]]


class CallTaskRunner(StreamTaskRunner):
    """Starts a handler when a call arrives, while the peer reads the replies.

    While the send buffer is full, calls wait in the accept queue. A call whose handler the
    application cancels before its first step goes back there.
    """

    _waits_for_room = False  # no handler starts until the send buffer has room

    def may_start(self, stream: Stream) -> bool:
        if self._waits_for_room or not super().may_start(stream):
            return False
        if stream.send_would_block():
            self._waits_for_room = True
            stream.call_when_writable(self._on_room)
            return False
        return True

    def _on_room(self) -> None:
        self._waits_for_room = False
        self._start_queued()

    async def _wait_to_start(self) -> bool:
        call = self._accept_queue.first()
        if not self._waits_for_room or call is None:
            return False
        await call.drain()
        self._on_room()
        return True

    def start(self, stream: Stream) -> bool:
        if not super().start(stream):
            return False
        # cast: the peer's streams are calls.
        call = cast(Call, stream)
        call.task = self._tasks.get(call)  # None if an eager task has done all already
        return True

    def _on_failed(self, stream: Stream) -> None:
        cast(Call, stream).drop("its handler failed")

    def _on_handler_done(self, stream: Stream) -> None:
        cast(Call, stream).task = None
        super()._on_handler_done(stream)

    def _on_unstarted(self, stream: Stream) -> None:
        cast(Call, stream).task = None
        self._accept_queue.put_back(stream)
