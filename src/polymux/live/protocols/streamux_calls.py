"""Runs a handler task for every Streamux call; the task is cancelled with the call."""

import logging
from collections.abc import Awaitable, Callable
from typing import cast

from polymux.core.errors import PolymuxError
from polymux.live.errors import only_polymux_errors
from polymux.live.session.stream_tasks import StreamTaskRunner
from polymux.live.streams.duplex import Stream
from polymux.live.streams.exchanges import Call

log = logging.getLogger("polymux.aio")

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

    async def _run_handler(self, stream: Stream) -> None:
        call = cast(Call, stream)
        if call not in self._tasks:  # eager tasks: see the base class
            await call.session.runtime.checkpoint()
        try:
            try:
                if call.usable:
                    await self._handler(call)
            except BaseException:
                call.drop("its handler failed")
                raise
            await call.close()
        except PolymuxError as problem:
            log.debug("%s: %s", call.session, problem)
        except Exception as problem:
            if only_polymux_errors(problem):
                log.debug("%s: %s", call.session, problem)
            else:
                log.exception("%s: the handler of %s failed", call.session, call)
        finally:
            call.task = None
            self._on_handler_done(call)

    def _on_unstarted(self, stream: Stream) -> None:
        cast(Call, stream).task = None
        self._accept_queue.put_back(stream)
